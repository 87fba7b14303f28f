"""What fine-tuning must move in an encoder, whichever program does it."""

from collections.abc import Sequence

import numpy as np

# `tests.models.shapes` has as many; half of them are used, so that rows of tables stay unused.
USED_IDS = 250
LENGTH = 12


def inputs_and_labels(
    batch: int = 8, length: int = LENGTH, seed: int = 0
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Rows of every length from 2, with two segments in each, and labels of three classes."""
    random = np.random.default_rng(seed)
    lengths = random.integers(2, length + 1, batch)
    mask = (np.arange(length) < lengths[:, None]).astype(np.int32)
    inputs = {
        "input_word_ids": random.integers(5, USED_IDS, (batch, length), dtype=np.int32) * mask,
        "input_mask": mask,
        "input_type_ids": (np.arange(length) >= lengths[:, None] // 2).astype(np.int32) * mask,
    }
    return inputs, random.integers(0, 3, batch)


def for_backbone(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same inputs under the names of `RemBertBackbone`."""
    return {
        "token_ids": inputs["input_word_ids"],
        "padding_mask": inputs["input_mask"],
        "segment_ids": inputs["input_type_ids"],
    }


def assert_all_moved(
    names: Sequence[str],
    before: Sequence[np.ndarray],
    after: Sequence[np.ndarray],
    inputs: dict[str, np.ndarray],
) -> None:
    """All weights must have moved but those whose gradient is zero in theory.

    Those are key biases (they add the same to all of a query's logits), and rows of tables that the
    inputs do not use.
    """
    assert len(names) == len(before) == len(after) > 0
    tables = {
        "token_embedding": np.unique(inputs["input_word_ids"]),
        "position_embedding": np.arange(inputs["input_word_ids"].shape[1]),
    }
    seen = set()
    for name, old, new in zip(names, before, after, strict=True):
        changes = np.abs(new - old)
        table = next((table for table in tables if table in name), None)
        if name.endswith("key/bias"):
            seen.add("key/bias")
            assert changes.max() < 1e-6, name
        elif table is not None:
            seen.add(table)
            used = tables[table]
            assert changes[used].max() > 1e-6, name
            assert not np.delete(changes, used, axis=0).any(), name
        else:
            assert changes.max() > 1e-6, name
    assert seen == {"key/bias", *tables}
