"""Sums by language against sums one by one."""

import math

import numpy as np
import pytest
import tensorflow as tf

from kzoo.training.metrics import (
    LanguageSums,
    add_sums,
    bits_per_token,
    language_table,
    named_metrics,
    sum_by_language,
)


def test_a_uniform_guess_over_a_power_of_two_costs_that_many_bits():
    assert bits_per_token(math.log(2**13)) == pytest.approx(13)


def test_sums_are_those_of_each_languages_targets():
    generator = np.random.default_rng(0)
    loss = generator.uniform(0, 9, 200).astype(np.float32)
    correct = generator.random(200) < 0.3
    weights = (generator.random(200) < 0.8).astype(np.float32)
    language = generator.integers(0, 4, 200)
    loss[weights == 0] = np.nan  # what a padding slot may hold
    sums = sum_by_language(loss, correct, weights, language, num_languages=5)
    for index in range(5):
        chosen = (language == index) & (weights == 1)
        np.testing.assert_allclose(sums.loss[index], loss[chosen].sum(), rtol=1e-5)
        assert sums.correct[index] == correct[chosen].sum()
        assert sums.count[index] == chosen.sum()


def test_sums_over_batches_do_not_lose_small_ones():
    batch = LanguageSums(*(tf.constant([1.0]) for _ in range(3)))
    large = LanguageSums(*(tf.constant([2.0**25]) for _ in range(3)))
    total = add_sums(add_sums(None, large), batch)
    assert [values.item() for values in total] == [2**25 + 1] * 3


def test_a_table_has_the_means_of_the_languages_that_had_targets():
    sums = LanguageSums(*(np.array(v) for v in ([30.0, 0.0, 8.0], [2, 0, 1], [10, 0, 2])))
    table = language_table(sums, ["de", "fi", "sw"])
    assert table == {
        "de": {"loss": 3.0, "accuracy": 0.2, "targets": 10},
        "sw": {"loss": 4.0, "accuracy": 0.5, "targets": 2},
    }
    assert named_metrics(table) == {
        "loss": 3.5,
        "accuracy": 0.35,
        "bits_per_token": pytest.approx(3.5 / math.log(2)),
        "loss/de": 3.0,
        "loss/sw": 4.0,
        "accuracy/de": 0.2,
        "accuracy/sw": 0.5,
    }
