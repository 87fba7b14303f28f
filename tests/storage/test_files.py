"""What is asked of files, wherever they are."""

import errno
import os

import pytest

from kzoo.errors import KzooError
from kzoo.storage import files
from tests.storage import ram


def test_a_pipe_is_refused_rather_than_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe-de.txt")
    with pytest.raises(KzooError, match=r"pipe-de\.txt: it is a pipe or a device"):
        files.stat(str(tmp_path / "pipe-de.txt"))


def test_local_and_remote_files_are_alike(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "file").write_bytes(b"text")
    folder = ram.new_folder()
    ram.write(folder, {"below/file": b"text"})
    for where in (str(tmp_path), folder):
        assert files.names(where) == ["below"]
        assert files.names(f"{where}/nothing") == []
        assert files.exists(f"{where}/below")
        assert files.is_folder(f"{where}/below")
        assert not files.is_folder(f"{where}/below/file")
        assert not files.exists(f"{where}/nothing")
        assert files.stat(f"{where}/below/file").size_bytes == 4
        with files.open_binary(f"{where}/below/file") as stream:
            assert stream.read() == b"text"
        for look in (files.stat, files.open_binary):
            with pytest.raises(KzooError, match=f"cannot read {where}/nothing: No such file"):
                look(f"{where}/nothing")


def test_what_cannot_be_asked_about_is_not_taken_for_absent(tmp_path, monkeypatch):
    def fails(path, **_):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)

    monkeypatch.setattr(os, "stat", fails)
    for look in (files.exists, files.is_folder):
        with pytest.raises(KzooError, match=f"cannot read {tmp_path}: Stale file handle"):
            look(str(tmp_path))
