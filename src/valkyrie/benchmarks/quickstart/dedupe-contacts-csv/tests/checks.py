"""Named checks, what they found, and the reward. The same file in every task of this benchmark.

Nothing of the agent's is trusted. Its files are read only if they are regular and small, and never through
a link. Its programs run by themselves: as a user who may not write anything here, with limits on time,
memory and output, and without the tests in reach. The reward is written last, by this process alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

APP = Path.cwd() if Path.cwd() != Path("/") else Path("/app")
"""The working folder; the tests start in `/` where the agent removed it."""
TESTS = Path(__file__).parent
SANDBOXED = Path("/tests") == TESTS
"""Elsewhere nothing is removed and no user is changed: these may be the author's own files."""
FILES = {path.name: path.read_bytes() for path in TESTS.iterdir() if path.is_file()}
"""The tests' own files, read before any program of the agent runs."""
PYTHON = (sys.executable, "-ISB")
MAX_FILE = 8 << 20
MAX_OUTPUT = 4 << 20
MAX_WRITTEN = 64 << 20
MAX_MEMORY = 1 << 30
MAX_ENTRIES = 2_000
NOBODY = 65534
BEGAN = time.monotonic()
PATIENCE = 240.0
"""Well within the verifier's own time limit; a busy machine may need much of it."""
PATIENCE_WITH_THE_SLOW = 45.0
"""Once a program of the agent had to be stopped: those that hang earn their 0 soon."""

too_slow: list[str] = []
"""Programs that had to be stopped."""


class Ran(NamedTuple):
    """How a program of the agent ended."""

    code: int
    stdout: str
    stderr: str


class NoVerdict(BaseException):
    """Nothing can be said about the agent's work."""


class Checks:
    """Collects verdicts; `reward` writes them down once, at the end."""

    def __init__(self) -> None:
        self._passed: list[bool] = []
        if SANDBOXED:
            sys.excepthook = end_without_verdict
        shut_off()

    @contextmanager
    def check(self, name: str) -> Iterator[None]:
        """One check: it fails if its body raises, whatever it raises."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the agent's work may be wrong in any way
            self._passed.append(False)
            found = " ".join(f"{type(error).__name__}: {error}".split())
            sys.stdout.write(f"FAIL {name}: {found[:500]}\n")
        else:
            self._passed.append(True)
            sys.stdout.write(f"ok   {name}\n")

    def reward(self, *, partial: bool = False) -> None:
        """All or nothing, or the share of checks that passed. The file appears whole."""
        end_children()
        folder = Path(os.environ.get("VERIFIER_DIR", "/logs/verifier"))
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob("reward.*"):
            remove(left)
        share = sum(self._passed) / len(self._passed)
        name, text = "reward.txt", "1\n" if share == 1.0 else "0\n"
        if partial:
            name, text = "reward.json", json.dumps({"reward": round(share, 4)}) + "\n"
        draft = folder / ".draft"
        remove(draft)
        write_new(draft, text.encode())
        draft.rename(folder / name)


def shut_off() -> None:
    """Put the tests and this process out of reach of the agent's programs, and its files within theirs."""
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: nobody reads the memory of this process
    if SANDBOXED:
        for left in TESTS.iterdir():
            remove(left)
    if unprivileged():
        open_up(APP)


def unprivileged() -> bool:
    """Whether programs can be run as a user who owns nothing; a sandbox may have root alone."""
    if not SANDBOXED:
        return False
    if not _tried:
        pid = os.fork()
        if pid == 0:
            code = 1
            with suppress(OSError):
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                code = 0
            os._exit(code)
        _tried.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0)
    return _tried[0]


_tried: list[bool] = []


def open_up(folder: Path) -> None:
    """Let everybody read what the agent made, as its author could."""
    for place, _, names in os.walk(folder):
        with suppress(OSError):
            Path(place).chmod(stat.S_IMODE(Path(place).stat().st_mode) | 0o555)
        for path in (Path(place, name) for name in names):
            with suppress(OSError):
                info = path.lstat()
                if stat.S_ISREG(info.st_mode) and info.st_nlink == 1:
                    more = 0o555 if info.st_mode & 0o100 else 0o444
                    path.chmod(stat.S_IMODE(info.st_mode) | more)


def read_file(path: Path) -> bytes:
    """What is in a file in the working folder, if no folder above it is a link."""
    for above in path.relative_to(APP).parents:
        if above != Path() and (APP / above).is_symlink():
            raise ValueError(f"{above} is a link")
    return read_plain(path)


def read_plain(path: Path) -> bytes:
    """What is in a file the agent or its program made, if it is a regular one of a sensible size."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise ValueError(f"{path.name} is no regular file")
        if info.st_size > MAX_FILE:
            raise ValueError(f"{path.name} has {info.st_size} bytes")
        return file.read(MAX_FILE)


def read_text(path: Path) -> str:
    """The same as text."""
    return read_file(path).decode("utf-8")


def files_below(folder: Path) -> dict[str, bytes]:
    """All files of a folder by their relative paths; raises for whatever is neither file nor folder."""
    found: dict[str, bytes] = {}
    total = 0
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise ValueError(f"{folder.name} is no folder")
    for place, folders, names in os.walk(folder):
        for name in folders:
            if Path(place, name).is_symlink():
                raise ValueError(f"{name} is a link")
        for path in (Path(place, name) for name in names):
            found[str(path.relative_to(folder))] = read_file(path)
            total += len(found[str(path.relative_to(folder))])
            if len(found) > MAX_ENTRIES or total > MAX_WRITTEN:
                raise ValueError(f"too much in {folder.name}")
    return found


def remove(path: Path) -> None:
    """Remove whatever is at `path`; a link, not what it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_new(path: Path, content: bytes) -> None:
    """Write a file where none is; never through a link."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with open(handle, "wb") as file:
        file.write(content)


@contextmanager
def scratch() -> Iterator[Path]:
    """A new folder that programs of the agent may write."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        if unprivileged():
            os.chown(folder, NOBODY, NOBODY)
        yield Path(folder)


def run(argv: Sequence[str | Path], *, stdin: str = "", timeout: float = 10.0, cwd: Path = APP) -> Ran:
    """Run a program of the agent by itself, and end what it started along with it, daemons included."""
    left = BEGAN + (PATIENCE_WITH_THE_SLOW if too_slow else PATIENCE) - time.monotonic()
    if left <= 0:
        raise out_of_time()
    refuse_odd_files(argv)
    adopt_orphans()
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8", "HOME": "/tmp"}
    who = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if unprivileged() else {}
    files = [os.fdopen(os.memfd_create(name), "w+b") for name in ("stdin", "stdout", "stderr")]
    try:
        files[0].write(stdin.encode())
        files[0].seek(0)
        process = subprocess.Popen(
            [os.fspath(word) for word in argv],
            stdin=files[0],
            stdout=files[1],
            stderr=files[2],
            cwd=cwd,
            env=env,
            start_new_session=True,
            preexec_fn=limit,
            **who,
        )
        late = threading.Event()
        alarm = threading.Timer(min(timeout, left), lambda: (late.set(), process.kill()))
        alarm.start()
        code = process.wait()
        alarm.cancel()
        end_children()
        if late.is_set() and left < timeout:
            raise out_of_time()
        if late.is_set():
            too_slow.append(" ".join(map(str, argv))[:200])
            raise TimeoutError(f"{too_slow[-1]} took longer than {timeout:g} s")
        texts = []
        for file in files[1:]:
            file.seek(0)
            texts.append(file.read(MAX_OUTPUT).decode("utf-8", "replace"))
    finally:
        for file in files:
            file.close()
    return Ran(code, *texts)


def refuse_odd_files(argv: Sequence[str | Path]) -> None:
    """A fifo or a device in place of a program would only be waited for."""
    for word in argv:
        if isinstance(word, Path) and word.is_relative_to(APP) and os.path.lexists(word):
            mode = word.stat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise ValueError(f"{word} is no regular file")


def limit() -> None:
    """Between fork and exec: what the program may use, and no way to more rights than it has."""
    limits = ((resource.RLIMIT_AS, MAX_MEMORY), (resource.RLIMIT_FSIZE, MAX_WRITTEN), (resource.RLIMIT_CORE, 0))
    for what, most in limits:
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))
    libc = ctypes.CDLL(None)
    for capability in range(64):
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP; for where root is the only user there is
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS


def out_of_time() -> BaseException:
    """The agent's failure if one of its programs is to blame; else the machine was too busy to tell."""
    if too_slow:
        return TimeoutError(f"no time left after {too_slow[0]}")
    return NoVerdict("no time left, and no program of the agent is to blame")


def end_without_verdict(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """End by a signal after an error of these tests: then no reward counts, whoever wrote one."""
    try:
        sys.__excepthook__(kind, error, trace)
        sys.stdout.flush()
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of what detaches itself (PR_SET_CHILD_SUBREAPER), so that nothing gets away."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def end_children() -> None:
    """Kill every process that comes from this one; its own children fall to us and are next."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while pids := children.read_text().split():
        for pid in map(int, pids):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def same(actual: object, expected: object, what: str = "result") -> None:
    """Raise unless both are equal."""
    if actual != expected:
        raise AssertionError(f"{what} is {actual!r}, expected {expected!r}")
