"""Archives of carried work: what `tarfile` reads of ours, and what we read of its."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from sandboxes.errors import SandboxError
from sandboxes.work_archive import TAR_FILE, TAR_FOLDER, TAR_LINK, ArchiveWriter, TarMember, read_members

LONG = "/".join(["folder" * 5] * 6)
ODD = os.fsdecode(b"b\xffd/" + b"x\xfe" * 80)
MEMBERS = [
    TarMember("app", TAR_FOLDER, 0o755, 0, 0, 1_700_000_000_123_456_789),
    TarMember("app/file", TAR_FILE, 0o640, 1234, 4321, 1_700_000_000_000_000_000, 5),
    TarMember("app/empty", TAR_FILE, 0o1644, 0, 0, 1),
    TarMember("app/link", TAR_LINK, 0o777, 7, 8, 10**9, link="../tests"),
    TarMember(LONG, TAR_FILE, size=5),
    TarMember("long-link", TAR_LINK, link=LONG),
    TarMember(ODD, TAR_FILE, size=5),
    TarMember("ümläut", TAR_FILE, size=5),
]


def write(path: Path, content: Path) -> None:
    content.write_bytes(b"hello")
    with path.open("wb") as out, content.open("rb") as file:
        writer = ArchiveWriter(out.fileno())
        for member in MEMBERS:
            file.seek(0)
            os.lseek(file.fileno(), 0, os.SEEK_SET)
            writer.add(member, file.fileno())
        writer.close()


def test_tarfile_reads_ours(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", tmp_path / "content")
    with tarfile.open(tmp_path / "a.tar") as archive:
        found = archive.getmembers()
        assert [member.name for member in found] == [member.name for member in MEMBERS]
        for theirs, ours in zip(found, MEMBERS, strict=True):
            assert (theirs.mode, theirs.uid, theirs.gid) == (ours.mode, ours.uid, ours.gid)
            assert (theirs.size, theirs.linkname) == (ours.size, ours.link)
            assert theirs.mtime == pytest.approx(ours.mtime_ns / 10**9)
            if ours.size:
                file = archive.extractfile(theirs)
                assert file is not None and file.read() == b"hello"


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", tmp_path / "content")
    with (tmp_path / "a.tar").open("rb") as file:
        found = list(read_members(file))
        content = [os.pread(file.fileno(), member.size, member.offset) for member in found if member.size]
    plain = [{**_fields(member), "offset": 0} for member in found]
    assert plain == [_fields(member) for member in MEMBERS]
    assert content == [b"hello"] * 4


def _fields(member: TarMember) -> dict[str, object]:
    return {name: getattr(member, name) for name in TarMember.__slots__}


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_what_tarfile_writes_is_read(tmp_path: Path, form: int) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=form) as archive:
        for name in ("./app", LONG[:200], "file"):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = 5, 1_700_000_000
            archive.addfile(member, io.BytesIO(b"hello"))
    with (tmp_path / "a.tar").open("rb") as file:
        found = list(read_members(file))
    assert [member.name for member in found] == ["app", LONG[:200], "file"]
    assert {(member.size, member.mtime_ns) for member in found} == {(5, 1_700_000_000 * 10**9)}


def test_a_file_that_got_shorter_is_filled_up(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"ab")
    with (tmp_path / "a.tar").open("wb") as out, (tmp_path / "short").open("rb") as file:
        writer = ArchiveWriter(out.fileno())
        writer.add(TarMember("short", TAR_FILE, size=3_000_000), file.fileno())
        writer.add(TarMember("next", TAR_FILE))
        writer.close()
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert archive.getnames() == ["short", "next"]


def test_other_kinds_are_refused(tmp_path: Path) -> None:
    for kind in (tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.LNKTYPE, tarfile.BLKTYPE):
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            member = tarfile.TarInfo("odd")
            member.type = kind
            archive.addfile(member)
        with (tmp_path / "a.tar").open("rb") as file, pytest.raises(SandboxError, match="odd"):
            list(read_members(file))
