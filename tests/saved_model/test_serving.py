"""What a server runs: text or ids in, vectors out."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from kzoo.errors import KzooError
from kzoo.saved_model import signature_names
from kzoo.saved_model.precision import with_precision
from kzoo.saved_model.serving import ServingModule
from kzoo.saved_model.text_graph import TextGraph
from tests.saved_model.exports import (
    SEQUENCE_LENGTH,
    TEXTS,
    UNUSUAL_TEXTS,
    packed,
    random_model,
)


@pytest.fixture(scope="module")
def loaded(served):
    return tf.saved_model.load(str(served.serving))


def run(loaded, signature: str, **inputs) -> dict[str, np.ndarray]:
    tensors = {name: tf.constant(value) for name, value in inputs.items()}
    outputs = loaded.signatures[signature](**tensors)
    return {name: value.numpy() for name, value in outputs.items()}


def ids(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A backbone's inputs under the names of a signature."""
    return {
        "input_word_ids": inputs["token_ids"],
        "input_mask": inputs["padding_mask"],
        "input_type_ids": inputs["segment_ids"],
    }


def test_signatures_have_the_documented_names(loaded):
    found = {
        name: (
            set(signature.structured_input_signature[1]),
            set(signature.structured_outputs),
        )
        for name, signature in loaded.signatures.items()
    }
    assert found == {
        name: (set(inputs), set(outputs))
        for name, (inputs, outputs) in signature_names.SERVING.items()
    }
    assert not any(name.endswith("_bytes") for _, outputs in found.values() for name in outputs)


def test_text_gives_what_the_model_gives_for_its_pieces(loaded, served):
    texts = TEXTS + UNUSUAL_TEXTS
    inputs = packed(served.vocabulary, texts)
    expected = served.model.backbone(inputs)
    pooled = run(loaded, "serving_default", text=texts)["pooled_output"]
    np.testing.assert_allclose(pooled, expected["pooled_output"], atol=1e-5)

    outputs = run(loaded, "sequence_output", text=texts)
    np.testing.assert_array_equal(outputs["input_mask"], inputs["padding_mask"])
    np.testing.assert_allclose(outputs["sequence_output"], expected["sequence_output"], atol=1e-5)
    assert {value.dtype.name for value in outputs.values()} == {"float32", "int32"}


def test_a_long_text_is_cut_and_a_batch_is_as_long_as_its_longest_row(loaded):
    long = run(loaded, "sequence_output", text=["the train " * 40])
    assert long["input_mask"].tolist() == [[1] * SEQUENCE_LENGTH]
    short = run(loaded, "sequence_output", text=["", ""])
    assert short["sequence_output"].shape == (2, 2, 48)


def test_texts_of_one_batch_do_not_see_each_other(loaded):
    together = run(loaded, "serving_default", text=TEXTS)["pooled_output"]
    for text, vector in zip(TEXTS, together, strict=True):
        alone = run(loaded, "serving_default", text=[text])["pooled_output"]
        np.testing.assert_allclose(alone[0], vector, atol=1e-5)


def test_ids_give_what_the_model_gives(loaded, served):
    inputs = packed(served.vocabulary, TEXTS)
    # Segments that are not those of a single text.
    inputs["segment_ids"][:, 3:] = 1
    expected = served.model.backbone(inputs)
    outputs = run(loaded, "from_ids", **ids(inputs))
    for name in ("pooled_output", "sequence_output"):
        np.testing.assert_allclose(outputs[name], expected[name], atol=1e-5)


def test_ids_beyond_the_last_position_are_refused(loaded):
    too_long = np.ones((1, 41), np.int32)
    inputs = dict.fromkeys(("input_word_ids", "input_mask", "input_type_ids"), too_long)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"40.*41|41.*40"):
        run(loaded, "from_ids", **inputs)


def test_a_batch_may_be_empty(loaded):
    no_text = tf.constant([], tf.string)
    assert run(loaded, "serving_default", text=no_text)["pooled_output"].shape == (0, 48)
    outputs = run(loaded, "sequence_output", text=no_text)
    assert len(outputs["sequence_output"]) == len(outputs["input_mask"]) == 0
    no_ids = np.zeros((0, 7), np.int32)
    outputs = run(
        loaded, "from_ids", input_word_ids=no_ids, input_mask=no_ids, input_type_ids=no_ids
    )
    assert outputs["sequence_output"].shape == (0, 7, 48)


def test_bytes_that_are_not_utf_8_are_read_as_replaced(loaded):
    broken = [b"caf\xe9 ok", b"\xff\xfe\x00", b"\xed\xa0\x80"]
    replaced = [text.decode(errors="replace") for text in broken]
    np.testing.assert_array_equal(
        run(loaded, "serving_default", text=broken)["pooled_output"],
        run(loaded, "serving_default", text=replaced)["pooled_output"],
    )


def test_the_export_holds_the_encoder_s_variables_and_no_other(served):
    stored = dict(tf.train.list_variables(str(served.serving / "variables" / "variables")))
    stored.pop("_CHECKPOINTABLE_OBJECT_GRAPH")
    stored = {
        name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").replace(".S", "/"): shape
        for name, shape in stored.items()
    }
    assert stored == {
        f"named_variables/{variable.path}": list(variable.shape)
        for variable in served.model.backbone.variables
    }


@pytest.mark.parametrize(("precision", "smaller"), [("bfloat16", 1.9), ("int8", 2.5)])
def test_narrow_weights_are_stored_narrow_and_outputs_are_float32(
    precision, smaller, served, tmp_path
):
    backbone = with_precision(served.model.backbone, precision)
    text_graph = TextGraph(served.vocabulary.model)
    ServingModule(backbone, text_graph, SEQUENCE_LENGTH).save(tmp_path / "1")
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    outputs = run(loaded, "sequence_output", text=TEXTS)
    assert outputs["sequence_output"].dtype == np.float32
    pooled = run(loaded, "serving_default", text=TEXTS)["pooled_output"]
    assert pooled.dtype == np.float32
    expected = served.model.backbone(packed(served.vocabulary, TEXTS))["pooled_output"].numpy()
    norms = np.linalg.norm(pooled, axis=1) * np.linalg.norm(expected, axis=1)
    assert ((pooled * expected).sum(axis=1) / norms > 0.99).all()
    assert variable_bytes(served.serving) > smaller * variable_bytes(tmp_path / "1")


def variable_bytes(folder: Path) -> int:
    return (folder / "variables" / "variables.data-00000-of-00001").stat().st_size


@pytest.mark.parametrize("pooler", [None, "mean"])
def test_without_a_trained_pooler_the_pooled_output_is_the_mean(pooler, served, tmp_path):
    model = random_model(served.vocabulary, pooler=pooler)
    text_graph = TextGraph(served.vocabulary.model)
    ServingModule(model.backbone, text_graph, SEQUENCE_LENGTH).save(tmp_path / "1")
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    outputs = run(loaded, "sequence_output", text=TEXTS)
    mask = outputs["input_mask"][..., np.newaxis]
    mean = (outputs["sequence_output"] * mask).sum(axis=1) / mask.sum(axis=1)
    pooled = run(loaded, "serving_default", text=TEXTS)["pooled_output"]
    np.testing.assert_allclose(pooled, mean, atol=1e-5)


def test_more_tokens_than_positions_are_refused(served):
    text_graph = TextGraph(served.vocabulary.model)
    with pytest.raises(KzooError, match=r"40 positions.*sequence_length=41"):
        ServingModule(served.model.backbone, text_graph, 41)


def test_a_vocabulary_larger_than_the_table_is_refused(served):
    model = random_model(served.vocabulary)
    text_graph = TextGraph(served.vocabulary.model)
    text_graph.vocabulary_size += 1
    with pytest.raises(KzooError, match=r"601 pieces.*600 rows"):
        ServingModule(model.backbone, text_graph, SEQUENCE_LENGTH)


def test_a_folder_that_is_there_is_never_written_to(served):
    text_graph = TextGraph(served.vocabulary.model)
    module = ServingModule(served.model.backbone, text_graph, SEQUENCE_LENGTH)
    before = (served.serving / "saved_model.pb").read_bytes()
    with pytest.raises(KzooError, match="is there already"):
        module.save(served.serving)
    assert (served.serving / "saved_model.pb").read_bytes() == before


def test_saved_model_cli_reads_it(served):
    program = Path(sys.executable).with_name("saved_model_cli")
    done = subprocess.run(
        [program, "show", "--all", "--dir", str(served.serving)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = " ".join(done.stdout.split())
    for signature in signature_names.SERVING:
        assert f"signature_def['{signature}']:" in printed
    assert (
        "inputs['text'] tensor_info: dtype: DT_STRING shape: (-1) name: serving_default_text:0"
    ) in printed
    assert "outputs['pooled_output'] tensor_info: dtype: DT_FLOAT shape: (-1, 48)" in printed
    assert "outputs['sequence_output'] tensor_info: dtype: DT_FLOAT shape: (-1, -1, 48)" in printed
