import ctypes
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxes.errors import SandboxError, SandboxFileNotFoundError
from sandboxes.rooted_files import RootedFiles, has_openat2
from sandboxes.types import CopyLimits

SCRATCH = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where many small things are made, in memory if possible."""
SECRET = b"the host's secret"
KINDS = [pytest.param(True, marks=pytest.mark.skipif(not has_openat2(), reason="no openat2")), False]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The sandbox's root, with the host's secrets beside it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_bytes(SECRET)
    root = tmp_path / "root"
    root.mkdir()
    return root


def rooted(
    root: Path, openat2: bool | None = None, owner: tuple[int, int] | None = None
) -> Iterator[RootedFiles]:
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    yield RootedFiles(fd, owner or (os.geteuid(), os.getegid()), openat2=openat2)
    os.close(fd)


@pytest.fixture(params=KINDS, ids=["openat2", "walking"])
def files(root: Path, request: pytest.FixtureRequest) -> Iterator[RootedFiles]:
    yield from rooted(root, request.param)


def content(files: RootedFiles, path: str) -> bytes:
    return b"".join(files.read(path))


def test_round_trip(files: RootedFiles, root: Path) -> None:
    files.write("/a/b/c", [b"one", b"", b"two"], mode=0o4755)
    assert content(files, "/a/b/c") == b"onetwo"
    assert content(files, "a/./x/../b/c") == b"onetwo"
    assert stat.S_IMODE((root / "a/b/c").stat().st_mode) == 0o755
    assert stat.S_IMODE((root / "a/b").stat().st_mode) == 0o755
    files.write("/a/b/c", [])
    assert content(files, "/a/b/c") == b""
    assert os.listdir(root / "a/b") == ["c"]


def test_kinds_of_things(files: RootedFiles, root: Path) -> None:
    files.make_folder("/d/e", 0o1777)
    files.write("/f", [b"x"])
    (root / "link").symlink_to("d")
    assert stat.S_IMODE((root / "d/e").stat().st_mode) == 0o1777
    assert [files.is_folder(path) for path in ("/d", "/", "/f", "/link", "/none", "/f/x")] == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]
    assert [files.exists(path) for path in ("/d", "/f", "/link", "/none", "/f/x")] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_what_is_not_a_file_is_not_read(files: RootedFiles, root: Path) -> None:
    (root / "folder").mkdir()
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(root)
        listener.bind("socket")
        os.chdir(here)
    for path in ("/folder", "/fifo", "/none", "/", "/a\0b", "/\ud900", "/a" * 3000):
        with pytest.raises(SandboxFileNotFoundError):
            content(files, path)
    with pytest.raises(SandboxError):
        content(files, "/socket")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_devices_are_not_read(files: RootedFiles, root: Path) -> None:
    os.mknod(root / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    with pytest.raises(SandboxFileNotFoundError):
        content(files, "/zero")


@pytest.mark.parametrize("openat2", KINDS)
def test_the_kernels_files_are_not_the_sandboxs(openat2: bool, tmp_path: Path) -> None:
    for files in rooted(Path("/"), openat2):
        for path in (
            "/proc/self/environ",
            "/proc/self/root/etc/passwd",
            "/proc/self/cwd/x",
            "/sys/kernel/notes",
        ):
            with pytest.raises(SandboxError):
                content(files, path)
        with pytest.raises(SandboxFileNotFoundError):
            files.copy_out(f"/proc/{os.getpid()}", tmp_path / "out")


def plant(root: Path, outside: Path) -> None:
    (root / "file").symlink_to(outside / "secret")
    (root / "folder").symlink_to(outside)
    (root / "climb").symlink_to("../outside")
    (root / "dangling").symlink_to("nowhere/at/all")
    (root / "loop").symlink_to("loop")
    (root / "self").symlink_to("/proc/self/root" + str(outside))
    (root / "plain").write_bytes(b"plain")
    (root / "inner").symlink_to("plain")
    os.mkfifo(root / "fifo")


def test_links_are_not_read_through(files: RootedFiles, root: Path, tmp_path: Path) -> None:
    plant(root, tmp_path / "outside")
    for path in ("/file", "/inner", "/dangling", "/loop", "/folder/secret", "/climb/secret", "/self/secret"):
        with pytest.raises(SandboxFileNotFoundError):
            content(files, path)
    with pytest.raises(SandboxFileNotFoundError):
        content(files, "/../outside/secret")
    report = files.copy_out("/", tmp_path / "copied")
    assert os.listdir(tmp_path / "copied") == ["plain"]
    assert (report.files, report.bytes, report.skipped_count) == (1, 5, 8)
    for path in ("/folder", "/climb", "/none", "/plain"):
        with pytest.raises(SandboxFileNotFoundError):
            files.copy_out(path, tmp_path / "never")
    assert not (tmp_path / "never").exists()
    assert files.glob("/*") == ["/plain"]


def test_links_are_not_written_through(files: RootedFiles, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    plant(root, outside)
    for path in ("/file", "/inner", "/dangling", "/loop", "/fifo"):
        files.write(path, [b"mine"])
        assert content(files, path) == b"mine"
        assert not (root / path[1:]).is_symlink()
    for path in ("/folder/secret", "/climb/secret", "/self/new", "/../outside/secret"):
        try:
            files.write(path, [b"mine"])
        except SandboxError:
            continue
    files.remove("/folder/secret")
    files.remove("/folder")
    assert (outside / "secret").read_bytes() == SECRET
    assert os.listdir(outside) == ["secret"]
    assert (root / "plain").read_bytes() == b"plain"


@pytest.mark.skipif(not has_openat2(), reason="no openat2")
def test_links_inside_the_root_work_as_parents(root: Path) -> None:
    (root / "real").mkdir()
    (root / "absolute").symlink_to("/real")
    for files in rooted(root):
        files.write("/absolute/new/file", [b"x"])
        assert content(files, "/real/new/file") == b"x"
        assert files.glob("/absolute/*/f*") == ["/absolute/new/file"]
        files.remove("/absolute")
        assert files.is_folder("/real/new")


def test_a_folder_is_not_overwritten_by_a_file(files: RootedFiles, root: Path) -> None:
    files.write("/d/x", [b"x"])
    for path in ("/d", "/", "/d/x/y"):
        with pytest.raises(SandboxError):
            files.write(path, [b"y"])
    with pytest.raises(SandboxError):
        files.remove("/")
    assert content(files, "/d/x") == b"x"


def test_a_failed_write_leaves_nothing(files: RootedFiles, root: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise ZeroDivisionError

    files.write("/kept", [b"old"])
    with pytest.raises(ZeroDivisionError):
        files.write("/kept", broken())
    assert content(files, "/kept") == b"old"
    assert os.listdir(root) == ["kept"]


def test_sizes_are_bounded(files: RootedFiles, root: Path, tmp_path: Path) -> None:
    with open(root / "sparse", "wb") as sparse:
        sparse.truncate(10 << 30)
    (root / "small").write_bytes(b"x" * 100)
    with pytest.raises(SandboxError, match="10737418240 bytes"):
        next(files.read("/sparse", max_bytes=1000))
    report = files.copy_out("/", tmp_path / "copied", CopyLimits())
    assert report.files == 1
    assert [path for path, reason in report.skipped if "10737418240" in reason] == ["sparse"]
    report = files.copy_out("/", tmp_path / "none", CopyLimits(max_bytes=99))
    assert (report.files, report.skipped_count) == (0, 2)


def test_a_growing_file_is_capped(files: RootedFiles, root: Path, tmp_path: Path) -> None:
    stop = threading.Event()

    def grow() -> None:
        with open(root / "log", "ab") as log:
            while not stop.is_set():
                log.write(b"x" * 65536)
                log.flush()

    (root / "log").write_bytes(b"x")
    writer = threading.Thread(target=grow)
    writer.start()
    try:
        limits = CopyLimits(max_file_bytes=1 << 30)
        report = files.copy_out("/", tmp_path / "copied", limits)
        with pytest.raises(SandboxError, match="over 100000"):
            while True:
                content_length = sum(map(len, files.read("/log", max_bytes=100_000)))
                assert content_length <= 100_000
    finally:
        stop.set()
        writer.join()
    assert report.bytes <= limits.max_file_bytes


def test_entries_are_bounded(files: RootedFiles, root: Path, tmp_path: Path) -> None:
    for number in range(1000):
        os.close(os.open(root / str(number), os.O_CREAT | os.O_WRONLY))
    report = files.copy_out("/", tmp_path / "copied", CopyLimits(max_entries=50))
    assert report.files == 50
    assert report.skipped == [(".", "more than 50 entries; the rest was not looked at")]


@pytest.mark.parametrize("openat2", KINDS)
def test_deep_nesting(openat2: bool, tmp_path: Path) -> None:
    root = Path(tempfile.mkdtemp(dir=SCRATCH))
    fd = os.open(root, os.O_RDONLY)
    for _ in range(10_000):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    try:
        for files in rooted(root, openat2):
            report = files.copy_out("/", tmp_path / "copied")
            assert (report.files, report.skipped_count) == (0, 1)
            assert "nested deeper" in report.skipped[0][1]
            assert files.glob("/**/file") == []
            files.remove("/d")
            assert os.listdir(root) == []
    finally:
        # Python's own ways to clear up would recurse.
        subprocess.run(["rm", "-rf", root], check=True)


def test_names_that_are_not_utf8(files: RootedFiles, root: Path, tmp_path: Path) -> None:
    bad = os.fsencode(root) + b"/bad\xff"
    with open(bad, "wb") as file:
        file.write(b"x")
    os.mkdir(os.fsencode(root) + b"/dir\xfe")
    (root / "gut\u00e9").write_bytes(b"y")
    report = files.copy_out("/", tmp_path / "copied")
    assert report.files == 1
    assert sorted(path for path, _ in report.skipped) == ["bad\ufffd", "dir\ufffd"]
    json.dumps(report.skipped, ensure_ascii=False).encode()
    assert files.glob("/*") == ["/gut\u00e9"]
    with pytest.raises(SandboxError) as caught:
        content(files, "/none\udcff")
    str(caught.value).encode()
    assert content(files, os.fsdecode(b"/bad\xff")) == b"x"
    files.remove(os.fsdecode(b"/bad\xff"))
    assert not os.path.exists(bad)


def test_copying_in(files: RootedFiles, root: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub/deep").mkdir(parents=True)
    (source / "sub/deep/data").write_bytes(bytes(range(256)) * 5000)
    (source / "run").write_text("#!/bin/sh")
    (source / "run").chmod(0o755)
    (source / "sub").chmod(0o700)
    (source / "sub/link").symlink_to("../run")
    (source / "absolute").symlink_to(source / "sub/deep")
    (root / "target/sub").mkdir(parents=True)
    (root / "target/kept").write_text("kept")
    files.copy_in(source, "/target")
    assert (root / "target/sub/deep/data").read_bytes() == bytes(range(256)) * 5000
    assert stat.S_IMODE((root / "target/run").stat().st_mode) == 0o755
    assert stat.S_IMODE((root / "target/sub").stat().st_mode) == 0o700
    assert os.readlink(root / "target/sub/link") == "../run"
    assert os.readlink(root / "target/absolute") == "sub/deep"
    assert (root / "target/kept").read_text() == "kept"
    files.copy_in(source, "/target")
    files.copy_in(source / "run", "/one/file")
    assert content(files, "/one/file") == b"#!/bin/sh"
    files.copy_in(source, "/")
    assert (root / "run").exists()
    with pytest.raises(SandboxError, match="missing"):
        files.copy_in(tmp_path / "missing", "/x")


def test_copying_in_replaces_what_was_planted(files: RootedFiles, root: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "folder").mkdir(parents=True)
    (source / "folder/secret").write_text("mine")
    for name in ("file", "inner", "fifo", "climb"):
        (source / name).write_text("mine")
    plant(root, tmp_path / "outside")
    (root / "inner").unlink()
    (root / "inner/was/a/folder").mkdir(parents=True)
    (root / "all").symlink_to(tmp_path / "outside")
    files.copy_in(source, "/")
    files.copy_in(source, "/all")
    assert all(
        (root / name).read_text() == "mine" for name in ("file", "inner", "fifo", "climb", "folder/secret")
    )
    assert (root / "all/file").read_text() == "mine"
    assert os.listdir(tmp_path / "outside") == ["secret"]
    assert (tmp_path / "outside/secret").read_bytes() == SECRET


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside/secret", "sub/../../outside"])
def test_links_that_leave_the_source_are_refused(files: RootedFiles, tmp_path: Path, target: str) -> None:
    (tmp_path / "source/sub").mkdir(parents=True)
    (tmp_path / "source/link").symlink_to(target)
    with pytest.raises(SandboxError, match="leaves"):
        files.copy_in(tmp_path / "source", "/x")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_new_files_belong_to_the_owner(root: Path, tmp_path: Path) -> None:
    (tmp_path / "source/d").mkdir(parents=True)
    (tmp_path / "source/f").write_text("x")
    (tmp_path / "source/l").symlink_to("f")
    for files in rooted(root, owner=(12345, 23456)):
        files.write("/a/b", [b"x"])
        files.make_folder("/c")
        files.copy_in(tmp_path / "source", "/s")
    made = ["a", "a/b", "c", "s", "s/d", "s/f", "s/l"]
    assert {(os.lstat(root / name).st_uid, os.lstat(root / name).st_gid) for name in made} == {(12345, 23456)}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become someone else")
def test_an_ordinary_user_removes_closed_folders() -> None:
    script = f"""
import os, sys
sys.path[:0] = {[path for path in sys.path if path]!r}
from pathlib import Path
import tempfile
from sandboxes.rooted_files import RootedFiles
with tempfile.TemporaryDirectory() as folder:
    top = Path(folder, "top"); (top / "a/b").mkdir(parents=True); (top / "a/b/c").touch()
    (top / "a/b").chmod(0); (top / "a").chmod(0o500)
    fd = os.open(folder, os.O_RDONLY)
    RootedFiles(fd, (os.getuid(), os.getgid())).remove("/top")
    assert os.listdir(folder) == []
"""
    interpreter = "/usr/bin/python3"
    if not os.path.exists(interpreter) or not os.access(Path(__file__).parents[3], os.X_OK):
        pytest.skip("no Python that another user can start")
    done = subprocess.run(
        [interpreter, "-B", "-c", script],
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        text=True,
    )
    if "ModuleNotFoundError" in done.stderr or "ImportError" in done.stderr:
        pytest.skip("the packages are out of the other user's reach, or for another Python")
    assert done.returncode == 0, done.stderr


def test_swapping_folders_and_links_while_reading(files: RootedFiles, root: Path, tmp_path: Path) -> None:
    (root / "real").mkdir()
    (root / "real/secret").write_bytes(b"harmless")
    (root / "spare").symlink_to(tmp_path / "outside")
    stop = threading.Event()
    exchange = ctypes.CDLL(None).renameat2
    here, flag_exchange = -100, 2

    def swap() -> None:
        while not stop.is_set():
            exchange(here, bytes(root / "real"), here, bytes(root / "spare"), flag_exchange)

    swapper = threading.Thread(target=swap)
    swapper.start()
    read = refused = 0
    try:
        # Until both have been seen often, or the other thread never gets its turn.
        for number in range(5000):
            try:
                assert content(files, "/real/secret") == b"harmless"
                files.write(f"/real/{number % 10}", [b"x"])
                read += 1
            except SandboxError:
                refused += 1
            if min(read, refused) >= 200:
                break
    finally:
        stop.set()
        swapper.join()
    assert read > 0
    assert os.listdir(tmp_path / "outside") == ["secret"]
    assert (tmp_path / "outside/secret").read_bytes() == SECRET


NAMES = st.sampled_from(["..", ".", "", "a", "b", "out", "up", "abs", "loop", "file"])


@settings(max_examples=150)
@given(
    st.lists(NAMES, min_size=1, max_size=6),
    st.booleans(),
    st.sampled_from(["write", "remove", "copy", "make"]),
)
def test_no_path_leads_outside(parts: list[str], absolute: bool, action: str) -> None:
    path = ("/" if absolute else "") + "/".join(parts)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as name:
        outside, root, source = Path(name, "outside"), Path(name, "root"), Path(name, "source")
        for folder in (outside, root / "a/b", source):
            folder.mkdir(parents=True)
        (outside / "file").write_bytes(SECRET)
        (source / "file").write_text("mine")
        (root / "out").symlink_to(outside)
        (root / "a/up").symlink_to("../../outside")
        (root / "abs").symlink_to("/")
        (root / "loop").symlink_to("loop")
        for files in rooted(root):
            try:
                if action == "write":
                    files.write(path, [b"mine"])
                elif action == "remove":
                    files.remove(path)
                elif action == "copy":
                    files.copy_in(source, path)
                else:
                    files.make_folder(path)
                assert SECRET not in content(files, path)
            except SandboxError:
                pass
        assert sorted(os.listdir(name)) == ["outside", "root", "source"]
        assert os.listdir(outside) == ["file"]
        assert (outside / "file").read_bytes() == SECRET


WORDS = st.text(alphabet="ab", min_size=1, max_size=2)
PATTERNS = st.sampled_from(["*", "a*", "?", "[ab]", "b", "*a", "**", "ab"])


@settings(max_examples=100)
@given(
    st.sets(st.lists(WORDS, min_size=1, max_size=3).map("/".join), max_size=8),
    st.lists(PATTERNS, min_size=1, max_size=3),
)
def test_globbing_agrees_with_pathlib(names: set[str], pattern: list[str]) -> None:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as name:
        root = Path(name)
        for path in sorted(names, key=len, reverse=True):
            try:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).touch()
            except OSError:
                continue
        if pattern[-1] == "**":
            pattern = [*pattern, "*"]
        expected = {f"/{path.relative_to(root)}" for path in root.glob("/".join(pattern)) if path.is_file()}
        for files in rooted(root):
            assert files.glob("/" + "/".join(pattern)) == sorted(expected)
