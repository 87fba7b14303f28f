"""What goes to object storage is complete there, or is seen not to be."""

import os
from pathlib import Path

import pytest

from kzoo.storage import listing, remote
from kzoo.storage.listing import LISTING_FILE
from kzoo.storage.publishing import made_folder, publish_file, publish_folder
from tests.storage import ram

FILES = {"a.bin": b"first", "below/saved_model.pb": b"graph", "below/w": b"weights", "last": b"{}"}


@pytest.fixture
def made(tmp_path) -> str:
    for name, content in FILES.items():
        (tmp_path / "made" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "made" / name).write_bytes(content)
    return str(tmp_path / "made")


@pytest.fixture
def written(monkeypatch) -> list[str]:
    """The remote files that are written or removed, in this order."""
    names = []
    for function in ("copy_to", "write_bytes", "remove"):
        usual = getattr(remote, function)

        def noted(*arguments, usual=usual, function=function):
            path = arguments[function == "copy_to"]
            names.append(("-" if function == "remove" else "") + path.partition("/folder/")[2])
            return usual(*arguments)

        monkeypatch.setattr(remote, function, noted)
    return names


def test_the_last_file_is_written_last_and_graphs_after_their_weights(made, written):
    output = ram.new_folder()
    publish_folder(made, output, "last")
    assert sorted(written[:4]) == ["-kzoo_files.json", "-last", "a.bin", "below/w"]
    assert written[4:] == ["below/saved_model.pb", LISTING_FILE, "last"]
    there = ram.read(output)
    files = listing.from_json(there.pop(LISTING_FILE), "")
    assert there == FILES
    assert files == {name: listing.Entry.of(content) for name, content in FILES.items()}


def test_a_folder_takes_the_place_of_another(made):
    output = ram.new_folder()
    ram.write(output, {"a.bin": b"a longer one from before", "old/file": b"old", "last": b"[]"})
    publish_folder(made, output, "last")
    assert {name: data for name, data in ram.read(output).items() if name != LISTING_FILE} == FILES


def test_what_is_not_to_be_replaced_stays(made):
    output = ram.new_folder()
    publish_folder(made, output, "last")
    ram.write(output, {"mine/notes": b"notes"})
    (Path(made) / "a.bin").unlink()
    (Path(made) / "below" / "w").write_bytes(b"other weights")
    publish_folder(made, output, "last", replaced=lambda name: False)
    there = ram.read(output)
    files = listing.from_json(there.pop(LISTING_FILE), "")
    assert there == {**FILES, "below/w": b"other weights", "mine/notes": b"notes"}
    assert files == {name: listing.Entry.of(there[name]) for name in FILES}


def test_an_interrupted_copy_is_not_complete_and_the_next_one_is(made, monkeypatch):
    output = ram.new_folder()
    publish_folder(made, output, "last")
    usual = remote.copy_to

    def breaks(local, path, *arguments):
        if path.endswith("/w"):
            raise OSError(5, "the network is gone", path)
        return usual(local, path, *arguments)

    monkeypatch.setattr(remote, "copy_to", breaks)
    with pytest.raises(OSError, match="the network is gone"):
        publish_folder(made, output, "last")
    assert "last" not in ram.read(output)
    monkeypatch.setattr(remote, "copy_to", usual)
    publish_folder(made, output, "last")
    assert ram.read(output)["last"] == b"{}"


def test_a_folder_is_made_here_and_brought_there(tmp_path):
    output, cache = ram.new_folder(), tmp_path / "cache"
    with made_folder(output, "last", str(cache)) as folder:
        assert not os.path.exists(folder)
        os.mkdir(folder)
        Path(folder, "last").write_text("{}")
    assert ram.read(output)["last"] == b"{}"
    assert os.listdir(cache) == []
    with made_folder(str(tmp_path / "local"), "last", str(cache)) as folder:
        assert folder == str(tmp_path / "local")


def test_nothing_is_brought_after_a_failure(tmp_path):
    output = ram.new_folder()

    def make_half():
        with made_folder(output, "last", str(tmp_path)) as folder:
            os.mkdir(folder)
            Path(folder, "last").write_text("{}")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make_half()
    assert ram.read(output) == {}
    assert os.listdir(tmp_path) == []


def test_a_file_appears_whole(tmp_path):
    output = ram.new_folder()
    for content in (b"a long line", b"short"):
        (tmp_path / "file").write_bytes(content)
        publish_file(str(tmp_path / "file"), f"{output}/file")
        assert ram.read(output) == {"file": content}
