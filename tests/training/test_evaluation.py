"""Every held-out window counts once, whatever the batch; against windows taken one by one."""

import json

import numpy as np
import pytest
from scipy.special import log_softmax

from kzoo.corpora.held_out_examples import HeldOutExamples
from tests.training import held_out_text, small_steps
from tests.training.subprocesses import run_python

NUM_WINDOWS = (1, 7, 8, 9)


def _one_by_one(model, held_out: HeldOutExamples) -> dict[str, float]:
    """What `measure` should say, from each window alone, without any padding."""
    losses: dict[str, list[float]] = {}
    hits: dict[str, list[bool]] = {}
    for position in range(len(held_out)):
        window, language = held_out[position]
        logits = model(
            {
                "token_ids": window.token_ids[None],
                "padding_mask": np.ones((1, window.token_ids.size), np.int32),
                "segment_ids": np.zeros((1, window.token_ids.size), np.int32),
                "mask_positions": window.mask_positions[None],
            }
        )[0].numpy()
        nats = -log_softmax(logits.astype(np.float64), axis=-1)
        name = held_out.languages[language]
        losses.setdefault(name, []).extend(nats[np.arange(len(nats)), window.mask_ids])
        hits.setdefault(name, []).extend(nats.argmin(axis=-1) == window.mask_ids)
    named = {f"loss/{name}": np.mean(values) for name, values in losses.items()}
    named |= {f"accuracy/{name}": np.mean(values) for name, values in hits.items()}
    named["loss"] = np.mean([np.mean(values) for values in losses.values()])
    named["accuracy"] = np.mean([np.mean(values) for values in hits.values()])
    named["bits_per_token"] = named["loss"] / np.log(2)
    return named


def _frequent_pieces(model):
    """Lets the model guess two pieces often, so that it is right now and then."""
    random = np.random.default_rng(3)
    model.head.bias.assign(random.normal(size=small_steps.VOCABULARY_SIZE))
    return model


@pytest.fixture(scope="module")
def model():
    return _frequent_pieces(small_steps.model())


@pytest.mark.parametrize("num_windows", NUM_WINDOWS)
def test_every_window_counts_once_on_one_device(model, num_windows):
    evaluation, held_out = held_out_text.evaluation(model, num_windows)
    assert len(held_out) == num_windows
    assert evaluation.measure() == pytest.approx(_one_by_one(model, held_out), rel=1e-5)


def test_static_shapes_change_nothing(model):
    evaluation, held_out = held_out_text.evaluation(model, 9, static_shapes=True)
    assert evaluation.measure() == pytest.approx(_one_by_one(model, held_out), rel=1e-5)


TWO_DEVICES = """
import json
from kzoo.training.strategies import configure_runtime, make_strategy
from tests.training import held_out_text, small_steps
from tests.training.test_evaluation import NUM_WINDOWS, _frequent_pieces

configure_runtime(num_logical_cpus=2)
strategy = make_strategy("mirrored")
with strategy.scope():
    model = _frequent_pieces(small_steps.model())
measured = {}
for num_windows in NUM_WINDOWS:
    evaluation, _ = held_out_text.evaluation(model, num_windows, strategy)
    measured[num_windows] = evaluation.measure()
print(json.dumps(measured))
"""


def test_every_window_counts_once_on_two_devices(model):
    measured = json.loads(run_python(TWO_DEVICES).stdout)
    for num_windows in NUM_WINDOWS:
        _, held_out = held_out_text.evaluation(model, num_windows)
        expected = _one_by_one(model, held_out)
        assert measured[str(num_windows)] == pytest.approx(expected, rel=1e-5)


def test_a_measurement_is_of_the_model_as_it_is_now(model):
    evaluation, _ = held_out_text.evaluation(model, 7)
    before, bias = evaluation.measure(), model.head.bias.numpy()
    assert evaluation.measure() == before
    model.head.bias.assign(-bias)
    assert evaluation.measure()["loss"] != before["loss"]
    model.head.bias.assign(bias)


def test_the_unigram_baseline_is_the_mixtures_on_the_same_targets(model):
    evaluation, held_out = held_out_text.evaluation(model, 9)
    counts = held_out_text.examples(9).piece_counts()
    # Ids below 6 are control pieces, which are never targets.
    ordinary = {language: count[6:] for language, count in counts.items()}
    total = sum(count.sum() for count in ordinary.values())
    mixture = sum(
        share * ordinary[language] / ordinary[language].sum()
        for language, share in held_out_text.MIXTURE.items()
    )
    probabilities = (mixture * total + 1) / (mixture * total + 1).sum()
    nats: dict[str, list[float]] = {"de": [], "el": []}
    for position in range(len(held_out)):
        window, language = held_out[position]
        nats[held_out.languages[language]].extend(-np.log(probabilities[window.mask_ids - 6]))
    means = {name: np.mean(values) for name, values in nats.items()}
    assert evaluation.unigram_baseline() == pytest.approx(
        {
            "unigram_loss": np.mean(list(means.values())),
            "unigram_loss/de": means["de"],
            "unigram_loss/el": means["el"],
        }
    )
