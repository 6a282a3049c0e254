"""Bundles: what is sent, and archives nobody should trust."""

from __future__ import annotations

import io
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmark_runner.agent_bundle.bundle import digest_folder
from benchmark_runner.sandbox.setup import load_bundle, pack_bundle


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


def test_the_platform_and_the_runner_pack_the_same_files(agent: Path, tmp_path: Path) -> None:
    (agent / ".valkyrieignore").write_text("*.log\n/results\n")
    (agent / "lib" / "run.log").write_text("private")
    (agent / "results").mkdir()
    (agent / "results" / "score.json").write_text("{}")
    (agent / "lib2").symlink_to("lib")
    (agent / "empty").mkdir()
    unpacked = pack_bundle(agent, "mine").unpack(tmp_path / "out")
    found = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*")}
    assert found == {".valkyrieignore", "run.sh", "lib", "lib/code.py", "lib2", "lib2/code.py", "empty"}
    assert digest_folder(unpacked) == digest_folder(agent)


def test_the_limits_are_the_platforms(agent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ARCHIVE_MAX_ENTRIES", "1")
    with pytest.raises(ValueError, match="raise it with AGENT_ARCHIVE_MAX_ENTRIES"):
        pack_bundle(agent, "mine")
    monkeypatch.setenv("AGENT_ARCHIVE_MAX_ENTRIES", "many")
    with pytest.raises(ValueError, match="whole number above 0"):
        pack_bundle(agent, "mine")


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
    with pytest.raises(ValueError, match="does not exist"):
        load_bundle(tmp_path / "none.zip")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda a: (a / "out").symlink_to("/etc/passwd"), "outside the agent's folder"),
        (lambda a: (a / "key").symlink_to(a / ".env"), "never bundled"),
        (lambda a: (a / "gone").symlink_to(a / "nothing"), "link to nothing"),
        (lambda a: (a / "folder").symlink_to("/etc"), "outside the agent's folder"),
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
        (b"no zip", "no usable zip"),
        (archive(("a/../../etc/x", b"")), "no plain relative path"),
        (archive(("/etc/x", b"")), "no plain relative path"),
        (archive(("a\\b/c", b"")), "no plain relative path"),
        (archive(("a//b", b"")), "no plain relative path"),
        (archive(("top.py", b"")), "outside the one top folder"),
        (archive(("a/x", b""), ("b/x", b"")), "must hold one top folder"),
        (archive(("a/x", b""), ("a/x/y", b"")), "both a file and a folder"),
        (archive(("a/x/y", b""), ("a/x", b"")), "both a file and a folder"),
        (archive(("a/x", b"/etc"), mode=stat.S_IFLNK | 0o777), "link or special file"),
        (archive(("a/", b"")), "must hold one top folder"),
    ],
)
def test_an_archive_is_checked_before_it_is_unpacked(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=said):
        load_bundle(path)


def test_an_archive_that_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ARCHIVE_MAX_EXPANDED_BYTES", "100000")
    path = tmp_path / "a.zip"
    path.write_bytes(archive(("a/zeros", bytes(10_000_000))))
    assert path.stat().st_size < 100_000
    with pytest.raises(ValueError, match="unpacks to too much"):
        load_bundle(path)
