"""A configuration that is written down is read back as the same one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kzoo import config

_COUNT = st.integers(1, 2**40)
_FRACTION = st.floats(0, 1, exclude_max=True)
_INSIDE = st.floats(0, 1, exclude_min=True, exclude_max=True)
_POSITIVE = st.floats(0, exclude_min=True, allow_infinity=False)
_TEXT = st.sampled_from(["no", "1e-4", "null", "12:30", "1_000", "0o17", "a b", "~", "x: y", "#"])
_PATH = (
    _TEXT | st.text(st.characters(min_codepoint=32, exclude_categories=["Cs"]), min_size=1)
).map(lambda path: path.replace("{lang}", ""))
_PATH = _PATH.filter(bool)
_LANGUAGE = st.sampled_from(["no", "en", "zh-Hant", "12", "null", "true", "1e4"])
_FILES = (
    st.none()
    | _PATH.map("{}/{{lang}}".format)
    | st.dictionaries(_LANGUAGE, _PATH | st.lists(_PATH, min_size=1), min_size=1)
)


@st.composite
def _sections(draw):
    """Sections with every key, which go together."""

    def section(**keys):
        return {key: draw(strategy) for key, strategy in keys.items()}

    model = section(
        vocabulary_size=st.integers(8, 2**31 - 1),
        num_layers=_COUNT,
        num_heads=_COUNT,
        intermediate_dim=_COUNT,
        embedding_dim=_COUNT,
        output_embedding_dim=_COUNT | st.just("tied"),
        max_sequence_length=st.integers(3, 10**6),
        num_segments=_COUNT,
        dropout=_FRACTION,
        attention_dropout=_FRACTION,
        activation=st.sampled_from(["gelu", "gelu_approximate"]),
        layer_norm_epsilon=_POSITIVE,
        pooler=st.sampled_from(["dense", "first_token", "mean", None]),
        project_embeddings=st.sampled_from(["auto", True]),
    )
    model["hidden_dim"] = model["num_heads"] * draw(st.integers(1, 100))
    init_from = section(
        path=_PATH,
        checkpoint=st.sampled_from(["newest", "best"]),
        optimizer=st.sampled_from(["fresh", "kept"]),
        allow_missing=st.sampled_from([[], ["masked_lm_head"]]),
        position_table=st.sampled_from([None, "interpolate", "repeat"]),
    )
    corpus = section(
        train_files=_FILES,
        text_field=_PATH,
        on_bad_text=st.sampled_from(["error", "replace", "skip"]),
        vocabulary=st.none() | _PATH,
        vocabulary_size=st.none() | st.integers(8, model["vocabulary_size"]),
        vocabulary_sampling_exponent=st.floats(0, 1),
        vocabulary_sentences=_COUNT,
    )
    data = section(
        examples=_PATH,
        sequence_length=st.integers(3, model["max_sequence_length"]),
        global_batch_size=_COUNT,
        sampling_exponent=st.floats(0, 1),
        mask_rate=_INSIDE,
        whole_word_masking=st.booleans(),
        seed=st.integers(0, 2**31 - 1),
    )
    data["max_predictions"] = draw(st.none() | st.integers(1, data["sequence_length"] - 2))
    optimizer = section(
        schedule=st.sampled_from(["linear", "cosine", "constant"]),
        warmup_steps=st.integers(0, 10**9),
        learning_rate=_POSITIVE,
        beta_1=_FRACTION,
        beta_2=_FRACTION,
        epsilon=_POSITIVE,
        clip_norm=st.none() | _POSITIVE,
        layer_decay=st.floats(0, 1, exclude_min=True),
        frozen=st.lists(st.sampled_from(["embeddings", "layer_0", "layers_0_to_0", "input_table"])),
    )
    largest_decay = min(1e300, 0.5 / optimizer["learning_rate"])
    optimizer["weight_decay"] = draw(st.floats(0, largest_decay))
    trainer = section(
        train_steps=st.integers(max(1, optimizer["warmup_steps"]), 2**40),
        steps_per_loop=_COUNT,
        log_interval=_COUNT,
        checkpoint_interval=_COUNT,
        keep_checkpoints=_COUNT,
        keep_best=st.booleans(),
        validation_interval=st.none() | _COUNT,
        validation_steps=st.none() | _COUNT,
    )
    runtime = section(
        precision=st.sampled_from(["float32", "mixed_bfloat16", "mixed_float16"]),
        jit_compile=st.booleans(),
        recompute=st.booleans(),
        deterministic=st.booleans(),
        threads=st.none() | st.integers(1, 1024),
        devices=st.sampled_from([None, 1, ["GPU:0"]]),
    )
    return {
        "model": model,
        "init_from": init_from,
        "corpus": corpus,
        "data": data,
        "optimizer": optimizer,
        "trainer": trainer,
        "runtime": runtime,
    }


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("dump") / "config.yaml"


@settings(deadline=None)
@given(_sections())
def test_what_is_dumped_is_loaded_as_an_equal_configuration(file, sections):
    file.write_text(config.dump(config.Config.model_validate(sections)), "utf-8", newline="")
    loaded = config.load([str(file)])
    file.write_text(config.dump(loaded), "utf-8", newline="")
    assert config.load([str(file)]) == loaded
    size = sections["corpus"]["vocabulary_size"] or sections["model"]["vocabulary_size"]
    sections["corpus"]["vocabulary_size"] = size
    assert {
        name: {key: getattr(getattr(loaded, name), key) for key in section}
        for name, section in sections.items()
    } == sections


def test_a_dump_holds_every_key():
    loaded = config.load([], ["model.preset=mini", "data.examples=x", "data.sequence_length=9"])
    dumped = config.dump(loaded)
    for section, schema in config.Config.model_fields.items():
        assert f"{section}:\n" in dumped
        for key in schema.annotation.model_fields:
            assert f"\n  {key}: " in dumped
