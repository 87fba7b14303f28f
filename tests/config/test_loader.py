"""How files and --set are merged, and what is said about keys and values that are wrong."""

import pytest

from kzoo import KzooError, config
from kzoo.models.presets import PRESETS

MODEL = """\
model:
  vocabulary_size: 1000
  num_layers: 2
  num_heads: 4
  hidden_dim: 64
  intermediate_dim: 256
  embedding_dim: 16
  output_embedding_dim: 96
"""
DATA = """\
data:
  examples: data/x
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a file into an empty working directory and returns its name, as a user types it."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="a.yaml"):
        (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)
        return name

    return write


def error_of(files, overrides=()):
    with pytest.raises(KzooError) as caught:
        config.load(files, overrides)
    return str(caught.value)


def test_defaults_are_filled_in(write):
    loaded = config.load([write(MODEL + DATA)])
    assert loaded.model.max_sequence_length == 512
    assert loaded.optimizer.beta_2 == 0.999
    assert loaded.trainer.keep_best is True
    assert loaded.corpus.train_files is None


def test_trained_vocabulary_is_as_large_as_the_table_unless_said(write):
    file = write(MODEL + DATA)
    assert config.load([file]).corpus.vocabulary_size == 1000
    assert config.load([file], ["corpus.vocabulary_size=900"]).corpus.vocabulary_size == 900


def test_later_files_win_key_by_key(write):
    first = write(MODEL + DATA + "  seed: 3\n  sequence_length: 64\n")
    second = write("data: {seed: 4}\noptimizer:\ntrainer: {train_steps: 20000}\n", "b.yaml")
    loaded = config.load([first, second])
    assert (loaded.data.seed, loaded.data.sequence_length) == (4, 64)
    assert loaded.trainer.train_steps == 20000
    assert config.load([second, first]).data.seed == 3


def test_a_mapping_of_languages_is_replaced_whole(write):
    first = write(MODEL + DATA + "corpus: {train_files: {de: a, en: b}}")
    second = write("corpus: {train_files: {no: [c, d]}}", "b.yaml")
    assert config.load([first, second]).corpus.train_files == {"no": ["c", "d"]}


def test_set_wins_over_files_and_the_last_one_wins(write):
    file = write(MODEL + DATA + "  seed: 3\n")
    assert config.load([file], ["data.seed=4", "data.seed=5"]).data.seed == 5


@pytest.mark.parametrize(
    ("override", "section", "value"),
    [
        ("optimizer.learning_rate=1e-4", "optimizer", 1e-4),
        ("optimizer.clip_norm=null", "optimizer", None),
        ("optimizer.clip_norm=2", "optimizer", 2.0),
        ("data.examples=no", "data", "no"),
        ("data.examples=a=b", "data", "a=b"),
        ("corpus.train_files={no: a.txt, de: [b, c]}", "corpus", {"no": "a.txt", "de": ["b", "c"]}),
        ("corpus.train_files=corpus/{lang}.txt", "corpus", "corpus/{lang}.txt"),
        ("runtime.deterministic=false", "runtime", False),
        ("model.output_embedding_dim=tied", "model", "tied"),
        ("model.project_embeddings=true", "model", True),
    ],
)
def test_set_values_are_read_as_in_a_file(write, override, section, value):
    key = override.partition("=")[0].partition(".")[2]
    loaded = getattr(getattr(config.load([write(MODEL + DATA)], [override]), section), key)
    assert (loaded, type(loaded)) == (value, type(value))


def test_a_preset_gives_what_no_source_gives(write):
    preset = PRESETS["mini"]
    file = write("model: {dropout: 0.1}\ndata: {examples: x, sequence_length: 128}")
    model = config.load([file], ["model.preset=mini", "model.embedding_dim=48"]).model
    assert model.preset == "mini"
    assert model.num_layers == preset.backbone["num_layers"]
    assert model.output_embedding_dim == preset.output_embedding_dim
    assert (model.dropout, model.embedding_dim) == (0.1, 48)


def test_a_preset_laid_over_a_complete_model_is_refused(write):
    dumped = write(config.dump(config.load([write(MODEL + DATA)])), "run.yaml")
    assert error_of([dumped], ["model.preset=mini"]).startswith(
        "--set model.preset=mini: model.preset: has no effect, "
    )


def test_a_complete_model_may_name_its_own_preset(write):
    mini = config.load([], ["model.preset=mini", "data.examples=x", "data.sequence_length=64"])
    run = write(config.dump(mini), "mini.yaml")
    assert config.load([run], ["model.preset=mini"]) == mini
    assert config.load([write(MODEL + DATA), run]) == mini


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle: {}\n", "a.yaml:11: modle: unknown section; the nearest known is model"),
        (
            "optimizer:\n  warmup_step: 3\n",
            "a.yaml:12: optimizer.warmup_step: unknown key; the nearest known is "
            "optimizer.warmup_steps",
        ),
        (
            "trainer:\n  learning_rate: 3\n",
            "a.yaml:12: trainer.learning_rate: unknown key; the nearest known is "
            "optimizer.learning_rate",
        ),
        (
            "optimizer.learning_rate: 3\n",
            "a.yaml:11: optimizer.learning_rate: unknown section; the nearest known is "
            "optimizer.learning_rate",
        ),
        (
            "runtime: {nodes.x: 1}\n",
            "a.yaml:11: runtime.nodes.x: unknown key; known are strategy, ",
        ),
        ("trainer: 5\n", "a.yaml:11: trainer: expected keys with values, received 5 (an integer)"),
        (
            "trainer: {1: 2}\n",
            "a.yaml:11: trainer: a key must be a string, received 1 (an integer)",
        ),
        (
            "trainer:\n\n  train_steps: 1e6\n",
            "a.yaml:13: trainer.train_steps: expected an integer of at least 1, "
            "received 1000000.0 (a number)",
        ),
        (
            "trainer: {keep_best: yes}\n",
            "a.yaml:11: trainer.keep_best: expected true or false, received 'yes' (a string)",
        ),
        (
            "trainer: {keep_checkpoints: true}\n",
            "a.yaml:11: trainer.keep_checkpoints: expected an integer of at least 1, received true",
        ),
        (
            "optimizer: {learning_rate: '1e-4'}\n",
            "a.yaml:11: optimizer.learning_rate: expected a number above 0, received '1e-4' (a ",
        ),
        (
            "optimizer: {learning_rate: .inf}\n",
            "a.yaml:11: optimizer.learning_rate: expected a number above 0, received inf (a num",
        ),
        (
            "optimizer: {beta_1: 1.0}\n",
            "a.yaml:11: optimizer.beta_1: expected a number of at least 0 and below 1, "
            "received 1.0 (a number)",
        ),
        (
            "optimizer: {schedule: lineer}\n",
            "a.yaml:11: optimizer.schedule: expected linear, cosine, warmup_stable_decay or "
            "constant, received 'lineer' (a string)",
        ),
        (
            "runtime: {devices: []}\n",
            "a.yaml:11: runtime.devices: expected an integer of at least 1, or a list of strings, "
            "or null, received [] (a list)",
        ),
        (
            "corpus: {train_files: 5}\n",
            "a.yaml:11: corpus.train_files: expected a pattern that holds {lang}, or a mapping ",
        ),
        (
            "corpus:\n  train_files:\n    de: a\n    no: 5\n",
            "a.yaml:14: corpus.train_files.no: expected a path or a list of paths, received 5 (an",
        ),
        (
            "corpus:\n  train_files: {1: a}\n",
            "a.yaml:12: corpus.train_files: a key must be a string, received 1 (an integer)",
        ),
        (
            'corpus: {vocabulary: "a\\0b"}\n',
            "a.yaml:11: corpus.vocabulary: expected a string, or null, received 'a\\x00b' (a str",
        ),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_line(write, text, message):
    assert message in error_of([write(MODEL + DATA + text)])


def test_a_wrong_set_is_named_as_it_was_typed(write):
    file = write(MODEL + DATA)
    assert error_of([file], ["data.sede=1"]) == (
        "--set data.sede=1: data.sede: unknown key; the nearest known is data.seed"
    )
    assert error_of([file], ["data.seed=-1"]) == (
        "--set data.seed=-1: data.seed: expected an integer of at least 0 and below 2147483648, "
        "received -1 (an integer)"
    )
    assert error_of([file], ["data.examples=[a"]).startswith(
        "--set data.examples=[a:1: not valid YAML: "
    )
    for override in ("data.seed", "seed=1", "=1", ".seed=1", "data.=1"):
        assert error_of([file], [override]).startswith(
            f"--set {override}: expected section.key=value"
        )


def test_a_wrong_value_is_forgiven_where_a_later_source_replaces_it(write):
    assert config.load([write(MODEL + DATA + "  seed: x\n")], ["data.seed=1"]).data.seed == 1


def test_every_problem_is_listed_with_its_own_file(write):
    first = write(MODEL.replace("num_layers: 2", "num_layers: two") + DATA)
    second = write("data:\n  seeds: 1\n", "b.yaml")
    message = error_of([first, second], ["data.mask_rate=2"])
    assert message.startswith("3 problems in the configuration:\n")
    assert "\n  a.yaml:3: model.num_layers: expected" in message
    assert "\n  b.yaml:2: data.seeds: unknown key" in message
    assert "\n  --set data.mask_rate=2: data.mask_rate: expected" in message


def test_missing_keys_are_named_where_their_section_stands(write):
    file = write("model:\n  num_layers: 2\n")
    message = error_of([file])
    assert "\n  a.yaml:1: model.hidden_dim: missing; expected an integer" in message
    assert "\n  a.yaml: data.examples: missing; expected a string" in message


def test_a_missing_key_is_not_said_to_stand_in_a_set(write):
    assert error_of([write(MODEL)], ["data.seed=1"]).startswith("a.yaml: data.examples: missing")


def test_a_model_that_is_not_there_at_all_is_one_problem(write):
    assert error_of([write(DATA)]).startswith("a.yaml: model: missing; name a model.preset")


def test_an_unknown_preset_is_one_problem(write):
    assert error_of([write("model:\n  preset: rembret\n" + DATA)]).startswith(
        "a.yaml:2: model.preset: no preset is 'rembret'; near it: rembert"
    )
    assert "python -m kzoo.zoo" in error_of([write("model: {preset: zzzz}\n" + DATA)])
    assert error_of([write("model: {preset: [mini]}\n" + DATA)]) == (
        "a.yaml:1: model.preset: expected a string, or null, received ['mini'] (a list)"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "a.yaml is empty; "),
        ("# only a comment\n", "a.yaml is empty; "),
        ("- model\n", "a.yaml: expected sections, received ['model'] (a list)"),
        ("model\n", "a.yaml: expected sections, received 'model' (a string)"),
        (b"model:\n  preset: \xff\n", "a.yaml:2: the byte 0xff is not UTF-8; "),
        ("model: {preset: mini}\n".encode("utf-16"), "a.yaml:1: the byte 0xff is not UTF-8; "),
        ("data:\n  seed: 1\n  seed: 2\n", "a.yaml:3: the key 'seed' stands twice, first on line 2"),
        ("data:\n\tseed: 1\n", "a.yaml:2: not valid YAML: a tab where only spaces may stand"),
    ],
)
def test_a_file_that_holds_no_configuration_is_one_error(write, content, message):
    assert error_of([write(content)]).startswith(message)


def test_a_file_that_cannot_be_opened_is_one_error(tmp_path):
    assert (
        error_of([f"{tmp_path}/none.yaml"]) == f"no such configuration file: {tmp_path}/none.yaml"
    )
    assert error_of([str(tmp_path)]).startswith(f"{tmp_path} is a folder")
    assert error_of([f"{tmp_path}/{'x' * 300}"]).startswith("cannot read ")


def test_a_byte_order_mark_and_windows_line_ends_are_read(write):
    text = ("\ufeff" + MODEL + DATA + "  seed: 7\n").replace("\n", "\r\n")
    assert config.load([write(text)]).data.seed == 7


def test_a_loaded_configuration_cannot_be_changed(write):
    loaded = config.load([write(MODEL + DATA)])
    with pytest.raises(ValueError, match="frozen"):
        loaded.data.seed = 1


@pytest.mark.parametrize(
    ("setting", "bound"),
    [
        ("model.vocabulary_size=10000000000", "2147483647"),
        ("corpus.vocabulary_size=10000000000", "2147483647"),
        ("runtime.threads=100000", "1024"),
    ],
)
def test_sizes_that_no_machine_has_are_refused(write, setting, bound):
    with pytest.raises(KzooError, match=f"at most {bound}"):
        config.load([write(MODEL + DATA)], [setting])
