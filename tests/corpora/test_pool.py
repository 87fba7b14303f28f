"""The process pool: order, bounded memory, and what happens when somebody dies."""

import os
import signal

import pytest

from kzoo.corpora.pool import run_in_order
from kzoo.errors import KzooError


def square(number: int) -> int:
    return number * number


def die(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def refuse(number: int) -> int:
    raise KzooError(f"line {number} is bad")


def test_results_come_in_the_order_of_the_tasks_which_are_taken_as_needed():
    taken = []

    def tasks():
        for number in range(20):
            taken.append(number)
            yield number

    results = run_in_order(square, tasks(), 2)
    assert next(results) == 0
    assert len(taken) <= 4
    assert [0, *results] == [number * number for number in range(20)]


def test_a_worker_that_dies_is_an_error_that_says_so():
    with pytest.raises(KzooError, match=r"a worker process died.*fewer than 2 workers"):
        list(run_in_order(die, range(8), 2))


def test_an_error_in_a_worker_reaches_the_caller():
    with pytest.raises(KzooError, match=r"^line 0 is bad$"):
        list(run_in_order(refuse, range(8), 2))
