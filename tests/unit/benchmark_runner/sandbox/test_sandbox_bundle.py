"""Bundles: what is sent, and archives nobody should trust."""

from __future__ import annotations

import io
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmark_runner.sandbox import bundle
from benchmark_runner.sandbox.bundle import load_bundle, pack_bundle


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    folder = tmp_path / "agent"
    (folder / "lib" / "__pycache__").mkdir(parents=True)
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "lib" / "code.py").write_text("x = 1\n")
    (folder / "lib" / "__pycache__" / "code.pyc").write_bytes(b"x")
    (folder / ".env").write_text("KEY=secret")
    return folder


def archive(*entries: tuple[str, bytes], mode: int = 0) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(info, content)
    return made.getvalue()


def test_a_folder_is_sent_without_what_machines_and_keys_leave(agent: Path, tmp_path: Path) -> None:
    packed = pack_bundle(agent, "mine")
    assert packed.place == "/bundle/mine"
    unpacked = packed.unpack(tmp_path / "out")
    found = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    assert found == {"run.sh", "lib/code.py"}
    assert (unpacked / "run.sh").stat().st_mode & 0o111 and not (
        unpacked / "lib" / "code.py"
    ).stat().st_mode & 0o111


def test_the_same_files_give_the_same_digest(agent: Path) -> None:
    before = pack_bundle(agent, "mine")
    (agent / "run.sh").touch()
    assert pack_bundle(agent, "mine").sha256 == before.sha256
    (agent / "run.sh").chmod(0o644)
    assert pack_bundle(agent, "mine").sha256 != before.sha256


def test_a_file_is_the_one_that_was_pinned(agent: Path, tmp_path: Path) -> None:
    packed = pack_bundle(agent, "mine")
    path = tmp_path / "a.zip"
    path.write_bytes(packed.content)
    assert load_bundle(path, packed.sha256) == packed
    with pytest.raises(ValueError, match="not the bundle that was pinned"):
        load_bundle(path, "0" * 64)
    with pytest.raises(ValueError, match="No such file"):
        load_bundle(tmp_path / "none.zip")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda a: (a / "out").symlink_to("/etc/passwd"), "not sent"),
        (lambda a: (a / "key").symlink_to(a / ".env"), "not sent"),
        (lambda a: (a / "gone").symlink_to(a / "nothing"), "links to nothing"),
        (lambda a: (a / "folder").symlink_to("/etc"), "links to a folder"),
        (lambda a: (a / "new\nline").write_text(""), "rename it"),
    ],
)
def test_what_cannot_be_sent(agent: Path, make: Callable[[Path], object], said: str) -> None:
    make(agent)
    with pytest.raises(ValueError, match=said):
        pack_bundle(agent, "mine")


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no files to send"):
        pack_bundle(tmp_path, "mine")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no zip", "no zip"),
        (archive(("a/../../etc/x", b"")), "no path below"),
        (archive(("/etc/x", b"")), "no path below"),
        (archive(("a\\b/c", b"")), "no path below"),
        (archive(("a//b", b"")), "no path below"),
        (archive(("top.py", b"")), "not in the agent's folder"),
        (archive(("a/x", b""), ("b/x", b"")), "exactly one folder"),
        (archive(("a/x", b""), ("a/x/y", b"")), "twice"),
        (archive(("a/x/y", b""), ("a/x", b"")), "twice"),
        (archive(("a/x", b"/etc"), mode=stat.S_IFLNK | 0o777), "neither file nor folder"),
        (archive(("a/", b"")), "exactly one folder"),
    ],
)
def test_an_archive_is_checked_before_it_is_unpacked(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=said):
        load_bundle(path)


def test_an_archive_that_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MOST_BYTES", 100_000)
    path = tmp_path / "a.zip"
    path.write_bytes(archive(("a/zeros", bytes(10_000_000))))
    assert path.stat().st_size < 100_000
    with pytest.raises(ValueError, match="too large"):
        load_bundle(path)
