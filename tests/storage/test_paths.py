"""What is a path of this machine, what is a URL, and what is neither."""

import os
import tempfile

import pytest

from kzoo.errors import KzooError
from kzoo.storage.paths import cache_folder, clean, default_cache_dir, folder_name, is_remote


@pytest.mark.parametrize(
    ("path", "remote", "cleaned"),
    [
        ("data/mini", False, "data/mini"),
        ("file:///data/mini", False, "/data/mini"),
        ("gs://bucket/data/mini", True, "gs://bucket/data/mini"),
        ("gs://bucket", True, "gs://bucket"),
    ],
)
def test_only_urls_of_other_places_are_remote(path, remote, cleaned):
    assert is_remote(path) == remote
    assert clean(path) == cleaned


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("file://data/mini", "behind file:// comes a path from the root"),
        ("://bucket/data", "no URL"),
        ("gs:///data", "no URL"),
    ],
)
def test_half_a_url_is_a_clear_error(path, message):
    with pytest.raises(KzooError, match=message):
        clean(path)


def test_a_folder_to_write_is_named_without_a_slash(tmp_path):
    assert folder_name(tmp_path / "examples") == str(tmp_path / "examples")
    assert folder_name("data/mini/") == "data/mini"
    assert folder_name("file:///data/mini/") == "/data/mini"
    assert folder_name("gs://bucket/run/") == "gs://bucket/run"


@pytest.mark.parametrize("path", ["", "/", "file:///"])
def test_a_folder_has_a_name(path):
    with pytest.raises(KzooError, match="expected the name of a folder, received "):
        folder_name(path)


@pytest.mark.parametrize("path", ["gs://bucket", "s3://bucket//"])
def test_beside_a_bucket_nothing_can_be_written(path):
    with pytest.raises(KzooError, match=f"expected a folder in the bucket; received {path}"):
        folder_name(path)


def test_copies_are_kept_on_this_machine():
    assert cache_folder("file:///disk/cache") == "/disk/cache"
    with pytest.raises(
        KzooError, match="cache_dir: expected a folder of this machine; received gs"
    ):
        cache_folder("gs://bucket/cache")


def test_a_name_in_another_encoding_is_refused():
    with pytest.raises(KzooError, match="the name caf\ufffd is not utf-8"):
        folder_name(os.fsdecode(b"caf\xe9"))


def test_copies_are_kept_in_the_cache_of_the_user(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/disk/cache")
    assert default_cache_dir() == "/disk/cache/kzoo"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_cache_dir() == "/home/me/.cache/kzoo"
    monkeypatch.setenv("HOME", "nowhere")
    assert default_cache_dir().startswith(f"{tempfile.gettempdir()}/user-")
