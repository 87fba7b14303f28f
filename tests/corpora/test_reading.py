"""From files to documents, in every format; and what is said about files that are not right."""

import gzip
import itertools
import json
import logging

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from kzoo.corpora import blocks
from kzoo.corpora.reading import BadText, read_documents
from kzoo.corpora.segments import read_segments, read_shards
from kzoo.errors import KzooError
from tests.corpora.text_files import COMPRESS, NAMES, write_documents

DOCUMENTS = [
    ["Ein Satz.", "Noch einer."],
    ["यह एक वाक्य है।"],
    ["a\u2028b\x0bc\x85d\x1ce", "f\x0cg\rh"],
]


def read(folder, name: str, content: bytes, **arguments) -> list[list[str]]:
    path = folder / name
    path.write_bytes(content)
    return list(read_documents(str(path), **arguments))


def error_of(folder, name: str, content: bytes, **arguments) -> str:
    with pytest.raises(KzooError) as error:
        read(folder, name, content, **arguments)
    assert name in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", NAMES)
def test_every_format_gives_the_same_documents(tmp_path, name):
    path = write_documents(tmp_path, f"text.{name}", DOCUMENTS)
    assert list(read_documents(path)) == DOCUMENTS


@pytest.mark.parametrize("name", NAMES)
def test_progress_adds_up_to_the_size_of_the_file(tmp_path, name):
    path = write_documents(tmp_path, f"text.{name}", DOCUMENTS * 2000)
    seen = []
    assert len(list(read_documents(path, on_read=seen.append))) == 6000
    assert sum(seen) == (tmp_path / f"text.{name}").stat().st_size


@pytest.mark.parametrize(
    "content",
    [
        "\n\nx y\n\n\n\nz\n",
        "x y\n\nz",
        "\ufeffx y\r\n\r\nz\r\n",
        " \t\nx y\n\u00a0\u3000\n\t \r\nz\n\n\n",
    ],
)
def test_blank_lines_end_documents_however_many_there_are(tmp_path, content):
    assert read(tmp_path, "a.txt", content.encode()) == [["x y"], ["z"]]


def test_lines_inside_a_json_document(tmp_path):
    content = json.dumps({"text": "a\r\nb\n\n \nc\u2028d\n"}) + "\r\n\n" + '{"text": " \\n"}\n'
    assert read(tmp_path, "a.jsonl", content.encode()) == [["a", "b", "c\u2028d"]]


def test_the_field_of_the_text_can_be_named(tmp_path):
    assert read(tmp_path, "a.jsonl", b'{"body": "x", "text": 1}', text_field="body") == [["x"]]


def test_compressed_files_may_be_several_joined_together(tmp_path):
    content = gzip.compress(b"a\n\n") + gzip.compress(b"") + gzip.compress(b"b\n") + b"\0\0"
    assert read(tmp_path, "a.txt.gz", content) == [["a"], ["b"]]


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_truncated_file_is_an_error_and_not_a_shorter_text(tmp_path, suffix):
    content = COMPRESS[suffix](b"".join(b"%d\n" % number for number in range(50_000)))
    assert "in the middle" in error_of(tmp_path, f"a.txt{suffix}", content[:-20])
    assert "damaged" in error_of(tmp_path, f"b.txt{suffix}", b"plain text, no archive")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (COMPRESS[".gz"](b"text"), "a name that ends in .gz"),
        (COMPRESS[".xz"](b"text"), "a name that ends in .xz"),
        (COMPRESS[".zst"](b"text"), "a name that ends in .zst"),
        ("text\n".encode("utf-16"), "iconv"),
        ("text\n".encode("utf-16-be"), "iconv"),
        ("text\n".encode("utf-16-le"), "iconv"),
    ],
    ids=["gz", "xz", "zst", "utf-16", "utf-16-be", "utf-16-le"],
)
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz"])
def test_what_is_no_utf_8_text_is_recognised(tmp_path, name, content, what):
    stored = gzip.compress(content) if name.endswith(".gz") else content
    assert what in error_of(tmp_path, name, stored)


def test_a_parquet_table_under_another_name_is_recognised(tmp_path):
    write_documents(tmp_path, "a.parquet", DOCUMENTS)
    assert ".parquet" in error_of(tmp_path, "a.txt", (tmp_path / "a.parquet").read_bytes())
    assert read(tmp_path, "b.txt", b"PAR1 is a gene.\n") == [["PAR1 is a gene."]]
    assert "not a Parquet table" in error_of(tmp_path, "b.parquet", b"text")


def test_a_name_that_says_nothing_and_a_file_that_is_not_there(tmp_path):
    assert ".jsonl" in error_of(tmp_path, "a.csv", b"text")
    with pytest.raises(KzooError, match=r"b\.txt: No such file"):
        list(read_documents(str(tmp_path / "b.txt")))


BAD_LINES = b"first\ncaf\xe9 ok\nlast\n"


def test_a_bad_byte_is_an_error_that_names_the_line(tmp_path):
    message = error_of(tmp_path, "a.txt", BAD_LINES)
    assert "a.txt, line 2: byte 0xe9 at 4" in message
    assert "--on_bad_text" in message


def test_a_bad_byte_can_be_replaced_or_its_line_left_out(tmp_path):
    replaced, skipped = BadText("replace"), BadText("skip")
    assert read(tmp_path, "a.txt", BAD_LINES, bad_text=replaced) == [["first", "caf� ok", "last"]]
    assert read(tmp_path, "a.txt", BAD_LINES, bad_text=skipped) == [["first", "last"]]
    assert (replaced.replaced, replaced.skipped) == (1, 0)
    assert (skipped.replaced, skipped.skipped) == (0, 1)
    assert "line 2" in replaced.places[0]
    assert "line 2" in skipped.places[0]


def test_the_number_of_a_bad_line_is_right_far_into_a_file(tmp_path):
    content = b"some text\n" * 300_000 + b"\xff\n" + b"some text\n" * 10
    assert "line 300001:" in error_of(tmp_path, "a.txt.gz", gzip.compress(content))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"text": "a', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'["a"]', "expected a JSON object, got list"),
        (b'{"txt": "a", "id": 1}', "no 'text' (the object has id, txt)"),
        (b'{"text": null}', "'text' is not a string but NoneType"),
        (b'{"text": "\\ud83d"}', "surrogate"),
    ],
)
def test_a_bad_json_line_is_named_or_skipped(tmp_path, line, problem):
    content = b'{"text": "good"}\n' + line + b'\n{"text": "too"}\n'
    message = error_of(tmp_path, "a.jsonl", content)
    assert "a.jsonl, line 2: " in message
    assert problem in message
    bad_text = BadText("skip")
    assert read(tmp_path, "a.jsonl", content, bad_text=bad_text) == [["good"], ["too"]]
    assert bad_text.skipped == 1


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": "a", "text": "b"}',
        b'{"text": "a", "x": NaN, "y": -Infinity, "z": 1e999}',
        b'{"text": "a", "x": %s}' % (b"9" * 5000),
        b'{"text": "a", "x": %s}' % (b"[" * 300 + b"]" * 300),
        b'{"text": "a", "x": "\\udead"}',
        b'{"text": "a", "x": 01}',
        b'{"text": "a",}',
        b'{"text": "a"} {}',
        b'{"text": "a\tb"}',
        b'\xef\xbb\xbf{"text": "a"}',
        b'{"text": "\\ud83d\\ude00 \\u0041 \\/ \\\\"}',
        b'{"text": "\\ud83d"}',
        b'{"text": "a\\u0000b"}',
        b' \t{"te\\u0078t"\t: "a" }\t ',
        b'{"text": "caf\xe9"}',
        b'{"text": "a", "x": "\xed\xa0\x80"}',
        b'"text"',
        b"17",
    ],
)
def test_a_json_line_is_read_as_pythons_json_reads_it(tmp_path, line):
    bad_text = BadText("skip")
    try:
        expected = json.loads(line.decode())["text"]
        expected.encode()
    except (ValueError, TypeError):
        expected = None
    documents = read(tmp_path, "a.jsonl", b'{"text": "good"}\n' + line + b"\n", bad_text=bad_text)
    assert documents == [["good"], *([[expected]] if expected else [])]
    assert bad_text.skipped == (expected is None)


def test_parquet_rows_without_text_and_columns_of_other_kinds(tmp_path):
    path = str(tmp_path / "a.parquet")
    table = pyarrow.table(
        {
            "text": pyarrow.array(["x", None, "y"]).dictionary_encode(),
            "id": [1, 2, 3],
            "bytes": [b"x", b"\xff", b"y"],
        }
    )
    parquet.write_table(table, path)
    with pytest.raises(KzooError, match=r"a\.parquet, row 2: 'text' is null"):
        list(read_documents(path))
    assert list(read_documents(path, bad_text=BadText("skip"))) == [["x"], ["y"]]
    with pytest.raises(KzooError, match="no column 'body', only text, id, bytes"):
        list(read_documents(path, text_field="body"))
    with pytest.raises(KzooError, match=r"'id' .* holds int64, not strings"):
        list(read_documents(path, text_field="id"))


def test_an_empty_file_beside_a_good_one_is_a_warning(tmp_path, caplog):
    good = write_documents(tmp_path, "good.txt", DOCUMENTS)
    for name, content in {
        "none.txt": b"",
        "blank.jsonl": b"\n \n",
        "bom.txt": b"\xef\xbb\xbf",
    }.items():
        (tmp_path / name).write_bytes(content)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            shards = list(read_shards([str(tmp_path / name), good], 1000))
        assert len(shards) == 1
        assert f"{name} holds no text" in caplog.text
    with pytest.raises(KzooError, match=r"no text in .*none\.txt, .*blank\.jsonl"):
        list(read_shards([str(tmp_path / "none.txt"), str(tmp_path / "blank.jsonl")], 1000))


text_lines = st.lists(st.sampled_from([b"", b" ", b"a", b"bc d", b"efghijklmnop", b"x\r"]))


@given(lines=text_lines, size=st.integers(1, 60), block_bytes=st.integers(1, 30))
def test_where_a_text_is_cut_depends_on_its_content_alone(
    tmp_path_factory, lines, size, block_bytes
):
    path = tmp_path_factory.getbasetemp() / "cut.txt"
    content = b"\n".join(lines)
    path.write_bytes(content)
    whole = list(read_documents(str(path)))
    segments = list(read_segments(str(path), size, size))
    assert b"".join(segment.content for segment in segments) == content
    line = 1
    for segment in segments:
        assert segment.first_line == line
        line += segment.content.count(b"\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_PLAIN_BLOCK_BYTES", block_bytes)
        patch.setattr(blocks, "_SNIFFED_BYTES", 1)
        assert list(read_segments(str(path), size, size)) == segments
    documents = sum(_count_documents(segment.content) for segment in segments)
    assert documents - sum(segment.continues for segment in segments) == len(whole)


def _count_documents(content: bytes) -> int:
    blanks = [True, *(not line.strip() for line in content.split(b"\n"))]
    return sum(before and not now for before, now in itertools.pairwise(blanks))


def test_a_document_longer_than_its_segment_is_cut_at_a_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"0123456789\n" * 10 + b"\nnext\n")
    segments = list(read_segments(str(path), 20, 20))
    assert all(segment.content.endswith(b"\n") for segment in segments)
    assert max(segment.size_bytes for segment in segments) <= 40
    assert [segment.continues for segment in segments].count(False) == 2
