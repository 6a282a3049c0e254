"""Run a solution together with hidden tests, in a process of its own, and write the reward.

A file of the task's tests, which `plan.json` beside it directs. Solution and tests share that process, as
the benchmark's own harness has it: a solution that sets out to deceive its tests is not ruled out, one that
merely ends early, prints, hangs or forks is. Reading aside, whatever goes wrong here leaves no reward.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

TESTS = Path(__file__).parent
MAX_SOLUTION = 1 << 20
PYTHONS = ("/usr/local/bin/python3", "/usr/bin/python3", "python3")
RUNNER = """\
import os, sys, types, unittest
kind, token_fd, verdict_fd = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
module = types.ModuleType("__test__")
module.__file__ = "__test__.py"
sys.modules["__test__"] = module
for part in ("before.py", "solution.py", "after.py"):
    with open(part, encoding="utf-8") as file:
        code = file.read()
    exec(compile(code, part, "exec"), module.__dict__)
if kind == "unittest":
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(module.TestCases)
    result = unittest.TextTestRunner(verbosity=0).run(suite)
    if not result.wasSuccessful() or not result.testsRun:
        sys.exit("some of the tests failed")
os.write(verdict_fd, os.read(token_fd, 64))
os._exit(0)
"""
"""One module in three parts, as a solution may begin with what only the beginning of a file may have. The
token that says "all passed" is taken when they have, not before."""
FINDER = (
    "import importlib.util, sys; sys.exit(any(map(lambda n: not importlib.util.find_spec(n), sys.argv[1:])))"
)


def main() -> None:
    plan = json.loads((TESTS / "plan.json").read_text(encoding="utf-8"))
    python = find_python(plan["needs"])
    solution = read_solution(Path(plan["answer"]))
    passed = False
    if solution is None:
        sys.stdout.write(
            f"{plan['answer']} is missing, or no text file of at most {MAX_SOLUTION >> 20} MiB\n"
        )
    else:
        adopt_orphans()
        parts = {"before.py": plan["before"], "solution.py": solution, "after.py": plan["after"]}
        passed = run(python, plan["kind"], parts, plan["timeout_sec"])
        end_children()
    write_reward(passed)


def find_python(needs: Sequence[str]) -> str:
    """The first Python here that has the libraries. Without one there is nothing to grade with."""
    for python in PYTHONS:
        try:
            found = subprocess.run([python, "-IB", "-c", FINDER, *needs], check=False, capture_output=True)
        except OSError:
            continue
        if found.returncode == 0:
            return python
    sys.exit(f"no Python here has all of {', '.join(needs)}: run the task in its image")


def read_solution(path: Path) -> str | None:
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_SOLUTION:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def run(python: str, kind: str, parts: Mapping[str, str], timeout: float) -> bool:
    """Return whether all parts ran through and all tests passed in time."""
    token = secrets.token_hex(16).encode()
    folder = tempfile.mkdtemp()
    for name, content in parts.items():
        Path(folder, name).write_text(content, encoding="utf-8")
    with tempfile.TemporaryFile() as verdict:
        reading, writing = os.pipe()
        os.write(writing, token)
        os.close(writing)
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": os.environ.get("HOME", folder),
            "LC_ALL": "C.UTF-8",
            "MPLBACKEND": "Agg",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        fds = (reading, verdict.fileno())
        process = subprocess.Popen(
            [python, "-IB", "-c", RUNNER, kind, *map(str, fds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=folder,
            env=env,
            pass_fds=fds,
            start_new_session=True,
        )
        os.close(reading)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            sys.stdout.write(f"stopped after {timeout:g} s\n")
            process.kill()
            process.wait()
        verdict.seek(0)
        return verdict.read(64) == token


def adopt_orphans() -> None:
    """Become the parent of what detaches itself (PR_SET_CHILD_SUBREAPER), so that nothing gets away."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def end_children() -> None:
    """Kill every process that comes from this one; its own children fall to us and are next."""
    while pids := children():
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def children() -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if int(parent) == os.getpid():
                found.append(int(folder.name))
    return found


def write_reward(passed: bool) -> None:
    """The only one: the solution may have left some of its own."""
    folder = Path(os.environ.get("VERIFIER_DIR", "/logs/verifier"))
    for left in folder.glob("reward*"):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()
    (folder / "reward.txt").write_text("1\n" if passed else "0\n")


if __name__ == "__main__":
    main()
