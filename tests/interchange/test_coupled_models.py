"""BERT and XLM-R become models with two tables that compute the same."""

import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from kzoo import KzooError, RemBertTokenizer, sample
from kzoo.interchange.coupled_import import open_coupled
from kzoo.interchange.source_model import build
from kzoo.models.backbone import RemBertBackbone
from kzoo.models.masked_lm import RemBertMaskedLM
from tests.interchange.sentencepiece_models import xlm_roberta_model

_SHAPE = {
    "vocab_size": 60,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 20,
}
CONFIGS = {
    "bert": {**_SHAPE, "model_type": "bert", "type_vocab_size": 2},
    "xlm_roberta": {
        **_SHAPE,
        "model_type": "xlm-roberta",
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 1,
    },
}
FAMILIES = list(CONFIGS)
BIAS = {"bert": "cls.predictions.bias", "xlm_roberta": "lm_head.bias"}
DECODER = {"bert": "cls.predictions.decoder.weight", "xlm_roberta": "lm_head.decoder.weight"}
PREFIX = {"bert": "bert.", "xlm_roberta": "roberta."}


def tensors(family: str, pooler: bool = False) -> dict[str, np.ndarray]:
    """The state dict of a small model, as files have it: what is tied is there once."""
    config, prefix = CONFIGS[family], PREFIX[family]
    width, inner, rows = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head = {"bert": "cls.predictions.transform.", "xlm_roberta": "lm_head."}[family]
    head_norm = {"bert": "LayerNorm", "xlm_roberta": "layer_norm"}[family]
    dense = {head + "dense": (width, width)}
    norms = [prefix + "embeddings.LayerNorm", head + head_norm]
    for layer in range(config["num_hidden_layers"]):
        stem = f"{prefix}encoder.layer.{layer}."
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            dense[f"{stem}attention.{name}"] = (width, width)
        dense |= {
            stem + "intermediate.dense": (inner, width),
            stem + "output.dense": (width, inner),
        }
        norms += [stem + "attention.output.LayerNorm", stem + "output.LayerNorm"]
    if pooler:
        dense[prefix + "pooler.dense"] = (width, width)
    shapes = {
        prefix + "embeddings.word_embeddings.weight": (rows, width),
        prefix + "embeddings.position_embeddings.weight": (20, width),
        prefix + "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], width),
        BIAS[family]: (rows,),
    }
    for name, shape in dense.items():
        shapes |= {name + ".weight": shape, name + ".bias": shape[:1]}
    for name in norms:
        shapes |= {name + ".weight": (width,), name + ".bias": (width,)}
    random = np.random.default_rng(0)
    return {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture
def folder(tmp_path):
    """Writes a folder such as Hugging Face's, and opens it."""

    def write(family: str, arrays: dict[str, np.ndarray], **config):
        content = {**CONFIGS[family], **config}
        (tmp_path / "config.json").write_text(json.dumps(content), encoding="utf-8")
        save_file(arrays, tmp_path / "model.safetensors")
        return open_coupled(str(tmp_path), family)

    return write


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pooler", [False, True])
def test_every_tensor_is_used(family, pooler, folder):
    arrays = tensors(family, pooler)
    built = build(folder(family, arrays))
    assert not built.accounts.ignored
    assert not built.made_anew
    model = built.model
    assert model.backbone.pooler == ("dense" if pooler else "mean")
    assert model.backbone.embeddings.projection is None
    table = arrays[PREFIX[family] + "embeddings.word_embeddings.weight"]
    np.testing.assert_array_equal(model.head.table.numpy(), table)
    # A copy, which training moves alone.
    assert model.head.tied_embedding is None
    assert "the output table is a copy" in "\n".join(built.notes)


def test_positions_begin_where_xlm_r_has_its_first(folder):
    arrays = tensors("xlm_roberta")
    built = build(folder("xlm_roberta", arrays))
    backbone = built.backbone
    assert backbone.max_sequence_length == 18
    positions = arrays["roberta.embeddings.position_embeddings.weight"]
    np.testing.assert_array_equal(
        backbone.embeddings.position_embedding.embeddings.numpy(), positions[2:]
    )
    segments = backbone.embeddings.segment_embedding.embeddings.numpy()
    assert segments.shape == (2, 24)
    np.testing.assert_array_equal(segments[0], segments[1])
    notes = "\n".join(built.notes)
    assert "first 2 rows of its position table are left out, and 18 positions stay" in notes
    assert "its one segment is there twice" in notes


def test_old_files_are_read(folder):
    """Names of LayerNorm as in TensorFlow, and what is tied stored again."""
    arrays = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta"): array
        for name, array in tensors("bert").items()
    }
    arrays["cls.predictions.decoder.weight"] = arrays["bert.embeddings.word_embeddings.weight"]
    arrays["cls.predictions.decoder.bias"] = arrays["cls.predictions.bias"]
    arrays["cls.seq_relationship.weight"] = np.zeros((2, 24), np.float32)
    arrays["bert.embeddings.position_ids"] = np.arange(20)[None]
    built = build(folder("bert", arrays))
    assert built.accounts.ignored.keys() == {
        "cls.seq_relationship.weight",
        "bert.embeddings.position_ids",
    }
    gamma = arrays["bert.embeddings.LayerNorm.gamma"]
    np.testing.assert_array_equal(built.backbone.embeddings.layer_norm.gamma.numpy(), gamma)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_output_table_of_its_own_is_kept_where_the_configuration_says_so(family, folder):
    arrays = tensors(family)
    own = np.ones((60, 24), np.float32)
    arrays[DECODER[family]] = own
    built = build(folder(family, arrays, tie_word_embeddings=False))
    np.testing.assert_array_equal(built.model.head.table.numpy(), own)
    with pytest.raises(KzooError, match=rf"{DECODER[family]} differs from .*word_embeddings"):
        build(folder(family, arrays))


def test_an_encoder_alone_gets_no_output_table(folder):
    arrays = {
        name.removeprefix("bert."): array
        for name, array in tensors("bert").items()
        if not name.startswith("cls.")
    }
    source = folder("bert", arrays)
    assert isinstance(build(source).model, RemBertBackbone)
    built = build(source, ["masked_lm_head"])
    assert sorted(path.split("/")[0] for path in built.made_anew) == ["masked_lm_head"] * 6


def test_two_tensors_of_one_meaning_are_an_error(folder):
    arrays = tensors("bert")
    arrays["embeddings.LayerNorm.weight"] = arrays["bert.embeddings.LayerNorm.weight"]
    with pytest.raises(KzooError, match=r"mean the same: .*embeddings\.LayerNorm\.weight"):
        folder("bert", arrays)


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("bert", {"model_type": "roberta"}, "--from bert reads models of type 'bert'. Received:"),
        ("bert", {"is_decoder": True}, "is_decoder must be False. Received: True"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type must be"),
        ("bert", {"rotary": 1, "more": 2}, "unknown key 'rotary'; unknown key 'more'"),
        ("bert", {"hidden_act": "relu"}, "hidden_act must be gelu or gelu_new or gelu_pytorch"),
        ("bert", {"hidden_size": "wide"}, "hidden_size must be a number. Received: 'wide'"),
        ("bert", {"num_attention_heads": 7}, "num_attention_heads must divide hidden_size"),
        ("xlm_roberta", {"hidden_act": "gelu_new"}, "hidden_act must be gelu. Received"),
        ("xlm_roberta", {"pad_token_id": None}, "pad_token_id must be a number from 0 on"),
    ],
)
def test_another_model_is_refused(family, change, message, folder):
    with pytest.raises(KzooError, match=rf"config\.json: .*{message}"):
        folder(family, tensors(family), **change)


def test_word_pieces_are_named_as_what_is_left_out(folder, tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n", encoding="utf-8")
    source = folder("bert", tensors("bert"))
    assert source.vocabulary is None
    assert any("vocab.txt is left out" in note for note in source.notes)


def test_xlm_r_comes_with_its_vocabulary(folder, tmp_path):
    processor, data = xlm_roberta_model()
    (tmp_path / "sentencepiece.bpe.model").write_bytes(data)
    num_rows = processor.get_piece_size() + 2
    arrays = tensors("xlm_roberta")
    table = np.random.default_rng(0).normal(size=(num_rows, 24)).astype(np.float32)
    arrays["roberta.embeddings.word_embeddings.weight"] = table
    arrays["lm_head.bias"] = table[:, 0].copy()
    built = build(folder("xlm_roberta", arrays, vocab_size=num_rows))
    assert built.vocabulary.size == built.backbone.vocabulary_size == num_rows + 1
    for new in (built.backbone.token_embedding.embeddings, built.model.head.table):
        np.testing.assert_array_equal(new.numpy(), [*table, table[2]])
    np.testing.assert_array_equal(built.model.head.bias.numpy(), [*table[:, 0], table[2, 0]])


def test_the_command_decouples_a_model(folder, tmp_path):
    processor, data = xlm_roberta_model()
    (tmp_path / "sentencepiece.bpe.model").write_bytes(data)
    num_rows = processor.get_piece_size() + 2
    arrays = tensors("xlm_roberta")
    table = np.random.default_rng(0).normal(size=(num_rows, 24)).astype(np.float32)
    arrays["roberta.embeddings.word_embeddings.weight"] = table
    arrays["lm_head.bias"] = table[:, 0].copy()
    folder("xlm_roberta", arrays, vocab_size=num_rows)
    (tmp_path / "pieces.txt").write_text("▁zebrafish\n", encoding="utf-8")
    output = tmp_path / "preset"
    flags = {
        "from": "xlm_roberta",
        "input": tmp_path,
        "output": output,
        "keep_pieces_from": sample.folder() / "dev-{lang}.txt",
        "add_pieces": tmp_path / "pieces.txt",
        "embedding_dim": 6,
        "text": sample.folder() / "dev-en.txt",
    }
    command = [sys.executable, "-m", "kzoo.convert"]
    command += [f"--{flag}={value}" for flag, value in flags.items()]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for said in ("positions begin at 2", "pieces kept", "1 new piece:", "nats before", "energy"):
        assert said in result.stdout
    model = RemBertMaskedLM.from_preset(str(output))
    tokenizer = RemBertTokenizer.from_preset(str(output))
    assert model.backbone.embedding_dim == 6
    assert model.output_embedding_dim == 24
    assert model.backbone.vocabulary_size == tokenizer.vocabulary_size() < num_rows
    assert np.asarray(tokenizer("zebrafish")).tolist() == [tokenizer.vocabulary_size() - 1]


@pytest.mark.peers
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
def test_logits_are_those_of_hugging_face(family, activation, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    if family == "xlm_roberta" and activation != "gelu":
        pytest.skip("its head has the exact GELU, whatever its layers have")
    kind = {"bert": "Bert", "xlm_roberta": "XLMRoberta"}[family]
    config = {**CONFIGS[family], "hidden_act": activation}
    peer = getattr(transformers, f"{kind}ForMaskedLM")(
        getattr(transformers, f"{kind}Config")(**config)
    ).eval()
    with torch.no_grad():
        random = torch.Generator().manual_seed(0)
        for parameter in peer.parameters():
            parameter += torch.randn(parameter.shape, generator=random) * 0.2
    peer.save_pretrained(tmp_path)
    built = build(open_coupled(str(tmp_path), family))
    assert not built.accounts.ignored

    numbers = np.random.default_rng(0)
    ids = numbers.integers(4, 60, (3, 12))
    mask = (np.arange(12) < np.array([12, 1, 7])[:, None]).astype(np.int64)
    # Padding by its id: XLM-R counts its positions by that.
    ids[mask == 0] = peer.config.pad_token_id
    segments = numbers.integers(0, 2, ids.shape) if family == "bert" else np.zeros_like(ids)
    with torch.no_grad():
        expected = peer(
            torch.tensor(ids), torch.tensor(mask), token_type_ids=torch.tensor(segments)
        ).logits.numpy()
    positions = np.tile(np.arange(12, dtype=np.int32), (3, 1))
    logits = built.model(
        {
            "token_ids": ids.astype(np.int32),
            "padding_mask": mask.astype(np.int32),
            "segment_ids": numbers.integers(0, 2, ids.shape).astype(np.int32)
            if family == "xlm_roberta"
            else segments.astype(np.int32),
            "mask_positions": positions,
        }
    )
    valid = mask.astype(bool)
    np.testing.assert_allclose(logits.numpy()[valid], expected[valid], atol=1e-5, rtol=0)
