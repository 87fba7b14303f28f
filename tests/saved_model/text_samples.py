"""Vocabularies and strings for the tests of text inside graphs."""

import functools
import json
import tempfile
from pathlib import Path

from tensorflow.core.protobuf import saved_model_pb2

from kzoo import sample
from kzoo.text.vocabulary_training import train_vocabulary
from tests.training.subprocesses import run_python

ODD_TEXTS = [
    "",
    " ",
    "   ",
    "\t",
    "\n",
    "\x00",
    "a\x00b",
    "\x01\x1f\x7f\x85",
    "a\u200bb",
    "\u200b",
    "\ufeffa",
    "a\ufeff b",
    "\u2028a\u2029b\u0085c",
    "😀 👩\u200d👩\u200d👧 🇩🇪",
    "ﬁn de l'ofﬁce, №5 … Ⅷ ²",
    "\u1112\u1161\u11ab\u1100\u116e\u11a8\u110b\u1165",
    "한국어",
    "e\u0301te\u0301 été",
    "\u0301a",
    "a [MASK] b [SEP] </s> <pad> [CLS] <unk>",
    "[MASK]",
    "<unk>",
    "▁a ▁ ▁▁b",
    "a\tb\t\tc",
    "a\r\nb\nc\r",
    "\u3000北京\u3000\u3000上海\u00a0",
    "``x'' and ''y``",
    "¨x a¨x ´",
    "\ufffd a\ufffdb",
    "\U0010ffff\ue000",
    "שלום عليكم ١٢٣",
    "बाज़ार में क्षेत्र",
    "ALL CAPS and MiXeD, 1234567890",
]

BAD_BYTES = [
    b"\xff",
    b"a\xffb",
    b"\xc3",
    b"caf\xe9 noir",
    b"\xe2\x82",
    b"\xe2\x82a",
    b"\xe2\x28\xa1",
    b"\xf0\x9f\x98",
    b"\xf0\x9f\x98 \xf0\x9f\x98\x80",
    b"\xf8\x88\x80\x80\x80",
    b"\xc0\xaf \xe0\x80\xaf",
    b"\xf4\x90\x80\x80",
    # Halves of surrogate pairs, alone and together.
    b"a\xed\xa0\x80b",
    b"\xed\xb0\x80",
    b"\xed\xa0\xbd\xed\xb8\x80",
    b"\x80\x80\x80",
    b"x\x00\xfe\xffy",
    "été".encode("latin-1"),
    "été".encode("utf-16"),
    b"\xef\xbb\xbfa\xff",
]


@functools.cache
def trained_model(*languages: str, size: int = 2000) -> bytes:
    """A SentencePiece model of the sample corpus in some languages."""
    files = {language: [str(sample.folder() / f"train-{language}.txt")] for language in languages}
    with tempfile.TemporaryDirectory() as folder:
        return train_vocabulary(files, size, Path(folder) / "vocabulary").model


def sample_lines(*languages: str) -> list[str]:
    """The lines of the sample's held-out text."""
    texts = (sample.folder() / f"dev-{language}.txt" for language in languages)
    return [line for text in texts for line in text.read_text("utf-8").split("\n") if line]


_CORE_OPS = """
import json
import tensorflow
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session
buffer = pywrap_tf_session.TF_GetAllOpList()
ops = op_def_pb2.OpList.FromString(pywrap_tf_session.TF_GetBuffer(buffer))
print(json.dumps([op.name for op in ops.op]))
"""


@functools.cache
def _core_ops() -> frozenset[str]:
    """The operations that a process knows which imports core TensorFlow alone."""
    return frozenset(json.loads(run_python(_CORE_OPS).stdout))


def ops_outside_core(folder: Path) -> list[str]:
    """The operations of a SavedModel that core TensorFlow does not have."""
    saved = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    ops = set()
    for meta_graph in saved.meta_graphs:
        ops |= {node.op for node in meta_graph.graph_def.node}
        functions = meta_graph.graph_def.library.function
        ops |= {node.op for function in functions for node in function.node_def}
    assert "Placeholder" in ops
    return sorted(ops - _core_ops())
