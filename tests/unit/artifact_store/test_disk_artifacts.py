"""A folder of artifacts that others can write to: links lead nowhere, leftovers are swept."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from valkyrie.artifact_store.disk import DiskArtifacts
from valkyrie.errors import UnknownError, UsageError, UserError


@pytest.fixture
def store(tmp_path: Path) -> DiskArtifacts:
    return DiskArtifacts(tmp_path / "kept")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text("hush")
    return folder


def test_links_to_files_are_nothing(store: DiskArtifacts, outside: Path, tmp_path: Path) -> None:
    store.put_text("run/real", "x")
    (store.folder / "run" / "link").symlink_to(outside / "secret")
    assert store.find("run/link") is None
    assert [artifact.key for artifact in store.list("")] == ["run/real"]
    for act in (
        lambda: b"".join(store.read("run/link")),
        lambda: store.get("run/link", tmp_path / "got"),
        lambda: store.copy("run/link", "copy"),
    ):
        with pytest.raises(UnknownError):
            act()
    store.put_text("run/link", "ours")
    assert (outside / "secret").read_text() == "hush"
    assert b"".join(store.read("run/link")) == b"ours"


def test_links_to_folders_are_not_entered(store: DiskArtifacts, outside: Path) -> None:
    store.put_text("run/real", "x")
    (store.folder / "link").symlink_to(outside)
    (store.folder / "run" / "up").symlink_to(outside)
    assert store.find("link/secret") is None
    assert [artifact.key for artifact in store.list("")] == ["run/real"]
    for key in ("link/planted", "run/up/planted"):
        with pytest.raises(UserError):
            store.put_text(key, "x")
    store.delete("link/")
    store.delete("link/secret")
    store.delete("run/")
    assert [file.name for file in outside.iterdir()] == ["secret"]


def test_pipes_do_not_hold_a_reader(store: DiskArtifacts) -> None:
    store.put_text("run/real", "x")
    os.mkfifo(store.folder / "run" / "pipe")
    assert store.find("run/pipe") is None
    with pytest.raises(UnknownError):
        b"".join(store.read("run/pipe"))


def test_the_store_own_things_are_no_artifacts(store: DiskArtifacts, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    store.put("a", tmp_path / "file", {"digest": "1"})
    assert (store.folder / ".valkyrie").is_dir()
    for key in (".valkyrie/metadata/a", ".valkyrie/parts/x", ".valkyrie"):
        with pytest.raises(UsageError):
            store.put_text(key, "x")
        with pytest.raises(UsageError):
            store.find(key)
    with pytest.raises(UsageError):
        store.delete(".valkyrie/")
    assert [artifact.key for artifact in store.list("")] == ["a"]
    with pytest.raises(UsageError):
        list(store.list(".valkyrie/metadata/"))


def test_metadata_goes_with_its_object(store: DiskArtifacts, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    store.put("run/a", tmp_path / "file", {"digest": "1"})
    store.delete("run/")
    assert not list((store.folder / ".valkyrie" / "metadata").rglob("*"))
    store.put_text("run/a", "y")
    found = store.find("run/a")
    assert found is not None and found.metadata is None


def test_damaged_metadata_is_none(store: DiskArtifacts, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for damage in ("", "[]", '{"size": 1}', "null"):
        store.put("a", tmp_path / "file", {"digest": "1"})
        (store.folder / ".valkyrie" / "metadata" / "a").write_text(damage)
        found = store.find("a")
        assert found is not None and found.metadata is None


def test_what_killed_programs_left_is_swept(store: DiskArtifacts) -> None:
    store.put_text("a", "x")
    parts = store.folder / ".valkyrie" / "parts"
    for name, age in (("old", 2 * 86_400), ("new", 60)):
        (parts / name).write_text("half")
        os.utime(parts / name, (time.time() - age,) * 2)
    store.check()
    assert [part.name for part in parts.iterdir()] == ["new"]


def test_a_folder_where_an_object_belongs(store: DiskArtifacts) -> None:
    store.put_text("a/b", "x")
    with pytest.raises(UserError, match="Cannot keep"):
        store.put_text("a", "x")
    with pytest.raises(UserError, match="Cannot keep"):
        store.put_text("a/b/c", "x")
    assert [artifact.key for artifact in store.list("")] == ["a/b"]
    assert not list((store.folder / ".valkyrie" / "parts").iterdir())


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="file"):
        DiskArtifacts(tmp_path / "file").check()
    assert list(DiskArtifacts(tmp_path / "nowhere").list("")) == []


def test_emptied_folders_go(store: DiskArtifacts) -> None:
    store.put_text("runs/1/deep/er/file", "x")
    store.delete("runs/1/deep/er/file")
    assert [entry.name for entry in store.folder.iterdir()] == [".valkyrie"]
