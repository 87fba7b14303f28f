import itertools
import re
import threading
import time

import numpy as np
import pytest

from kzoo.corpora.batching import padding_share, padding_sizes
from kzoo.corpora.examples import ExampleFiles
from kzoo.corpora.held_out_examples import HeldOutExamples
from kzoo.corpora.pipeline import batches
from kzoo.corpora.prepare import prepare
from kzoo.corpora.random_bits import RandomBits
from kzoo.corpora.training_examples import TrainingExamples
from kzoo.errors import KzooError
from kzoo.text.vocabulary_training import train_vocabulary
from tests.corpora.memory_examples import (
    CLS,
    MASK,
    PAD,
    SEP,
    UNK,
    MemoryExamples,
    three_languages,
    windows,
)

LENGTH = 32


def training_examples(examples=None, **arguments) -> TrainingExamples:
    return TrainingExamples(examples or three_languages(), sequence_length=LENGTH, **arguments)


def take(count: int, source, **arguments) -> list[list[dict[str, np.ndarray]]]:
    iterator = batches(source, **arguments)
    taken = list(itertools.islice(iterator, count))
    iterator.close()
    return taken


def rows(taken) -> list[tuple]:
    """Every example of some batches without its padding, in order."""
    found = []
    for share in itertools.chain.from_iterable(taken):
        for row in range(len(share["language"])):
            length = share["padding_mask"][row].sum()
            targets = share["mask_weights"][row].astype(bool)
            found.append(
                (
                    int(share["language"][row]),
                    tuple(share["token_ids"][row, :length].tolist()),
                    tuple(share["mask_positions"][row, targets].tolist()),
                    tuple(share["mask_ids"][row, targets].tolist()),
                )
            )
    return found


def unmasked(row: tuple) -> tuple[int, ...]:
    """The window that a row was made from."""
    _, token_ids, positions, targets = row
    restored = np.array(token_ids)
    restored[list(positions)] = targets
    return tuple(restored[1:-1].tolist())


def expected_rows(source, positions) -> list[tuple]:
    return [
        (
            example.language,
            tuple(example.window.token_ids.tolist()),
            tuple(example.window.mask_positions.tolist()),
            tuple(example.window.mask_ids.tolist()),
        )
        for example in map(source.__getitem__, positions)
    ]


@pytest.mark.parametrize("threads", [0, 1, 5])
@pytest.mark.parametrize("num_shares", [1, 2, 6])
@pytest.mark.parametrize("pad_to", [None, [8, 16, 24]])
def test_threads_shares_and_padding_leave_the_order_alone(threads, num_shares, pad_to):
    source = training_examples(seed=3)
    taken = take(
        5,
        source,
        global_batch_size=12,
        start=7,
        num_shares=num_shares,
        pad_to=pad_to,
        threads=threads,
        prefetch=1 + threads,
    )
    assert [len(shares) for shares in taken] == [num_shares] * 5
    assert rows(taken) == expected_rows(source, range(7, 7 + 60))


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_workers_have_contiguous_slices_of_every_global_batch(num_workers):
    source = training_examples()
    size = 12 // num_workers
    by_worker = [
        take(4, source, global_batch_size=12, worker=worker, num_workers=num_workers, num_shares=2)
        for worker in range(num_workers)
    ]
    for worker, taken in enumerate(by_worker):
        for batch, shares in enumerate(taken):
            first = batch * 12 + worker * size
            assert rows([shares]) == expected_rows(source, range(first, first + size))
    joined = [row for parts in zip(*by_worker, strict=True) for row in rows(parts)]
    assert joined == expected_rows(source, range(48))


@pytest.mark.parametrize("start", [0, 1, 8, 2**20 - 3, 10**12])
def test_a_run_that_starts_anywhere_reads_on_as_if_it_had_never_stopped(start):
    whole = rows(take(4, training_examples(), global_batch_size=8, start=start))
    again = rows(take(3, training_examples(), global_batch_size=8, start=start + 8))
    other_size = rows(take(12, training_examples(), global_batch_size=2, start=start + 8))
    assert whole[8:] == again == other_size


def test_features_have_the_promised_shapes_and_types():
    [[share]] = take(1, training_examples(), global_batch_size=4)
    most = training_examples().windows.max_predictions
    assert most == 5  # 15 % of 30 pieces is 4.5
    assert {name: (array.dtype.name, array.shape) for name, array in share.items()} == {
        "token_ids": ("int32", (4, LENGTH)),
        "padding_mask": ("int32", (4, LENGTH)),
        "mask_positions": ("int32", (4, most)),
        "mask_ids": ("int32", (4, most)),
        "mask_weights": ("float32", (4, most)),
        "language": ("int32", (4,)),
    }


def test_each_share_is_padded_to_its_own_longest_window():
    sizes = [8, 16, 24, 32]
    lengths = set()
    for shares in take(20, training_examples(), global_batch_size=8, num_shares=4, pad_to=sizes):
        for share in shares:
            longest = share["padding_mask"].sum(axis=1).max()
            length = share["token_ids"].shape[1]
            lengths.add(length)
            assert length == min(size for size in sizes if size >= longest)
            targets = share["mask_weights"].sum(axis=1).max()
            assert share["mask_ids"].shape[1] == max(1, targets)
            padding = share["padding_mask"] == 0
            assert (share["token_ids"][padding] == PAD).all()
            assert (share["token_ids"][~padding] != PAD).all()
    assert len(lengths) > 1


def test_a_share_without_targets_keeps_one_empty_prediction_slot():
    source = training_examples(MemoryExamples({"train": {"de": [np.array([UNK, UNK], np.int32)]}}))
    [[share]] = take(1, source, global_batch_size=2, pad_to=[8])
    assert share["token_ids"].shape == (2, 8)
    assert share["mask_weights"].tolist() == [[0], [0]]


def test_thousand_windows_of_any_length_have_no_target_at_padding_or_controls():
    of_any_length = windows(1000, 62, "any length")
    for window in of_any_length[::3]:
        window[0] = UNK
    examples = MemoryExamples({"train": {"de": of_any_length}})
    source = TrainingExamples(examples, sequence_length=64)
    for shares in take(125, source, global_batch_size=8):
        for share in shares:
            weights = share["mask_weights"].astype(bool)
            assert share["token_ids"].shape == (8, 64)
            assert not np.isin(share["mask_ids"][weights], [PAD, UNK, CLS, SEP, MASK]).any()
            at_targets = np.take_along_axis(share["padding_mask"], share["mask_positions"], axis=1)
            assert (at_targets[weights] == 1).all()
            assert (share["mask_positions"][weights] > 0).all()
            assert (share["mask_ids"][~weights] == 0).all()
            has_ordinary = (share["token_ids"] >= MASK).any(axis=1)
            assert (weights.any(axis=1) == has_ordinary).all()


def test_an_epoch_of_a_language_reads_each_of_its_windows_once_and_masks_them_anew():
    source = training_examples(MemoryExamples({"train": {"de": windows(20, 30, "epoch")}}))
    epochs = [expected_rows(source, range(20 * epoch, 20 * epoch + 20)) for epoch in (0, 1)]
    texts = [[unmasked(row) for row in epoch] for epoch in epochs]
    assert len(set(texts[0])) == 20
    assert sorted(texts[0]) == sorted(texts[1])
    assert texts[0] != texts[1]
    # Where there is little to choose from, two epochs may choose the same.
    first, second = ({row for row in epoch if len(row[2]) > 2} for epoch in epochs)
    assert first
    assert not first & second


def test_the_mixture_follows_the_sentences():
    few = {"train": {language: windows(5, 30, language) for language in ("de", "el", "eu")}}
    source = training_examples(MemoryExamples(few, {"de": 100, "el": 900, "eu": 400}))
    assert source.languages == ["de", "el", "eu"]
    assert source.language_probabilities == pytest.approx({"de": 1 / 6, "el": 1 / 2, "eu": 1 / 3})
    taken = take(100, source, global_batch_size=60)
    languages = np.concatenate([share["language"] for [share] in taken])
    np.testing.assert_allclose(np.bincount(languages) / 6000, [1 / 6, 1 / 2, 1 / 3], atol=1e-3)


def test_an_example_can_be_traced_to_its_window():
    examples = three_languages()
    source = training_examples(examples, seed=11)
    for position in (0, 5, 2**40):
        found = re.fullmatch(
            rf"example {position}: window (\d+) of '(..)', epoch (\d+)", source.describe(position)
        )
        index, language, epoch = int(found[1]), found[2], int(found[3])
        [row] = expected_rows(source, [position])
        assert source.languages[row[0]] == language
        assert unmasked(row) == tuple(examples.read("train", language, index).tolist())
        assert (epoch == 0) == (position < 100)


def test_examples_stay_the_same_from_release_to_release():
    source = training_examples(seed=5)
    assert [source.describe(position) for position in (0, 1, 2, 100_000)] == [
        "example 0: window 89 of 'de', epoch 0",
        "example 1: window 225 of 'de', epoch 0",
        "example 2: window 8 of 'el', epoch 0",
        "example 100000: window 206 of 'de', epoch 164",
    ]


@pytest.fixture(scope="module")
def example_files(tmp_path_factory) -> ExampleFiles:
    """Two languages of invented words, through the real preparation."""
    folder = tmp_path_factory.mktemp("pipeline")
    files = {}
    for language, letters in {"xa": "abcde", "xb": "fghij"}.items():
        bits = RandomBits("text", language)
        words = ["".join(letters[i] for i in bits.integers(5, 4)) for _ in range(300)]
        lines = [" ".join(words[i] for i in bits.integers(300, 9)) for _ in range(400)]
        path = folder / f"{language}.txt"
        path.write_text("\n".join(lines), encoding="utf-8")
        files[language] = [str(path)]
    train_vocabulary(files, 120, folder / "vocabulary")
    prepare(files, None, folder / "vocabulary", LENGTH, folder / "examples", workers=1)
    return ExampleFiles.open(folder / "examples")


def test_example_files_give_the_same_batches_to_one_thread_and_to_many(example_files):
    source = training_examples(example_files)
    one, many = (
        rows(take(40, source, global_batch_size=16, threads=threads, prefetch=8))
        for threads in (0, 8)
    )
    assert one == many == expected_rows(source, range(640))
    prepared = {
        (number, tuple(example_files.read("train", language, index).tolist()))
        for number, language in enumerate(source.languages)
        for index in range(example_files.num_windows("train", language))
    }
    assert {(row[0], unmasked(row)) for row in one} <= prepared


def test_a_language_without_examples_is_one_clear_error():
    examples = MemoryExamples({"train": {"de": windows(3, 30), "eu": []}}, {"de": 3, "eu": 2})
    with pytest.raises(KzooError, match="'eu'"):
        training_examples(examples)


def test_a_window_longer_than_the_sequence_is_one_clear_error():
    examples = MemoryExamples({"train": {"de": [np.full(31, 100, np.int32)]}})
    iterator = batches(training_examples(examples), global_batch_size=2)
    with pytest.raises(KzooError, match=r"window 0 of 'de' \(train\) has 31 pieces"):
        next(iterator)


@pytest.mark.parametrize(("size", "num_workers", "num_shares"), [(0, 1, 1), (10, 2, 4), (7, 7, 2)])
def test_a_batch_that_cannot_be_shared_out_is_one_clear_error(size, num_workers, num_shares):
    with pytest.raises(KzooError, match=f"global_batch_size {size} "):
        batches(
            training_examples(),
            global_batch_size=size,
            num_workers=num_workers,
            num_shares=num_shares,
        )


class SlowExamples(MemoryExamples):
    """After the first batch, reading waits until the test lets it go on."""

    def __init__(self, first: int):
        super().__init__({"train": {"de": windows(500, 30, "slow")}})
        self.first, self.num_reads, self.go_on = first, 0, threading.Event()

    def read(self, split, language, index):
        self.num_reads += 1
        if self.num_reads > self.first:
            self.go_on.wait()
        return super().read(split, language, index)


def test_closing_stops_the_threads_and_what_they_had_before_them():
    before = set(threading.enumerate())
    examples = SlowExamples(first=8)
    iterator = batches(training_examples(examples), global_batch_size=8, threads=1, prefetch=50)
    next(iterator)
    assert set(threading.enumerate()) - before
    iterator.close()
    examples.go_on.set()
    deadline = time.monotonic() + 60
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before
    assert examples.num_reads <= 8 + 8


@pytest.mark.parametrize("global_batch_size", [1, 4, 8, 30, 32, 64])
def test_every_held_out_window_counts_once(global_batch_size):
    examples = three_languages()
    source = HeldOutExamples(examples, sequence_length=LENGTH)
    assert len(source) == 32
    taken = list(
        batches(
            source,
            global_batch_size=global_batch_size,
            num_shares=1 if global_batch_size == 1 else 2,
        )
    )
    assert len(taken) == -(-32 // global_batch_size)
    sizes = {len(share["language"]) for share in itertools.chain.from_iterable(taken)}
    assert len(sizes) == 1
    found = rows(taken)
    assert found[:32] == expected_rows(source, range(32))
    for _, token_ids, positions, _ in found[32:]:
        assert token_ids == (CLS, SEP)
        assert not positions
    languages = [row[0] for row in found[:32]]
    assert languages == [0] * 23 + [1] * 8 + [2]


def test_held_out_masks_are_the_same_at_every_evaluation_and_for_any_selection():
    examples = three_languages()
    everything = HeldOutExamples(examples, sequence_length=LENGTH, seed=1)
    first, again = (rows(batches(everything, global_batch_size=8)) for _ in range(2))
    assert first == again
    some = HeldOutExamples(
        examples, sequence_length=LENGTH, seed=1, languages=["eu", "de"], limit=5
    )
    assert len(some) == 6
    chosen = [row[1:] for row in expected_rows(some, range(6))]
    of_german = [row[1:] for row in first if row[0] == 0]
    # 5 of 23 windows, from the head to the tail of the file.
    assert chosen[1:] == [of_german[index] for index in (0, 4, 9, 13, 18)]
    other_seed = HeldOutExamples(examples, sequence_length=LENGTH, seed=2)
    assert expected_rows(other_seed, range(32)) != first


def test_workers_share_the_held_out_windows():
    source = HeldOutExamples(three_languages(), sequence_length=LENGTH)
    parts = [
        list(batches(source, global_batch_size=10, worker=worker, num_workers=2))
        for worker in range(2)
    ]
    joined = [row for both in zip(*parts, strict=True) for row in rows(both)]
    assert joined[:32] == expected_rows(source, range(32))
    assert len(joined) == 40


def test_a_language_without_held_out_text_is_one_clear_error():
    with pytest.raises(KzooError, match="'sw'; there is some for de, el, eu"):
        HeldOutExamples(three_languages(), sequence_length=LENGTH, languages=["de", "sw"])


def test_padding_share_counts_the_positions_without_a_piece():
    def batch(mask):
        return {"padding_mask": np.array(mask, np.int32)}

    assert padding_share([batch([[1, 1, 1, 1]]), batch([[1, 0], [1, 1]])]) == 1 / 8


@pytest.mark.parametrize("sequence_length", [1, 3, 8, 32, 100, 128, 512])
def test_padding_sizes_are_few_and_end_at_the_sequence_length(sequence_length):
    sizes = padding_sizes(sequence_length)
    assert sizes[-1] == sequence_length
    assert sizes == sorted(set(sizes))
    assert len(sizes) <= 8
