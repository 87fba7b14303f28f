import logging
import time

from kzoo.training.watchdog import Watchdog


def _warnings(caplog):
    return [record.getMessage() for record in caplog.records]


def test_what_takes_long_is_named_and_named_again_when_it_has_taken_twice_as_long(caplog):
    caplog.set_level(logging.WARNING)
    with Watchdog(0.2) as watchdog, watchdog.stage("the input: examples 0 to 7"):
        deadline = time.monotonic() + 30
        while len(_warnings(caplog)) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
    first, second = _warnings(caplog)[:2]
    assert first.startswith("waiting for ")
    assert first.endswith("s already for the input: examples 0 to 7")
    assert second.endswith("the input: examples 0 to 7")


def test_the_time_between_stages_is_no_news(caplog):
    caplog.set_level(logging.WARNING)
    with Watchdog(0.2) as watchdog:
        with watchdog.stage("a step"):
            pass
        time.sleep(0.6)
    assert _warnings(caplog) == []


def test_each_stage_has_its_own_time(caplog):
    caplog.set_level(logging.WARNING)
    with Watchdog(0.4) as watchdog:
        for number in range(8):
            with watchdog.stage(f"stage {number}"):
                time.sleep(0.1)
    assert _warnings(caplog) == []


def test_without_a_limit_nothing_is_watched(caplog):
    with Watchdog(None) as watchdog, watchdog.stage("anything"):
        assert not watchdog._thread.is_alive()
    assert _warnings(caplog) == []
