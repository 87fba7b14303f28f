"""What a conversion changes on its way: rows and pieces together, and what it says of it."""

import dataclasses
import math
import re
import subprocess
import sys

import numpy as np
import pytest

from kzoo import KzooError, sample
from kzoo.interchange.masked_loss import masked_loss
from kzoo.interchange.source_changes import add_pieces, build_narrow, keep_pieces
from kzoo.interchange.source_model import SourceModel, build
from kzoo.text.vocabulary import Vocabulary
from tests import reference
from tests.interchange.arrays import weights_of
from tests.models import shapes

SPARE_ROWS = 4
# Greek, English and Spanish.
PATTERN = str(sample.folder() / "dev-e{lang}.txt")
TEXT = str(sample.folder() / "dev-en.txt")


@pytest.fixture(scope="module")
def model():
    model = shapes.masked_lm(vocabulary_size=600 + SPARE_ROWS)
    reference.random_weights_into(model)
    return model


@pytest.fixture(scope="module")
def source(model, vocabulary_folder):
    return SourceModel(
        arguments={
            **shapes.ARGUMENTS,
            "vocabulary_size": 600 + SPARE_ROWS,
            "num_segments": 2,
        },
        output_embedding_dim=40,
        weights=weights_of(model),
        where="config.json",
        vocabulary=Vocabulary.load(vocabulary_folder),
    )


def masked_inputs(vocabulary: Vocabulary, lines: list[str]) -> dict[str, np.ndarray]:
    """Lines as a batch, each with two positions to predict."""
    ids = [vocabulary.encode(line)[:30] for line in lines]
    token_ids = np.full((len(ids), 30), vocabulary.pad_id, np.int32)
    for row, line_ids in zip(token_ids, ids, strict=True):
        row[: len(line_ids)] = line_ids
    return {
        "token_ids": token_ids,
        "padding_mask": (np.arange(30) < np.array([[len(row)] for row in ids])).astype(np.int32),
        "segment_ids": np.zeros_like(token_ids),
        "mask_positions": np.tile(np.array([1, 2], np.int32), (len(ids), 1)),
    }


def dev_lines() -> list[str]:
    with open(TEXT, encoding="utf-8") as file:
        return [line for line in file.read().split("\n") if line][:8]


def test_pieces_and_rows_grow_together(source, model, tmp_path):
    path = tmp_path / "pieces.txt"
    words = ["▁tokenizer", "▁zebrafish", "▁quartzite", "▁kilohertz", "▁oxbow", "▁jinx"]
    path.write_text("\n".join([*words, "▁jinx", "▁the"]), encoding="utf-8")
    built = build(add_pieces(source, str(path)))
    # Spare rows first.
    assert built.backbone.vocabulary_size == built.vocabulary.size == 606
    assert built.vocabulary.encode("zebrafish").tolist() == [601]
    inputs = masked_inputs(source.vocabulary, dev_lines())
    before = model(inputs).numpy()[..., :600]
    np.testing.assert_allclose(built.model(inputs)[..., :600], before, atol=1e-5, rtol=0)
    [summary, repeated] = built.notes
    assert "6 new pieces: V 604 → 606" in summary
    assert re.search(r"▁tokenizer: ▁\S* \S+.*; and 1 more", summary)
    assert repeated == "there already, or there twice: ▁jinx; ▁the"


def test_outputs_on_the_corpus_stay_when_other_pieces_go(source, model):
    built = build(keep_pieces(source, [PATTERN]))
    size = built.vocabulary.size
    assert size == built.backbone.vocabulary_size < 500
    lines = dev_lines()
    new, old = masked_inputs(built.vocabulary, lines), masked_inputs(source.vocabulary, lines)
    pieces = [built.vocabulary.processor.id_to_piece(index) for index in range(size)]
    kept = [source.vocabulary.processor.piece_to_id(piece) for piece in pieces]
    np.testing.assert_allclose(built.model(new), model(old).numpy()[..., kept], atol=1e-6, rtol=0)
    [note] = built.notes
    assert note.startswith(f"{size:,} of 604 pieces kept: ")
    assert re.search(r"that the corpus uses \(\d+ documents\)", note)
    saved = (604 - size) * (16 + 40 + 1) * 4 / 1e6
    assert note.endswith(f"{saved:,.1f} MB saved")


def test_pieces_can_go_and_come_in_one_conversion(source, tmp_path):
    path = tmp_path / "pieces.txt"
    path.write_text("▁zebrafish\n", encoding="utf-8")
    built = build(add_pieces(keep_pieces(source, [PATTERN]), str(path)))
    assert built.vocabulary.encode("zebrafish").tolist() == [built.backbone.vocabulary_size - 1]


def test_a_narrower_table_is_measured(source, model):
    built = build_narrow(source, 8, text=TEXT)
    assert built.backbone.embedding_dim == 8
    summary, losses = built.notes
    assert "input table: E_in 16 → 8" in summary
    assert "needs further pre-training" in summary
    before, after = map(float, re.findall(r"([\d.]+) nats before, ([\d.]+) after", losses)[0])
    assert before == pytest.approx(masked_loss(build(source), TEXT).nats, abs=1e-3)
    assert after == pytest.approx(masked_loss(built, TEXT).nats, abs=1e-3)
    assert before != after


def test_the_loss_is_the_mean_over_the_targets(source, model):
    """A head whose logits are its bias knows the share of each piece, and nothing else."""
    built = build(source)
    built.model.head.table.assign(np.zeros((604, 40)))
    bias = np.full(604, -10.0)
    bias[source.vocabulary.ordinary_ids] = 0
    built.model.head.bias.assign(bias)
    loss = masked_loss(built, TEXT)
    assert loss.nats == pytest.approx(math.log(len(source.vocabulary.ordinary_ids)), abs=1e-3)
    assert loss.windows <= 64
    assert loss.targets > loss.windows


def test_what_a_change_needs_is_said(source, tmp_path):
    pieces = tmp_path / "pieces.txt"
    pieces.write_text("▁the\n", encoding="utf-8")
    with pytest.raises(KzooError, match=r"all pieces in .* already"):
        add_pieces(source, str(pieces))
    bare = dataclasses.replace(source, vocabulary=None)
    with pytest.raises(KzooError, match="--add_pieces needs the model's vocabulary"):
        add_pieces(bare, str(pieces))
    with pytest.raises(KzooError, match="--keep_pieces_from needs the model's vocabulary"):
        keep_pieces(bare, [PATTERN])
    with pytest.raises(KzooError, match="without a vocabulary the loss on"):
        build_narrow(bare, 8, text=TEXT)
    small = dataclasses.replace(source, arguments={**source.arguments, "vocabulary_size": 500})
    with pytest.raises(KzooError, match=r"has 600 pieces, but config\.json has tables of 500 rows"):
        keep_pieces(small, [PATTERN])
    with pytest.raises(KzooError, match="from 2 to 15 wide"):
        build_narrow(source, 16)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--text=some.txt"], "--text is for --embedding_dim"),
        (["--text_field=body"], "--text_field is for --keep_pieces_from and --text"),
        (["--on_bad_text=skip"], "--on_bad_text is for --keep_pieces_from"),
        (["--embedding_dim=8", "--text=none.txt"], "--text: there is no file none.txt"),
    ],
)
def test_flags_without_effect_are_refused(flags, message, tmp_path):
    command = [sys.executable, "-m", "kzoo.convert", "--from=bert", "--input=in", "--output=out"]
    done = subprocess.run(
        [*command, *flags], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert message in done.stderr
