"""Archives that strangers send: an agent to be pushed, a benchmark to be unpacked."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.git_repository import CONTRACT
from valkyrie.agents.library import AgentLibrary
from valkyrie.benchmarks import open_benchmark, unpack_upload
from valkyrie.errors import BundleError, ValkyrieError

Entry = tuple[str, bytes] | tuple[str, bytes, int]
TASK: tuple[Entry, ...] = (
    ("top/one/task.toml", b""),
    ("top/one/instruction.md", b"Do it.\n"),
    ("top/one/tests/test.sh", b"true\n"),
)
AGENT: Entry = ("top/contract.yaml", CONTRACT.encode())


def zipped(*entries: Entry) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, *mode in entries:
            info = zipfile.ZipInfo(name)
            info.create_system = 3
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (mode[0] if mode else stat.S_IFREG | 0o644) << 16
            archive.writestr(info, content)
    return data.getvalue()


def link(name: str, target: str) -> Entry:
    return (name, target.encode(), stat.S_IFLNK | 0o777)


def unpacked(data: bytes, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "sent.zip").write_bytes(data)
    return unpack_upload(folder / "sent.zip", folder / "cache", hashlib.sha256(data).hexdigest())


PATHS = [
    "../evil",
    "top/../../evil",
    "/evil",
    "top//evil",
    "top/./evil",
    "top\\..\\evil",
    "top/e\nvil",
    "evil",
]
DEEP = "top/" + "d/" * 500 + "evil"


@pytest.mark.parametrize("name", [*PATHS, DEEP, "top/" + "x" * 300])
def test_paths_that_lead_elsewhere(name: str, tmp_path: Path) -> None:
    library = AgentLibrary(tmp_path / "library")
    (tmp_path / "a.zip").write_bytes(zipped(AGENT, (name, b"x")))
    with pytest.raises(BundleError):
        library.push_archive(tmp_path / "a.zip", "agent")
    assert list(library.folder.iterdir()) == []
    with pytest.raises(BundleError):
        unpacked(zipped(*TASK, (name, b"x")), tmp_path / "server")
    assert list((tmp_path / "server" / "cache" / "benchmarks").iterdir()) == []
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize(
    "entries",
    [
        (link("top/one/tests/l", "/etc/passwd"),),
        (link("top/one/instruction.md", "/etc/passwd"),),
        (link("top/one/tests/l", "../../../../../../../../etc/passwd"),),
        (link("top/one/tests/l", "../../.."),),
        (link("top/one/tests/l", ""),),
        (link("top/one/tests/l", "a\nb"),),
        (link("top/one/tests/l", "x" * 5000),),
        (link("top/one/tests/l", "..\\..\\x"),),
        # Each of these stays inside when read by itself, and leads out by way of the other.
        (("top/a/b/f", b""), link("top/a/b/up", "../.."), link("top/l", "a/b/up/../secret")),
        (("top/a/b/f", b""), link("top/a/b/up", "../.."), link("top/one/instruction.md", "../a/b/up/../x")),
        # A file below a link would be written wherever that leads.
        (link("top/one/environment", "/tmp"), ("top/one/environment/evil", b"x")),
        (link("top/one/environment", "."), ("top/one/environment/evil", b"x")),
        (link("top/l", "one"), ("top/l/", b"", stat.S_IFDIR | 0o755)),
        (link("top/l/", "one"),),
        (link("top/l", "one"), link("top/l", "one/tests")),
        (("top/one/tests/dev", b"", stat.S_IFCHR | 0o666),),
        (("top/one/tests/fifo", b"", stat.S_IFIFO | 0o666),),
        (link("top", "/etc"),),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_links_that_lead_out_of_a_benchmark(entries: tuple[Entry, ...], tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hush")
    names = {entry[0] for entry in entries}
    data = zipped(*(entry for entry in TASK if entry[0] not in names), *entries)
    with pytest.raises(BundleError) as caught:
        unpacked(data, tmp_path / "server")
    assert str(tmp_path) not in str(caught.value), "the server's folders are its own affair"
    assert list((tmp_path / "server" / "cache" / "benchmarks").iterdir()) == []


def test_no_link_is_taken_in_an_agent(tmp_path: Path) -> None:
    library = AgentLibrary(tmp_path / "library")
    (tmp_path / "a.zip").write_bytes(zipped(AGENT, link("top/l", "contract.yaml")))
    with pytest.raises(BundleError, match=r"^agent\.zip: 'top/l' is a link"):
        library.push_archive(tmp_path / "a.zip", "agent")


@pytest.mark.parametrize("name", ["top/benchmark.toml", "top/one/task.toml", "top/one/instruction.md"])
@pytest.mark.parametrize("through_a_link", [False, True])
def test_what_is_read_whole_must_fit_into_memory(name: str, through_a_link: bool, tmp_path: Path) -> None:
    huge = b"#" * (16 * 1024 * 1024 + 1)
    up = "../" * (name.count("/") - 1)
    extra = (("top/huge", huge), link(name, f"{up}huge")) if through_a_link else ((name, huge),)
    data = zipped(*(entry for entry in TASK if entry[0] != name), *extra)
    with pytest.raises(BundleError, match="too large"):
        unpacked(data, tmp_path / "server")


def test_modes_are_two(tmp_path: Path) -> None:
    entries = (("top/one/tests/su", b"", stat.S_IFREG | 0o6777), ("top/one/tests/no", b"", stat.S_IFREG))
    before = os.umask(0o077)
    try:
        folder = unpacked(zipped(*TASK, *entries), tmp_path / "server")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    assert (modes["su"], modes["no"], modes["tests"]) == (0o755, 0o644, 0o755)


@pytest.mark.parametrize(
    "bomb",
    [
        lambda: zipped(*TASK, ("top/one/tests/bomb", b"\0" * 20_000_000)),
        lambda: zipped(AGENT, ("top/bomb", b"\0" * 20_000_000)),
        lambda: zipped(*TASK, AGENT, *((f"top/{number}", b"") for number in range(60))),
    ],
)
def test_bombs(bomb: Callable[[], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ARCHIVE_MAX_EXPANDED_BYTES", "10000000")
    monkeypatch.setenv("AGENT_ARCHIVE_MAX_ENTRIES", "50")
    with pytest.raises(BundleError, match="AGENT_ARCHIVE_MAX"):
        unpacked(bomb(), tmp_path / "server")
    with pytest.raises(BundleError, match="AGENT_ARCHIVE_MAX"):
        AgentLibrary(tmp_path / "library").push_archive(tmp_path / "server" / "sent.zip", "agent")


@settings(max_examples=60)
@given(flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6))
async def test_flipped_bytes_never_do_anything_but_fail(tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    data = bytearray(zipped(*TASK, AGENT, link("top/one/tests/l", "test.sh"), ("top/one/tests/x", b"x" * 99)))
    for at, byte in flips:
        data[at % len(data)] = byte
    top = tmp_path / "fuzz"
    try:
        folder = unpacked(bytes(data), top)
        benchmark = open_benchmark(str(folder))
        for task in await benchmark.list_tasks():
            await benchmark.describe(task)
    except ValkyrieError:
        pass
    places = top / "cache" / "benchmarks"
    for path in places.rglob("*"):
        assert Path(os.path.realpath(path)).is_relative_to(os.path.realpath(places))
    try:
        AgentLibrary(tmp_path / "library").push_archive(top / "sent.zip", "agent")
    except ValkyrieError:
        pass
    assert {path.name for path in tmp_path.iterdir()} <= {"fuzz", "library"}
