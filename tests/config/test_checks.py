"""Keys that do not go together, and vocabularies that do not fit."""

import pytest

from kzoo import KzooError, config

FILE = """\
model:
  vocabulary_size: 1000
  num_layers: 2
  num_heads: 4
  hidden_dim: 64
  intermediate_dim: 256
  embedding_dim: 16
  output_embedding_dim: 96
  max_sequence_length: 128
data:
  examples: data/x
  sequence_length: 128
  global_batch_size: 30
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(FILE)
    return str(path)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["model.num_heads=5"], "model.num_heads: 5 heads do not divide model.hidden_dim, 64"),
        (
            ["data.sequence_length=129"],
            "data.sequence_length: 129 pieces are more than model.max_sequence_length, 128",
        ),
        (
            ["data.max_predictions=127"],
            "data.max_predictions: 127 is more than the 126 pieces between [CLS] and [SEP]",
        ),
        (
            ["trainer.train_steps=100", "optimizer.warmup_steps=101"],
            "optimizer.warmup_steps: 101 steps are more than trainer.train_steps, 100",
        ),
        (
            ["optimizer.schedule=warmup_stable_decay"],
            "optimizer.decay_steps: warmup_stable_decay needs it",
        ),
        (
            ["optimizer.decay_steps=5"],
            "optimizer.decay_steps: has no effect on the schedule linear",
        ),
        (
            [
                "trainer.train_steps=100",
                "optimizer.warmup_steps=60",
                "optimizer.schedule=warmup_stable_decay",
                "optimizer.decay_steps=41",
            ],
            "optimizer.warmup_steps: 101 steps with optimizer.decay_steps are more than "
            "trainer.train_steps, 100",
        ),
        (
            ["optimizer.learning_rate=0.5", "optimizer.weight_decay=2.0"],
            "optimizer.weight_decay: 2.0 times optimizer.learning_rate, 0.5, is 1 or more",
        ),
        (
            ["optimizer.end_learning_rate=0.1"],
            "optimizer.end_learning_rate: 0.1 is above optimizer.learning_rate, 0.0002",
        ),
        (
            ["optimizer.schedule=constant", "optimizer.end_learning_rate=1e-5"],
            "optimizer.end_learning_rate: has no effect on the schedule constant",
        ),
        (
            ["corpus.train_files=text/train.txt"],
            "corpus.train_files: 'text/train.txt' must hold {lang} exactly once",
        ),
        (
            ["corpus.train_files=text/{lang}/{lang}.txt"],
            "corpus.train_files: 'text/{lang}/{lang}.txt' must hold {lang} exactly once",
        ),
        (
            ["corpus.train_files={de: 'x-{lang}.txt'}"],
            "corpus.train_files.de: 'x-{lang}.txt' must not hold {lang}, for its key is the ",
        ),
        (
            ["corpus.train_files={../de: x.txt}"],
            "corpus.train_files.../de: '../de' is no name of a language",
        ),
        (
            ["corpus.train_files={de: a, en: b}", "corpus.held_out_files={de: c, fr: d}"],
            "corpus.held_out_files.fr: a language that corpus.train_files lacks",
        ),
        (
            ["corpus.held_out_files=dev-{lang}.txt"],
            "corpus.held_out_files: is given, but corpus.train_files is not",
        ),
        (
            ["corpus.train_files=a-{lang}.txt", "corpus.held_out_files=a-{lang}.txt"],
            "corpus.held_out_files: are the training files; held-out text must be other text",
        ),
        (
            ["corpus.vocabulary_size=1001"],
            "corpus.vocabulary_size: 1001 pieces do not fit into the 1000 rows of ",
        ),
        (
            ["runtime.devices=2"],
            "runtime.devices: 2 devices for the strategy one_device; mirrored takes more",
        ),
        (
            ["runtime.strategy=mirrored", "runtime.devices=[CPU:0, CPU:0]"],
            "runtime.devices: names a device twice: CPU:0, CPU:0",
        ),
        (
            ["runtime.strategy=mirrored", "runtime.devices=4"],
            "data.global_batch_size: 30 windows cannot be shared evenly by 4 devices",
        ),
    ],
)
def test_keys_that_do_not_go_together_are_an_error(file, overrides, problem):
    with pytest.raises(KzooError) as caught:
        config.load([file], overrides)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ["corpus.train_files=text/{lang}/a.txt", "corpus.held_out_files=text/{lang}/b.txt"],
        ["corpus.train_files={zh-Hant: x, no: [y, z]}", "corpus.held_out_files={no: w}"],
        ["corpus.vocabulary=voc", "corpus.vocabulary_size=2000"],
        ["optimizer.schedule=warmup_stable_decay", "optimizer.decay_steps=1000"],
        ["runtime.strategy=mirrored", "runtime.devices=[GPU:0, GPU:1, GPU:2]"],
        ["runtime.devices=[GPU:1]"],
        ["data.max_predictions=126"],
        ["trainer.train_steps=100", "optimizer.warmup_steps=100"],
    ],
)
def test_keys_that_go_together_load(file, overrides):
    config.load([file], overrides)


def test_the_key_at_fault_is_named_with_its_line(file):
    with pytest.raises(KzooError, match=f"^{file}:12: data.sequence_length: 128 pieces"):
        config.load([file], ["model.max_sequence_length=64"])


def test_a_default_at_fault_is_named_where_the_other_key_stands(file):
    with pytest.raises(KzooError, match=r"^--set trainer.train_steps=10: optimizer.warmup_steps: "):
        config.load([file], ["trainer.train_steps=10"])


def test_a_preset_at_fault_is_named(tmp_path):
    path = tmp_path / "b.yaml"
    path.write_text("model:\n  preset: mini\n  num_heads: 3\n")
    with pytest.raises(KzooError) as caught:
        config.load([str(path)], ["data.examples=x"])
    assert f"{path}:3: model.num_heads: 3 heads do not divide" in str(caught.value)
    assert f"{path}:2 (preset mini): data.sequence_length: 512 pieces" in str(caught.value)


def test_a_vocabulary_that_fits_is_accepted(file):
    config.check_vocabulary(config.load([file]), 1000, "voc")


def test_a_vocabulary_with_more_pieces_than_rows_is_refused(file):
    with pytest.raises(KzooError, match=r"^model.vocabulary_size: 1000 rows .* 1001 pieces .*voc;"):
        config.check_vocabulary(config.load([file]), 1001, "voc")
