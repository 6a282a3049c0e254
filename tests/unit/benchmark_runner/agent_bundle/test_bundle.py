"""Packing the same way every time; unpacking without trust."""

from __future__ import annotations

import io
import os
import stat
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark_runner.agent_bundle.bundle import digest_archive, digest_folder, pack, read_contract, unpack
from benchmark_runner.errors import BundleError, UsageError


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    folder = tmp_path / "agent"
    (folder / "lib").mkdir(parents=True)
    (folder / "contract.yaml").write_text("name: a\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "lib" / "native.so").write_bytes(b"\x7fELF" * 1000)
    (folder / "empty").mkdir()
    return folder


def names(archive: Path) -> list[str]:
    return zipfile.ZipFile(archive).namelist()


def test_round_trip(agent: Path, tmp_path: Path) -> None:
    digest = pack(agent, "hello", tmp_path / "a.zip")
    assert names(tmp_path / "a.zip") == [
        "hello/contract.yaml", "hello/empty/", "hello/lib/native.so", "hello/run.sh",
    ]  # fmt: skip
    out = tmp_path / "deep" / "out"
    assert (
        unpack(tmp_path / "a.zip", out)
        == digest
        == digest_folder(agent)
        == digest_archive(tmp_path / "a.zip")
    )
    assert (out / "lib/native.so").read_bytes() == (agent / "lib/native.so").read_bytes()
    assert stat.S_IMODE((out / "run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((out / "contract.yaml").stat().st_mode) == 0o644
    assert (out / "empty").is_dir()
    assert digest_folder(out) == digest
    assert read_contract(tmp_path / "a.zip") == ("contract.yaml", "name: a\n")
    assert [item.name for item in out.parent.iterdir()] == ["out"], "no temporary folder is left"


def test_the_same_content_gives_the_same_bytes(agent: Path, tmp_path: Path) -> None:
    first = pack(agent, "x", tmp_path / "1.zip")
    os.utime(agent / "run.sh", (1, 1))
    (agent / "contract.yaml").chmod(0o600)
    assert pack(agent, "x", tmp_path / "2.zip") == first
    assert (tmp_path / "1.zip").read_bytes() == (tmp_path / "2.zip").read_bytes()
    assert pack(agent, "other-name", tmp_path / "3.zip") == first, "the top folder's name is no content"


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "run.sh").write_text("#!/bin/bash\n"),
        lambda folder: (folder / "run.sh").chmod(0o644),
        lambda folder: (folder / "run.sh").rename(folder / "run2.sh"),
        lambda folder: (folder / "new").touch(),
        lambda folder: (folder / "empty").rmdir(),
    ],
)
def test_every_change_changes_the_digest(agent: Path, change: Callable[[Path], object]) -> None:
    before = digest_folder(agent)
    change(agent)
    assert digest_folder(agent) != before


def test_what_is_left_out_and_what_is_not(agent: Path, tmp_path: Path) -> None:
    before = digest_folder(agent)
    for name in ("lib/__pycache__/m.pyc", ".git/config", ".venv/bin/x", "lib/venv/x", ".env", ".env.local",
                 "a.egg-info/PKG", "m.pyc", "m.pyo", "m.pyd", ".DS_Store"):  # fmt: skip
        (agent / name).parent.mkdir(parents=True, exist_ok=True)
        (agent / name).write_text("SECRET=1")
    assert digest_folder(agent) == before
    for name in (".gitignore", "my_venv.py", ".envrc", "x.env", "pycache"):
        (agent / name).touch()
    pack(agent, "a", tmp_path / "a.zip")
    assert {"a/.gitignore", "a/my_venv.py", "a/.envrc", "a/x.env", "a/pycache"} <= set(
        names(tmp_path / "a.zip")
    )


def test_links_inside_become_what_they_point_to(agent: Path, tmp_path: Path) -> None:
    (agent / "link").symlink_to("run.sh")
    (agent / "lib2").symlink_to(agent / "lib")
    pack(agent, "a", tmp_path / "a.zip")
    unpack(tmp_path / "a.zip", tmp_path / "out")
    assert (tmp_path / "out/link").read_text() == "#!/bin/sh\n"
    assert not (tmp_path / "out/link").is_symlink()
    assert (tmp_path / "out/lib2/native.so").is_file()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda f: (f / "l").symlink_to("/etc/passwd"), "l links to /etc/passwd, outside"),
        (lambda f: (f / "l").symlink_to("../other"), "link to nothing"),
        (lambda f: (f / "l").symlink_to("gone"), "link to nothing"),
        (lambda f: (f / "l").symlink_to("l"), "link to nothing"),
        (lambda f: (f / "lib/l").symlink_to(".."), "outside|links to a folder it stands in"),
        (lambda f: ((f / ".env").write_text("K=1"), (f / "l").symlink_to(".env")), "never bundled"),
        (lambda f: os.mkfifo(f / "p"), "p is neither file nor folder"),
        (lambda f: (f / "a\\b").touch(), "backslashes"),
        (lambda f: (f / "a\nb").touch(), "control characters"),
        (lambda f: (f / os.fsdecode(b"a\xff")).touch(), "rename it"),
    ],
)
def test_what_cannot_be_packed(
    agent: Path, tmp_path: Path, make: Callable[[Path], object], says: str
) -> None:
    make(agent)
    with pytest.raises(BundleError, match=says):
        pack(agent, "a", tmp_path / "zips" / "a.zip")
    assert list((tmp_path / "zips").iterdir()) == [], "nothing half-written"


def test_limits(agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(agent, "a", tmp_path / "a.zip")
    for variable, value in (
        ("AGENT_UPLOAD_MAX_BYTES", "100"),
        ("AGENT_ARCHIVE_MAX_EXPANDED_BYTES", "3999"),
        ("AGENT_ARCHIVE_MAX_ENTRIES", "2"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            with pytest.raises(BundleError, match=variable):
                pack(agent, "a", tmp_path / "b.zip")
            with pytest.raises(BundleError, match=variable):
                unpack(tmp_path / "a.zip", tmp_path / "out")
    monkeypatch.setenv("AGENT_ARCHIVE_MAX_ENTRIES", "many")
    with pytest.raises(UsageError, match="whole number"):
        pack(agent, "a", tmp_path / "b.zip")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.zip", "agent"]


def zipped(*entries: tuple[str, bytes] | zipfile.ZipInfo) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry in entries:
            if isinstance(entry, zipfile.ZipInfo):
                archive.writestr(entry, "/etc/passwd")
            else:
                archive.writestr(*entry)
    return data.getvalue()


def special(name: str, kind: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (kind | 0o777) << 16
    return info


def encrypted() -> bytes:
    data = bytearray(zipped(("a/x", b"1")))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    return bytes(data)


def lying_size() -> bytes:
    """The header says 5 bytes, the content inflates to 10 million."""
    data = bytearray(zipped(("a/x", b"\0" * 10_000_000)))
    at = data.index(b"PK\x01\x02") + 24
    data[at : at + 4] = (5).to_bytes(4, "little")
    return bytes(data)


GOOD = ("a/contract.yaml", b"name: a\n")


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (lambda: b"", "no usable zip"),
        (lambda: b"not a zip at all", "no usable zip"),
        (lambda: zipped(GOOD)[:-30], "no usable zip"),
        (
            lambda: zipped(GOOD).replace(b"name: a", b"nome: a").replace(b"\x4b\xcc", b"\x4b\xcd"),
            "no usable zip",
        ),
        (lambda: zipped(), "one top folder"),
        (lambda: zipped(("a/", b"")), "one top folder"),
        (lambda: zipped(GOOD, ("b/x", b"")), "one top folder"),
        (lambda: zipped(("x", b"")), "outside the one top folder"),
        (lambda: zipped(GOOD, ("a/../../evil", b"")), "no plain relative path"),
        (lambda: zipped(GOOD, ("../evil", b"")), "no plain relative path"),
        (lambda: zipped(GOOD, ("/etc/evil", b"")), "no plain relative path"),
        (lambda: zipped(GOOD, ("a//b", b"")), "no plain relative path"),
        (lambda: zipped(GOOD, ("a/./b", b"")), "no plain relative path"),
        (lambda: zipped(GOOD, ("a\\..\\b", b"")), "no plain relative path"),
        (lambda: zipped(GOOD, ("a/b\nc", b"")), "no plain relative path"),
        (lambda: zipped(GOOD, ("a/" + "x" * 300, b"")), "too long"),
        (lambda: zipped(GOOD, GOOD), "in it twice"),
        (lambda: zipped(GOOD, ("a/f", b""), ("a/f/g", b"")), "both a file and a folder"),
        (lambda: zipped(GOOD, ("a/f", b""), ("a/f/", b"")), "both a file and a folder"),
        (lambda: zipped(GOOD, special("a/l", stat.S_IFLNK)), "a link or special file"),
        (lambda: zipped(GOOD, special("a/d", stat.S_IFCHR)), "a link or special file"),
        (lambda: zipped(GOOD, special("a/d", stat.S_IFDIR)), "a link or special file"),
        (encrypted, "encrypted"),
        (lying_size, "no usable zip|unpacks to too much"),
        (lambda: zipped(GOOD, ("a/bomb", b"\0" * 20_000_000)), "unpacks to too much"),
        (lambda: zipped(*((f"a/{n}", b"") for n in range(60))), "more than 50 files"),
    ],
)
def test_hostile_archives(
    data: Callable[[], bytes], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_ARCHIVE_MAX_EXPANDED_BYTES", "10000000")
    monkeypatch.setenv("AGENT_ARCHIVE_MAX_ENTRIES", "50")
    (tmp_path / "bad.zip").write_bytes(data())
    with pytest.raises(BundleError, match=says):
        unpack(tmp_path / "bad.zip", tmp_path / "in" / "out")
    assert list((tmp_path / "in").iterdir()) == []
    assert not (tmp_path / "evil").exists()


def test_set_user_id_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(zipped(GOOD, special("a/su", stat.S_IFREG | stat.S_ISUID)))
    unpack(tmp_path / "a.zip", tmp_path / "out")
    assert stat.S_IMODE((tmp_path / "out/su").stat().st_mode) == 0o755


def test_nothing_is_overwritten_and_digests_are_checked(agent: Path, tmp_path: Path) -> None:
    pack(agent, "a", tmp_path / "a.zip")
    with pytest.raises(BundleError, match="exists already"):
        unpack(tmp_path / "a.zip", agent)
    with pytest.raises(BundleError, match="not the agent that was frozen"):
        unpack(tmp_path / "a.zip", tmp_path / "out", expect="0" * 64)
    assert not (tmp_path / "out").exists()
    with pytest.raises(BundleError, match="does not exist"):
        unpack(tmp_path / "none.zip", tmp_path / "out")


def test_a_closed_umask_does_not_lock_the_tasks_user_out(agent: Path, tmp_path: Path) -> None:
    pack(agent, "a", tmp_path / "a.zip")
    before = os.umask(0o077)
    try:
        unpack(tmp_path / "a.zip", tmp_path / "out")
    finally:
        os.umask(before)
    assert {
        stat.S_IMODE(path.stat().st_mode) & 0o055 for path in (tmp_path / "out").rglob("*") if path.is_dir()
    } == {0o055}


def test_two_at_once(agent: Path, tmp_path: Path) -> None:
    from valkyrie.agents.contract_agent import BundleCache

    digest = pack(agent, "a", tmp_path / "a.zip")
    caches = [BundleCache(tmp_path / "cache") for _ in range(4)]
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda cache=cache: found.append(cache.unpacked(tmp_path / "a.zip", digest)))
        for cache in caches * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [tmp_path / "cache" / digest] * 8
    assert [item.name for item in (tmp_path / "cache").iterdir()] == [digest]


@pytest.mark.parametrize("change", ["content", "compiled", "added", "removed", "mode", "link", "folder"])
def test_an_unpacked_bundle_that_was_changed_is_unpacked_anew(
    agent: Path, tmp_path: Path, change: str
) -> None:
    from valkyrie.agents.contract_agent import BundleCache

    digest = pack(agent, "a", tmp_path / "a.zip")
    cache = BundleCache(tmp_path / "cache")
    folder = cache.unpacked(tmp_path / "a.zip", digest)
    untouched = folder.stat().st_ino
    assert cache.unpacked(tmp_path / "a.zip", digest).stat().st_ino == untouched
    match change:
        case "content":
            (folder / "run.sh").write_text("evil\n")
        case "compiled":
            (folder / "__pycache__").mkdir()
            (folder / "__pycache__" / "x.pyc").write_bytes(b"evil")
        case "added":
            (folder / ".hidden").write_text("evil")
        case "removed":
            (folder / "run.sh").unlink()
        case "mode":
            (folder / "run.sh").chmod(0o644)
        case "link":
            (folder / "empty" / "link").symlink_to("/etc")
        case "folder":
            (folder / "empty").rmdir()
    for asked in (cache, BundleCache(tmp_path / "cache")):
        found = asked.unpacked(tmp_path / "a.zip", digest)
        assert (found / "run.sh").read_text() == "#!/bin/sh\n" and (found / "run.sh").stat().st_mode & 0o111
        assert not list((found / "empty").iterdir())
        assert not (found / "__pycache__").exists() and not (found / ".hidden").exists()


@settings(max_examples=40)
@given(flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6))
def test_flipped_bytes_never_do_anything_but_fail(tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    data = bytearray(zipped(GOOD, ("a/lib/x.py", b"print('x')\n" * 20), ("a/empty/", b"")))
    for at, byte in flips:
        data[at % len(data)] = byte
    folder = tmp_path / "fuzz"
    folder.mkdir(exist_ok=True)
    (folder / "a.zip").write_bytes(data)
    for name in ("out",):
        try:
            unpack(folder / "a.zip", folder / name / "x")
        except BundleError:
            assert not (folder / name / "x").exists()
        else:
            import shutil

            shutil.rmtree(folder / name)


def test_a_write_that_fails_leaves_nothing(agent: Path, tmp_path: Path) -> None:
    import resource

    (agent / "big").write_bytes(os.urandom(3_000_000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(BundleError, match="cannot be packed: File too large"):
            pack(agent, "a", tmp_path / "zips" / "a.zip")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "zips").iterdir()) == []
