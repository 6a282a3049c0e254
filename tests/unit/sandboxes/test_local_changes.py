"""What a local sandbox changed is listed although something in it is still being removed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from sandboxes.local.changes import InitialRoot, OverlayChanges, OverlayLayer, PrivateRoot
from sandboxes.work import Difference, FolderLister

Differs = Callable[[Path], AbstractContextManager[Difference]]


@contextmanager
def opened(*folders: Path) -> Iterator[list[int]]:
    fds = [os.open(folder, os.O_RDONLY | os.O_DIRECTORY) for folder in folders]
    try:
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


@contextmanager
def overlay(root: Path) -> Iterator[Difference]:
    lower = root.parent / "lower"
    lower.mkdir()
    with opened(root.parent, lower) as (box, below):
        yield OverlayChanges(box, [OverlayLayer("", root.name, below)], frozenset(), os.getuid())


@contextmanager
def private(root: Path) -> Iterator[Difference]:
    with opened(root) as (fd,):
        yield PrivateRoot(fd, InitialRoot({}, {}, {}))


@pytest.mark.parametrize("differs", [overlay, private], ids=["overlay", "private root"])
@pytest.mark.parametrize("vanishing", ["session/queue", "session"])
def test_what_vanishes_meanwhile_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, differs: Differs, vanishing: str
) -> None:
    root = tmp_path / "root"
    (root / "session").mkdir(parents=True)
    os.mkfifo(root / "session" / "queue")
    (root / "work").write_text("kept")
    listed = FolderLister.entries

    def entries(lister: FolderLister, fd: int) -> list[os.DirEntry[str]]:
        found = listed(lister, fd)
        gone = root / vanishing
        if any(entry.name == gone.name for entry in found):  # between the listing and the look at it
            shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        return found

    monkeypatch.setattr(FolderLister, "entries", entries)
    with differs(root) as difference:
        paths = [entry.path for entry in difference.entries()]
    assert paths == (["/session", "/work"] if vanishing == "session/queue" else ["/work"])
