"""Remote files read as local ones do, and fail as local ones do."""

import os

import pytest

from kzoo.errors import KzooError
from kzoo.storage import remote
from tests.storage import ram


@pytest.fixture
def folder():
    return ram.new_folder()


def test_a_remote_file_is_read_as_a_local_one(folder, tmp_path):
    content = os.urandom(3_000_000)
    ram.write(folder, {"file": content})
    (tmp_path / "file").write_bytes(content)

    def look(stream):
        yield stream.read(10)
        yield stream.seek(-7, os.SEEK_END), stream.tell(), stream.read()
        yield stream.seek(2_000_000), stream.read(5), stream.seek(-100, os.SEEK_CUR)
        yield stream.read(2_000_000), stream.read(1)

    with remote.open_binary(f"{folder}/file") as there, open(tmp_path / "file", "rb") as here:
        assert list(look(there)) == list(look(here))


def test_files_are_listed_by_their_paths(folder):
    files = {"a": b"1", "b/c": b"22", "b/d/e": b"", ".hidden": b"333"}
    ram.write(folder, files)
    # A name that goes on where the folder's ends.
    ram.write(folder + ".partial", {"f": b"4444"})
    assert ram.read(folder) == files
    assert {name: stat.size_bytes for name, stat in remote.list_files(folder).items()} == {
        name: len(content) for name, content in files.items()
    }
    assert remote.names(folder) == [".hidden", "a", "b"]
    remote.remove_folder(folder)
    assert ram.read(folder) == {}
    assert ram.read(folder + ".partial") == {"f": b"4444"}


def test_what_is_written_again_is_not_written_behind(folder, tmp_path):
    for content in (b"a long text", b"short", b""):
        (tmp_path / "file").write_bytes(content)
        size, _ = remote.copy_to(str(tmp_path / "file"), f"{folder}/file")
        assert size == len(content)
        assert remote.read_bytes(f"{folder}/file") == content


def test_a_file_that_is_not_there_is_said_so(folder):
    for look in (remote.open_binary, remote.stat, remote.names):
        with pytest.raises(FileNotFoundError) as error:
            look(f"{folder}/nothing")
        assert error.value.filename == f"{folder}/nothing"
    assert not remote.exists(f"{folder}/nothing")
    assert remote.list_files(folder) == {}
    remote.remove(f"{folder}/nothing")


def test_an_unknown_storage_is_named_with_those_that_there_are():
    with pytest.raises(KzooError, match=r"no storage foo://, only file://, gs://, ram://; mend "):
        remote.exists("foo://bucket/data")


def test_the_first_failure_of_many_requests_ends_them():
    seen = []

    def request(number):
        seen.append(number)
        raise OSError(number)

    with pytest.raises(OSError, match="0"):
        remote.at_once(request, range(10_000))
    assert len(seen) < 10_000


@pytest.mark.parametrize(
    "look", [remote.exists, remote.is_folder, remote.names, remote.list_files, remote.remove_folder]
)
def test_what_cannot_be_asked_about_is_not_taken_for_absent(folder, monkeypatch, look):
    ram.write(folder, {"a": b"1", "below/b": b"2"})
    with monkeypatch.context() as away:
        ram.cut_off(away, folder + "/below")
        if look in (remote.list_files, remote.remove_folder):
            with pytest.raises(OSError, match="the network is away"):
                look(folder)
        with pytest.raises(OSError, match="the network is away"):
            look(folder + "/below")
    assert ram.read(folder) == {"a": b"1", "below/b": b"2"}
