"""Copies of remote files are those files, or there are none."""

import json
import os
import shutil
from pathlib import Path

import pytest

from kzoo.errors import KzooError
from kzoo.storage import remote
from kzoo.storage.fetching import fetch, fetch_file, fetch_folder
from kzoo.storage.listing import LISTING_FILE
from kzoo.storage.publishing import publish_folder
from tests.storage import ram

FILES = {"last.json": b"{}", "a.bin": b"first", "below/b.bin": b"second", "below/empty": b""}


@pytest.fixture
def foreign() -> str:
    """A folder that other programs have put there."""
    folder = ram.new_folder()
    ram.write(folder, FILES)
    return folder


@pytest.fixture
def published(tmp_path) -> str:
    """A folder that has a listing."""
    folder = ram.new_folder()
    for name, content in FILES.items():
        (tmp_path / "made" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "made" / name).write_bytes(content)
    publish_folder(str(tmp_path / "made"), folder, "last.json")
    return folder


@pytest.fixture
def copied(monkeypatch) -> list[str]:
    """The names of remote files that are copied, in the order of their copying."""
    names = []
    copy_from = remote.copy_from

    def noted(path, *arguments):
        names.append(os.path.basename(path))
        return copy_from(path, *arguments)

    monkeypatch.setattr(remote, "copy_from", noted)
    return names


def fetched(folder: str, tmp_path: Path, **options) -> Path:
    return Path(fetch_folder(folder, str(tmp_path / "cache"), last="last.json", **options))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("kind", ["foreign", "published"])
def test_a_copy_holds_what_the_folder_holds(kind, request, tmp_path):
    assert contents(fetched(request.getfixturevalue(kind), tmp_path)) == FILES


def test_a_local_folder_is_its_own_copy(tmp_path):
    assert fetch_folder(str(tmp_path), "/nowhere", last="last.json") == str(tmp_path)
    assert fetch(f"file://{tmp_path}", "/nowhere") == str(tmp_path)


def test_a_good_copy_is_used_again(published, tmp_path, copied):
    fetched(published, tmp_path)
    assert sorted(copied) == ["a.bin", "b.bin", "empty", "last.json"]
    assert contents(fetched(published, tmp_path)) == FILES
    assert len(copied) == 4


def test_a_damaged_file_of_a_copy_is_copied_again(published, tmp_path, copied):
    copy = fetched(published, tmp_path)
    copied.clear()
    (copy / "a.bin").write_bytes(b"FIRST")
    (copy / "below" / "b.bin").write_bytes(b"sec")
    (copy / "below" / "empty").unlink()
    assert contents(fetched(published, tmp_path)) == FILES
    assert sorted(copied) == ["a.bin", "b.bin", "empty"]


def test_what_has_changed_there_changes_here(foreign, tmp_path):
    fetched(foreign, tmp_path)
    # As long as before, and this storage does not know when it was changed.
    ram.write(foreign, {"a.bin": b"FIRST", "new": b"!"})
    remote.remove(f"{foreign}/below/empty")
    expected = {**FILES, "a.bin": b"FIRST", "new": b"!"}
    del expected["below/empty"]
    assert contents(fetched(foreign, tmp_path)) == expected
    remote.remove(f"{foreign}/below/b.bin")
    assert not (fetched(foreign, tmp_path) / "below").exists()


def test_where_the_storage_knows_when_a_file_was_changed_it_is_not_read_again(
    foreign, tmp_path, copied, monkeypatch
):
    stat = remote.stat
    monkeypatch.setattr(remote, "stat", lambda path: stat(path)._replace(modified_ns=7))
    fetched(foreign, tmp_path)
    fetched(foreign, tmp_path)
    assert len(copied) == 4
    monkeypatch.setattr(remote, "stat", lambda path: stat(path)._replace(modified_ns=8))
    fetched(foreign, tmp_path)
    assert len(copied) == 8


def test_an_interrupted_copy_is_finished_and_never_used(published, tmp_path, copied, monkeypatch):
    good = remote.copy_from

    def breaks(path, local, *arguments):
        if path.endswith("b.bin"):
            Path(local).write_bytes(b"sec")
            raise OSError(5, "the network is gone", path)
        return good(path, local, *arguments)

    monkeypatch.setattr(remote, "copy_from", breaks)
    with pytest.raises(KzooError, match=rf"cannot read {published}/below/b.bin: the network is g"):
        fetched(published, tmp_path)
    [copy] = [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    assert "below/b.bin" not in contents(copy)
    # As a killed process leaves it.
    (copy / "below" / "b.bin.partial").write_bytes(b"sec")
    copied.clear()
    monkeypatch.setattr(remote, "copy_from", good)
    assert contents(fetched(published, tmp_path)) == FILES
    assert "b.bin" in copied


def test_some_files_of_a_folder_do(published, tmp_path, copied):
    copy = fetched(published, tmp_path, chosen=lambda name: name != "below/b.bin")
    assert "below/b.bin" not in contents(copy)
    copied.clear()
    assert contents(fetched(published, tmp_path)) == FILES
    assert copied == ["b.bin"]


@pytest.mark.parametrize("kind", ["foreign", "published"])
def test_one_file_is_fetched(kind, request, tmp_path):
    folder = request.getfixturevalue(kind)
    path = Path(fetch(f"{folder}/a.bin", str(tmp_path / "cache")))
    assert path.read_bytes() == b"first"
    assert contents(path.parent) == {"a.bin": b"first"}


def test_a_file_that_was_cut_short_is_named(published, tmp_path):
    ram.write(published, {"below/b.bin": b"sec"})
    with pytest.raises(KzooError, match=r"b\.bin has 3 bytes instead of 6: it was cut short"):
        fetched(published, tmp_path)


def test_a_file_that_was_changed_by_hand_is_named(published, tmp_path):
    ram.write(published, {"below/b.bin": b"SECOND"})
    with pytest.raises(KzooError, match=r"b\.bin is damaged, or was changed by hand"):
        fetched(published, tmp_path)


def test_a_folder_without_its_last_file_is_not_complete(published, tmp_path):
    remote.remove(f"{published}/last.json")
    with pytest.raises(KzooError, match=rf"{published} has no last\.json: .* never written to its"):
        fetched(published, tmp_path)
    with pytest.raises(KzooError, match=r"there is no folder ram://bucket/nowhere"):
        fetched("ram://bucket/nowhere", tmp_path)
    with pytest.raises(KzooError, match="cannot read ram://bucket/nowhere: No such file"):
        fetch_file("ram://bucket/nowhere", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", ["../outside", "/etc/outside"])
def test_a_listing_cannot_name_files_outside(name, published, tmp_path):
    listing = json.loads(remote.read_bytes(f"{published}/{LISTING_FILE}"))
    listing["files"][name] = listing["files"]["a.bin"]
    ram.write(published, {LISTING_FILE: json.dumps(listing).encode()})
    with pytest.raises(KzooError, match="which is outside of its folder"):
        fetched(published, tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format_version": 1, "files": {"a": {}}}'])
def test_a_damaged_listing_is_named(content, published, tmp_path):
    ram.write(published, {LISTING_FILE: content})
    with pytest.raises(KzooError, match=f"{LISTING_FILE} is damaged"):
        fetched(published, tmp_path)


def test_a_full_disk_is_noticed_before_anything_is_copied(published, tmp_path, monkeypatch, copied):
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(KzooError, match=r"no room for a copy of .*runtime\.cache_dir or --cache_d"):
        fetched(published, tmp_path)
    assert not copied


def test_a_cache_that_cannot_be_written_is_one_clear_error(published, tmp_path):
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(KzooError, match=r"cannot copy .* set runtime\.cache_dir or --cache_dir"):
        fetched(published, tmp_path)
