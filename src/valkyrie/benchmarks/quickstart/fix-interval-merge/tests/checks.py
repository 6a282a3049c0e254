"""Named checks, what they found, and the reward. The same file in every task of this benchmark."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

APP = Path.cwd()
TESTS = Path(__file__).parent
MAX_OUTPUT = 4 << 20
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


class Checks:
    """Collects verdicts; `reward` writes them down once, at the end."""

    def __init__(self) -> None:
        self._passed: list[bool] = []

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
        """All or nothing, or the share of checks that passed."""
        folder = Path(os.environ.get("VERIFIER_DIR", "/logs/verifier"))
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob("reward.*"):
            left.unlink()
        share = sum(self._passed) / len(self._passed)
        if partial:
            (folder / "reward.json").write_text(json.dumps({"reward": round(share, 4)}) + "\n")
        else:
            (folder / "reward.txt").write_text("1\n" if share == 1.0 else "0\n")


def run(argv: Sequence[str | Path], *, stdin: str = "", timeout: float = 10.0, cwd: Path = APP) -> Ran:
    """Run a program of the agent by itself, and end what it started along with it, daemons included."""
    left = BEGAN + (PATIENCE_WITH_THE_SLOW if too_slow else PATIENCE) - time.monotonic()
    if left <= 0:
        raise out_of_time()
    adopt_orphans()
    env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "HOME": "/tmp"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as inp:
        inp.write(stdin.encode())
        inp.seek(0)
        process = subprocess.Popen(
            argv, stdin=inp, stdout=out, stderr=err, cwd=cwd, env=env, start_new_session=True
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
        for file in (out, err):
            file.seek(0)
            texts.append(file.read(MAX_OUTPUT).decode("utf-8", "replace"))
    return Ran(code, *texts)


def out_of_time() -> BaseException:
    """The agent's failure if one of its programs is to blame; else the machine was too busy to tell."""
    if too_slow:
        return TimeoutError(f"no time left after {too_slow[0]}")
    return SystemExit("no time left, and no program of the agent is to blame: no verdict")


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
