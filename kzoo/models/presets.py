"""The shapes of published models, of the RemBERT paper's experiments, and of three of our own.

A preset here is a shape, without weights. `python -m kzoo.zoo` prints them all.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from kzoo.models.parameter_counts import ParameterCounts, count_parameters

_PAPER = "arXiv 2010.12821"
_BLEURT = "README of google-research/bleurt"


@dataclasses.dataclass(frozen=True)
class Preset:
    """The shape of a model.

    Attributes:
        name: its key in `PRESETS`.
        description: what it is, in one line.
        source: where the shape is from.
        backbone: arguments of `RemBertBackbone`.
        output_embedding_dim: E_out, or "tied": argument of `RemBertMaskedLM`.
        paper_pretraining_millions: parameters in pre-training, as the source prints them.
        paper_finetuning_millions: parameters in fine-tuning, as the source prints them.
        fine_tuning_layers: how many layers are left for fine-tuning, where others are thrown away.
        note: what is not as the source says it, or what it does not say.
    """

    name: str
    description: str
    source: str
    backbone: Mapping[str, Any]
    output_embedding_dim: int | str
    paper_pretraining_millions: int | None = None
    paper_finetuning_millions: int | None = None
    fine_tuning_layers: int | None = None
    note: str = ""

    @property
    def pretraining_counts(self) -> ParameterCounts:
        """The parameters of the whole model."""
        return self._counts()

    @property
    def finetuning_counts(self) -> ParameterCounts:
        """The same without the layers that are thrown away before fine-tuning."""
        if self.fine_tuning_layers is None:
            return self._counts()
        return self._counts(num_layers=self.fine_tuning_layers)

    def _counts(self, **changes: int) -> ParameterCounts:
        arguments = {**self.backbone, "output_embedding_dim": self.output_embedding_dim}
        return count_parameters(**{**arguments, **changes})


def _shape(
    vocabulary_size: int,
    num_layers: int,
    hidden_dim: int,
    embedding_dim: int,
    max_sequence_length: int = 512,
) -> dict[str, Any]:
    """A backbone with heads 64 wide and a feed-forward part 4 times as wide as the layers."""
    return {
        "vocabulary_size": vocabulary_size,
        "num_layers": num_layers,
        "num_heads": hidden_dim // 64,
        "hidden_dim": hidden_dim,
        "intermediate_dim": 4 * hidden_dim,
        "embedding_dim": embedding_dim,
        "max_sequence_length": max_sequence_length,
    }


def _ablation(
    name: str,
    description: str,
    tables: str,
    embedding_dim: int,
    output_embedding_dim: int | str,
    millions: tuple[int, int] | tuple[None, None],
    *,
    vocabulary_size: int = 120_000,
    num_layers: int = 12,
    hidden_dim: int = 768,
    **others: Any,
) -> Preset:
    """A row of the paper's tables; `millions` are its pre-training and fine-tuning counts."""
    return Preset(
        name,
        description,
        f"{_PAPER}, {tables}",
        _shape(vocabulary_size, num_layers, hidden_dim, embedding_dim),
        output_embedding_dim,
        *millions,
        **others,
    )


_PUBLISHED = (
    Preset(
        "rembert",
        "RemBERT as released",
        f"config of google/rembert; {_PAPER}, table 14",
        _shape(250_300, 32, 1152, 256),
        1664,
        995,
        575,
        note="the paper prints V 250k and E_out 1536, but its 995M fit only E_out 1664",
    ),
    Preset(
        "rembert_paper",
        "RemBERT as printed",
        f"{_PAPER}, section 5 and table 14",
        _shape(250_000, 32, 1152, 256),
        1536,
        995,
        575,
        note="33M short of the 995M that the paper prints beside this shape; see rembert",
    ),
    Preset(
        "rembert_12",
        "RemBERT-12, the encoder of BLEURT-20-D12",
        f"config of BLEURT-20-D12; {_BLEURT}",
        _shape(120_300, 12, 1024, 128),
        2048,
        paper_finetuning_millions=167,
    ),
    Preset(
        "rembert_6",
        "RemBERT-6, the encoder of BLEURT-20-D6",
        _BLEURT,
        _shape(120_300, 6, 640, 128),
        2048,
        paper_finetuning_millions=45,
        note="widths are the only ones that give the printed sizes; V and E_out as in rembert_12",
    ),
    Preset(
        "rembert_3",
        "RemBERT-3, the encoder of BLEURT-20-D3",
        _BLEURT,
        _shape(120_300, 3, 640, 128),
        2048,
        paper_finetuning_millions=30,
        note="widths are the only ones that give the printed sizes; V and E_out as in rembert_12",
    ),
    Preset(
        "xlm_indic",
        "XLM-Indic RemBERT, for the languages of India",
        "config of ibraheemmoosa/xlmindic-rembert-uniscript",
        _shape(65_536, 12, 768, 128),
        768,
    ),
)

_MULTILINGUAL = (
    _ablation(
        "coupled", "one table for input and output", "tables 2 and 12", 768, "tied", (177, 177)
    ),
    _ablation("decoupled", "two tables, as wide as the layers", "table 2", 768, 768, (269, 177)),
    _ablation("in768_out128", "a wide input table", "table 3", 768, 128, (192, 177)),
    _ablation("in128_out768", "a wide output table", "tables 3 to 6", 128, 768, (192, 100)),
    _ablation("in128_out128", "two narrow tables", "table 4", 128, 128, (115, 100)),
    _ablation("in128_out3072", "a very wide output table", "table 4", 128, 3072, (469, 100)),
    _ablation(
        "discard_11_layers",
        "23 layers, of which 11 are thrown away",
        "table 5",
        128,
        128,
        (193, 100),
        num_layers=23,
        fine_tuning_layers=12,
        note="E_out is not printed; 128 is the one that gives 193M",
    ),
    _ablation(
        "reinvest_width",
        "parameters saved at the input, spent on width",
        "table 6",
        128,
        768,
        (260, 168),
        hidden_dim=1024,
        note="168M and 260M are with the pooler; the other rows are without",
    ),
    _ablation(
        "reinvest_depth",
        "parameters saved at the input, spent on layers",
        "table 6",
        128,
        768,
        (270, 178),
        num_layers=23,
    ),
    _ablation("coupled_128", "one narrow table, as ALBERT", "table 12", 128, "tied", (100, 100)),
)

_english = functools.partial(_ablation, vocabulary_size=30_000)

_ENGLISH = (
    _english(
        "english_coupled",
        "English: BERT-base",
        "tables 12 and 13",
        768,
        "tied",
        (110, 110),
        note="108.5M by the way of counting that fits the other rows of table 13",
    ),
    _english(
        "english_coupled_128",
        "English: one narrow table, as ALBERT",
        "table 12",
        128,
        "tied",
        (None, None),
        note="the paper takes this row's score from the ALBERT paper and prints no counts",
    ),
    _english("english_out128", "English: two narrow tables", "table 13", 128, 128, (93, 89)),
    _english("english_out768", "English: a wide output table", "table 13", 128, 768, (112, 89)),
    _english(
        "english_out3072", "English: a very wide output table", "table 13", 128, 3072, (181, 89)
    ),
    _english(
        "english_discard_3_layers",
        "English: 15 layers, of which 3 are thrown away",
        "table 13",
        128,
        128,
        (114, 89),
        num_layers=15,
        fine_tuning_layers=12,
        note="E_out is not printed; 128 is the one that gives 114M",
    ),
    _english(
        "english_discard_12_layers",
        "English: 24 layers, of which 12 are thrown away",
        "table 13",
        128,
        128,
        (178, 89),
        num_layers=24,
        fine_tuning_layers=12,
        note="E_out is not printed; 128 is the one that gives 178M",
    ),
)

_OWN = (
    Preset(
        "small",
        "a useful encoder from one GPU and one day",
        "kzoo",
        _shape(120_000, 12, 512, 128),
        2048,
    ),
    Preset(
        "mini",
        "large enough to compare settings, in minutes on a CPU",
        "kzoo",
        _shape(8_000, 4, 256, 64, max_sequence_length=128),
        768,
    ),
    Preset(
        "sample",
        "for the sample corpus: shows that everything works",
        "kzoo",
        _shape(4_000, 2, 128, 32, max_sequence_length=128),
        256,
    ),
)

PRESETS: dict[str, Preset] = {
    preset.name: preset for preset in (*_PUBLISHED, *_MULTILINGUAL, *_ENGLISH, *_OWN)
}
