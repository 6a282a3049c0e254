"""A team's installation under fire: server, executors and people, each a process that can be killed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import httpx

from sandboxes.cgroups import Cgroup
from sandboxes.local.provider import LocalProvider
from tests.live_folders import files_below
from tests.ports import free_port
from valkyrie.client.client import ValkyrieClient
from valkyrie.domain import RunState
from valkyrie.executor.client import ExecutorClient
from valkyrie.store import Store, runs
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.remote import RemoteTracker
from valkyrie.views import RunRequest

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
TOKEN = "the token nobody but the agent may see"
SEALING_KEY = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
TASKS = 12
SCORE = 0.75
"""Every fourth task cannot be solved; the others, only by who has the token."""
CONTRACT = """\
name: signer
install_cmd: "true"
run_cmd: >-
  sleep 0.7; printf "%s %s" "$TOKEN" "$(cat number.txt)" | sha256sum | cut -c1-64 > answer.txt;
  echo the agent has signed; cat {problem_statement_path} > seen.txt
final_output: /app/answer.txt
output_artifacts: [{path: seen.txt, source: /app/seen.txt}]
secrets: {TOKEN: CRASH_TOKEN}
"""
TASK = """\
schema_version = "1.4"
[task]
name = "signatures/task-{number}"
[agent]
timeout_sec = 60.0
[verifier]
timeout_sec = 60.0
[environment]
cpus = 1
memory_mb = 64
storage_mb = 64
network_mode = "no-network"
workdir = "/app"
"""
GRADER = """\
#!/bin/bash
out=${VERIFIER_DIR:-/logs/verifier}
mkdir -p "$out"
if cmp -s answer.txt "$(dirname "$0")/expected.txt"; then echo 1; else echo 0; fi > "$out/reward.txt"
"""


def write_agent(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "contract.yaml").write_text(CONTRACT)
    return folder


def signature(number: int) -> str:
    """The right answer to a task that can be solved."""
    return hashlib.sha256(f"{TOKEN} {number}".encode()).hexdigest()


def write_benchmark(folder: Path) -> Path:
    for number in range(TASKS):
        task = folder / f"task-{number:02}"
        for name in ("environment", "tests"):
            (task / name).mkdir(parents=True)
        expected = "nobody knows" if number % 4 == 3 else signature(number)
        (task / "task.toml").write_text(TASK.format(number=number))
        (task / "instruction.md").write_text(f"Sign number {number}.\n")
        (task / "environment" / "number.txt").write_text(str(number))
        (task / "tests" / "expected.txt").write_text(f"{expected}\n")
        (task / "tests" / "test.sh").write_text(GRADER)
        (task / "tests" / "test.sh").chmod(0o755)
    (folder / "benchmark.toml").write_text('name = "signatures"\ndescription = "Sign numbers."\n')
    return folder


def room_for(trials: int) -> dict[str, str]:
    """Settings of an executor that has room for so many of these trials at once."""
    return {"VALKYRIE_CPU_OVERCOMMIT": f"{trials / len(os.sched_getaffinity(0)):.3f}"}


@dataclass
class Program:
    """One of our commands as a process; started again, it goes on in the same log."""

    words: list[str]
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None and self.process.poll() is None, self.said()
        return self.process.pid

    def start(self, ready: str | None = None) -> str:
        """Start it; with `ready`, wait for a line of its output that holds this, and give it back."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*_mortal(), sys.executable, "-m", "valkyrie", *self.words],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        while ready is not None:
            line = self.process.stdout.readline()
            assert line, f"it ended: {self.said()}"
            if ready in line:
                return line
        return ""

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.wait()

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, timeout: float = 60) -> int:
        assert self.process is not None and self.process.stdout is not None
        code = self.process.wait(timeout)
        self.process.stdout.close()
        return code

    def end(self) -> None:
        """Whatever state it is in, it is over."""
        if self.process is None:
            return
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        try:
            self.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


@dataclass
class Team:
    """Everything of one installation stands below `root`."""

    root: Path
    database: str | None = None
    """PostgreSQL; else the server's own file."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """More of the environment of server and executors."""
    programs: list[Program] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True)
        self.agent = write_agent(self.root / "signer")
        self.benchmark = write_benchmark(self.root / "signatures")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.key = self.admin("admin", "key", "create", "--person", "ada").strip()

    def home(self) -> DataFolder:
        """The server's."""
        return DataFolder(self.root / "server")

    def environment(self, home: str = "server", database: str | None = None) -> dict[str, str]:
        """Of a process of ours with this data folder, and nothing of whoever runs the tests."""
        found = {
            **inherited(),
            "VALKYRIE_HOME": str(self.root / home),
            "VALKYRIE_CONFIG_PATH": str(self.root / "config" / "valkyrie.yaml"),
            **self.settings,
        }
        if address := database or self.database:
            found |= {"VALKYRIE_DATABASE_URL": address, "VALKYRIE_SECRET_KEY": SEALING_KEY}
        return found

    def serve(self, *more: str) -> Program:
        """The tracker, on the same port however often it is started."""
        words = ["serve", "--port", str(self.port), "--json", *more]
        return self._program(words, self.environment(), "serve.log")

    def executor(self, name: str, database: str | None = None) -> Program:
        """An executor with a data folder of its own, as on another machine."""
        return self._program(["executor"], self.environment(name, database), f"{name}.log")

    def _program(self, words: list[str], environment: dict[str, str], log: str) -> Program:
        made = Program(words, environment, self.root / log)
        self.programs.append(made)
        return made

    def person(self) -> dict[str, str]:
        """The environment of someone with nothing but the tracker's address, a key, and the agent's token."""
        return {
            **inherited(),
            # Not below the root: what the tests start themselves has this in its environment.
            "VALKYRIE_HOME": f"{self.root}-person",
            "VALKYRIE_CONFIG_PATH": f"{self.root}-person/valkyrie.yaml",
            "TRACKER_SERVICE_URL": self.url,
            "VALKYRIE_API_KEY": self.key,
            "CRASH_TOKEN": TOKEN,
        }

    def admin(self, *words: str) -> str:
        """What a command of whoever runs the tracker prints; it must succeed."""
        command = [sys.executable, "-m", "valkyrie", *words]
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def command(self, *words: str) -> Program:
        """A command of a person's, to be killed."""
        return self._program(list(words), self.person(), "cli.log")

    def health(self) -> int:
        """The status the server answers with when it is asked whether it works."""
        return httpx.get(f"{self.url}/health", timeout=60, trust_env=False).status_code

    def client(self) -> ValkyrieClient:
        return ValkyrieClient(self.url, self.key)

    def tracker(self) -> contextlib.closing[RemoteTracker]:
        """The verbs over HTTP, for a person's environment."""
        return contextlib.closing(RemoteTracker(self.url, self.key))

    def request(self, trials: int, concurrency: int = 6) -> RunRequest:
        return RunRequest(
            agent=str(self.agent), benchmark=str(self.benchmark), trials=trials, concurrency=concurrency
        )

    @cached_property
    def store(self) -> Store:
        """What the tests look at behind everyone's back."""
        return Store(self.database or self.home().database)

    def is_over(self, run_id: str) -> bool:
        with self.store.reading() as connection:
            return RunState(runs.get(connection, run_id).state).terminal

    def executor_pid(self) -> int | None:
        """Of the executor that works on the server's data folder."""
        status = ExecutorClient(self.home()).status()
        return int(status["pid"]) if status else None

    def homes(self) -> list[DataFolder]:
        """Every data folder an executor worked on."""
        return [DataFolder(folder.parent) for folder in self.root.glob("*/executor.lock")]

    def end(self) -> None:
        """Let everything leave in order: trials under way are finished, nothing is waited for."""
        for program in reversed(self.programs):
            program.end()
        for home in self.homes():
            # One whose server was killed last is nobody's child.
            ExecutorClient(home).ask("end")
        until(lambda: not self.processes(), "processes are left", 60, self.processes)

    def close(self) -> None:
        """Whatever the test came to: nothing is left running."""
        if "store" in self.__dict__:
            self.store.close()
        for program in self.programs:
            program.end()
        for home in self.homes():
            ExecutorClient(home).ask("end")
        deadline = time.monotonic() + 20
        while found := self.processes():
            if time.monotonic() > deadline:
                for pid in found:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    def processes(self) -> dict[int, str]:
        """Every process that has this installation in its command line or environment."""
        found = {}
        mark = os.fsencode(self.root) + b"/"
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    words = (entry / "cmdline").read_bytes()
                    if mark in words or mark in (entry / "environ").read_bytes():
                        found[int(entry.name)] = words.replace(b"\0", b" ").decode(errors="replace")
        return found


def inherited() -> dict[str, str]:
    """What a process needs of the environment of whoever runs the tests."""
    names = ("PATH", "HOME", "LANG", "TMPDIR", "XDG_RUNTIME_DIR")
    own = {name: os.environ[name] for name in names if name in os.environ}
    return {**own, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


def _mortal() -> list[str]:
    """It ends with the tests, also when those are killed."""
    return ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


def until(
    condition: Callable[[], T], what: str, timeout: float = 60, state: Callable[[], object] = lambda: ""
) -> T:
    """What a condition gives once that is something."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: {state()}"
        time.sleep(0.1)
    return found


def left_behind(home: DataFolder) -> list[str]:
    """What no trial may leave on a machine: sandboxes, cgroups, mounts, drafts."""
    records = home.sandboxes("local")
    # What was found out about the machine is kept for plans.
    files = [path for path in files_below(records) if path.name != "capabilities.json"]
    drafts = [path for run in home.runs.glob("*/drafts") for path in files_below(run)]
    groups = Cgroup.find(LocalProvider(records)._cgroup_prefix) if records.exists() else []
    mounts = [
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(home.root) in line
    ]
    return [str(one) for one in (*files, *drafts, *groups, *mounts)]
