"""What trials left, written to disk: everything that is ours, nothing that is an attack."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.client.canned import RUN
from tests.unit.client.scripted_tracker import Answer, ScriptedTracker
from valkyrie.client import ValkyrieClient
from valkyrie.client.files import OutputsWriter
from valkyrie.errors import InfrastructureError, UserError

Entry = tuple[str, bytes | str | None]
"""A name, and content; a text is where a link leads, None a folder."""


def member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.size, made.linkname, made.mode, made.mtime = kind, size, link, 0o6777, 1_600_000_000
    return made


def tar(*entries: Entry | tarfile.TarInfo, mode: str = "w") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:  # type: ignore[call-overload]
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                archive.addfile(entry)
                continue
            name, content = entry
            if isinstance(content, bytes):
                archive.addfile(member(name, size=len(content)), io.BytesIO(content))
            elif content is None:
                archive.addfile(member(name, tarfile.DIRTYPE))
            else:
                archive.addfile(member(name, tarfile.SYMTYPE, link=content))
    return made.getvalue()


def nested(*entries: Entry | tarfile.TarInfo) -> bytes:
    return tar(*entries, mode="w:gz")


async def test_outputs_of_a_run(client: ValkyrieClient, tracker: ScriptedTracker, tmp_path: Path) -> None:
    left = nested(("answer.txt", b"42"), ("deep/er", b"x"), ("here", "deep/er"), ("deep/up", "../answer.txt"))
    whole = tar(
        ("a%2Fb/attempt.log", b"log"),
        ("a%2Fb/agent_output.tar.gz", left),
        ("a%2Fb/artifacts/1/kept", b"k"),
        ("a%2Fb/1/attempt.log", b"second"),
        ("c/attempt.log", b""),
    )
    tracker.on(
        "POST", f"/v1/runs/{RUN}/outputs", Answer([whole[:700]], cut=True), Answer([whole[:9], whole[9:]])
    )
    folder = tmp_path / "new" / "outputs"
    paths = await client.outputs(RUN, folder, task_ids=["a/b", "c"])
    assert paths == [folder / "a%2Fb", folder / "a%2Fb" / "1", folder / "c"]
    assert (folder / "a%2Fb" / "agent_output" / "deep" / "up").read_text() == "42"
    assert (folder / "a%2Fb" / "agent_output" / "here").read_text() == "x"
    assert (folder / "a%2Fb" / "1" / "attempt.log").read_text() == "second"
    assert not (folder / "a%2Fb" / "agent_output.tar.gz").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new"]
    assert tracker.asked[-1].json == {"task_ids": ["a/b", "c"]}


async def test_a_run_without_outputs(
    client: ValkyrieClient, tracker: ScriptedTracker, tmp_path: Path
) -> None:
    tracker.on("POST", f"/v1/runs/{RUN}/outputs", Answer([tar()]))
    assert await client.outputs(RUN, tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


async def test_bytes_that_are_no_archive(
    client: ValkyrieClient, tracker: ScriptedTracker, tmp_path: Path
) -> None:
    tracker.on("POST", f"/v1/runs/{RUN}/outputs", Answer([b"<html>" * 200]))
    with pytest.raises(InfrastructureError, match="damaged"):
        await client.outputs(RUN, tmp_path / "none")


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "", "a\0b", "a/.."])
def test_names_that_lead_out(tmp_path: Path, name: str) -> None:
    writer = OutputsWriter(tmp_path / "out")
    with pytest.raises(UserError, match="no name"):
        writer.write(Path("task"), name, [b"x"])
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("folder", [Path(".."), Path("/tmp"), Path("a/../.."), Path()])
def test_folders_that_lead_out(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UserError, match="no name"):
        OutputsWriter(tmp_path / "out").write(folder, "x", [b"x"])


def test_nothing_is_written_through_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    out = tmp_path / "out"
    (out / "task").mkdir(parents=True)
    (out / "task" / "artifacts").symlink_to(outside)
    (out / "task" / "attempt.log").symlink_to(outside / "file")
    writer = OutputsWriter(out)
    with pytest.raises(UserError, match="is a link"):
        writer.write(Path("task"), "artifacts/new", [b"x"])
    with pytest.raises(InfrastructureError, match="cannot be written"):
        writer.write(Path("task"), "attempt.log", [b"x"])
    assert (outside / "file").read_text() == "mine" and [*outside.iterdir()] == [outside / "file"]


def test_an_earlier_copy_gives_way(tmp_path: Path) -> None:
    folder = unpacked(tmp_path, ("x", b"first"), ("old", b"o")) / "agent_output"
    unpacked(tmp_path, ("x", b"second"))
    assert (folder / "x").read_bytes() == b"second" and not (folder / "old").exists()
    unpacked(tmp_path, ("../x", b"third"))
    names = ["agent_output.not-unpacked.txt", "agent_output.tar.gz"]
    assert sorted(path.name for path in folder.parent.iterdir()) == names
    unpacked(tmp_path, ("x", b"fourth"))
    assert [path.name for path in folder.parent.iterdir()] == ["agent_output"]


def unpacked(tmp_path: Path, *entries: Entry | tarfile.TarInfo, raw: bytes | None = None) -> Path:
    writer = OutputsWriter(tmp_path / "out")
    writer.write(Path("t"), "agent_output.tar.gz", [nested(*entries) if raw is None else raw])
    assert writer.close() == [tmp_path / "out" / "t"]
    return tmp_path / "out" / "t"


def test_modes_and_times(tmp_path: Path) -> None:
    folder = unpacked(tmp_path, ("run.sh", b"#!"), ("empty", None)) / "agent_output"
    status = (folder / "run.sh").stat()
    assert status.st_mode & 0o6000 == 0 and status.st_mode & 0o111 and status.st_mtime == 1_600_000_000
    assert (folder / "empty").is_dir()


@pytest.mark.parametrize(
    "link", ["/etc/passwd", "../../secret", "..", "deep/../../../secret", "deep/..", "x/../../.."]
)
def test_links_that_lead_out_are_left_out(tmp_path: Path, link: str) -> None:
    folder = unpacked(tmp_path, ("bad", link), ("good", b"x"), ("deep/f", b"y"), ("ok", "deep/f"))
    assert not os.path.lexists(folder / "agent_output" / "bad")
    assert (folder / "agent_output" / "ok").read_text() == "y"


def test_a_link_and_what_it_is_not_written_through(tmp_path: Path) -> None:
    folder = unpacked(tmp_path, ("a", "deep"), ("a/inner", "file"), ("deep/file", b"y"))
    assert (folder / "agent_output.tar.gz").is_file() and not (folder / "agent_output").exists()
    assert "was left as it is" in (folder / "agent_output.not-unpacked.txt").read_text()


def test_links_of_links_stay_inside(tmp_path: Path) -> None:
    """A link that leads up, and one through it: together they would lead out."""
    (tmp_path / "out" / "secret").parent.mkdir()
    (tmp_path / "out" / "secret").write_text("s")
    entries: list[Entry] = [("d/e/f", b"x"), ("d/e/up", "../.."), ("out", "d/e/up/../../secret")]
    folder = unpacked(tmp_path, *entries) / "agent_output"
    assert not os.path.lexists(folder / "out")
    assert (folder / "d" / "e" / "up").resolve() == folder.resolve()


HARD = member("hard", tarfile.LNKTYPE, link="real")


def test_hard_links_are_files_of_the_archive(tmp_path: Path) -> None:
    folder = unpacked(tmp_path, HARD, ("real", b"x")) / "agent_output"
    assert (folder / "hard").read_text() == "x" and not (folder / "hard").is_symlink()


@pytest.mark.parametrize(
    "entries",
    [
        [("../x", b"out")],
        [("/tmp/x", b"out")],
        [("a/../../x", b"out")],
        [member("pipe", tarfile.FIFOTYPE)],
        [member("disk", tarfile.BLKTYPE)],
        [member("hard", tarfile.LNKTYPE, link="../../../etc/passwd")],
        [member("hard", tarfile.LNKTYPE, link="nothing")],
        [("soft", "real"), member("hard", tarfile.LNKTYPE, link="soft"), ("real", b"x")],
        [("same", b"1"), ("same", b"2")],
        [("same", b"1"), ("same/below", b"2")],
        [("x" * 5000, b"1")],
    ],
    ids=[
        "up",
        "absolute",
        "up-later",
        "pipe",
        "disk",
        "hard-out",
        "hard-none",
        "hard-soft",
        "twice",
        "both",
        "long",
    ],
)
def test_archives_that_are_left_packed(tmp_path: Path, entries: list[Entry | tarfile.TarInfo]) -> None:
    folder = unpacked(tmp_path, *entries)
    assert sorted(path.name for path in folder.iterdir()) == [
        "agent_output.not-unpacked.txt",
        "agent_output.tar.gz",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[: len(raw) // 2], lambda raw: b"no archive", lambda raw: b""]
)
def test_damaged_archives(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    raw = nested(("x", os.urandom(5000)), ("y", os.urandom(5000)))
    folder = unpacked(tmp_path, raw=damage(raw))
    assert "damaged" in (folder / "agent_output.not-unpacked.txt").read_text()
    assert not (folder / "agent_output").exists()


@pytest.mark.parametrize(("limit", "value"), [("MOST_BYTES", 1000), ("MOST_ENTRIES", 3)])
def test_archives_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(f"valkyrie.client.files.{limit}", value)
    folder = unpacked(tmp_path, *((str(number), b"x" * 300) for number in range(4)))
    assert "more than" in (folder / "agent_output.not-unpacked.txt").read_text()
