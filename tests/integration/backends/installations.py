"""The same command line on three back ends: embedded, a server on SQLite, a server on PostgreSQL."""

from __future__ import annotations

import contextlib
import getpass
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.integration.conftest import end_executor
from tests.ports import free_port
from valkyrie.cli.main import main
from valkyrie.config.values import KEYS

TOLD = ("NO_COLOR", "VALKYRIE_DEBUG", "VALKYRIE_DATABASE_URL", "VALKYRIE_SECRET_KEY", "API_KEY")
SEALING_KEY = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="


@dataclass(frozen=True)
class Said:
    """What a command line returned and printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Installation:
    """A person with a folder, a config file and a command line; where runs are is the back end's business."""

    name: str
    root: Path
    settings: dict[str, str]
    """Environment variables that lead to the back end."""
    told: list[tuple[str, int, str, str]] = field(default_factory=list)
    """Every command of the scene that plays, and its outcome, without what differs from run to run."""

    @property
    def folder(self) -> Path:
        return self.root / "work"

    def lose(self, run_id: str) -> None:
        """As if the run's executor had been on another machine: its logs and files are not where it was."""
        shutil.rmtree(self.root / "home" / "runs" / run_id)

    def valk(self, *words: str, stdin: str = "", env: dict[str, str] | None = None) -> Said:
        """One command in the person's folder; remembered as it must be the same everywhere."""
        said = self.ask(*words, stdin=stdin, env=env)
        command = self._plain(" ".join(words))
        self.told.append((command, said.code, self._plain(said.out), self._plain(said.err)))
        return said

    def ask(self, *words: str, stdin: str = "", env: dict[str, str] | None = None) -> Said:
        """One command that is not remembered: looking until something is so."""
        out, err = io.StringIO(), io.StringIO()
        variables = {**self.settings, **(env or {})}
        with contextlib.ExitStack() as stack:
            stack.enter_context(patch.dict(os.environ, variables))
            for name in {*TOLD, *(key.env for key in KEYS if key.env)} - {*variables}:
                os.environ.pop(name, None)
            stack.enter_context(contextlib.chdir(self.folder))
            stack.enter_context(contextlib.redirect_stdout(out))
            stack.enter_context(contextlib.redirect_stderr(err))
            stack.enter_context(patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()))))
            code = main(words)
        return Said(code, out.getvalue(), err.getvalue())

    def note(self, *facts: object) -> None:
        """Something else that must be the same everywhere."""
        self.told.append(("note", 0, self._plain(repr(facts)), ""))

    def start(self, *words: str, env: dict[str, str] | None = None) -> str:
        """Start a run; its id."""
        said = self.ask("run", "start", *words, "--json", env=env)
        assert said.code == 0, said
        run_id: str = said.json["run"]["id"]
        return run_id

    def finish(self, *words: str, env: dict[str, str] | None = None) -> str:
        """Start a run and wait for its end; its id."""
        run_id = self.start(*words, env=env)
        assert self.ask("run", "wait", run_id, "--timeout", "60").code in (0, 1)
        return run_id

    def run(self, run_id: str) -> dict[str, Any]:
        """The run as it stands."""
        view: dict[str, Any] = self.ask("run", "fetch", run_id, "--json").json["run"]
        return view

    def play(self, scene: Callable[[Installation], None]) -> list[tuple[str, int, str, str]]:
        """Every command of a scene and what it said."""
        self.told.clear()
        scene(self)
        return list(self.told)

    def _plain(self, text: str) -> str:
        """Without what cannot be the same twice: ids, times, folders, and the room they take."""
        text = text.replace(str(self.root), "ROOT")
        text = re.sub(r"(?m)^│ Folder .*\n", "", text)  # of this machine, where there is no tracker
        text = re.sub(r'("folder": )"[^"]*"', r'\1"FOLDER"', text)
        text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "RUN", text)
        text = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8}\b", "RUN", text)
        text = re.sub(r"\b127\.0\.0\.1:\d{2,5}\b", "HOST", text)
        text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?( UTC)?", "TIME", text)
        text = re.sub(r"\b\d\d:\d\d:\d\d\b", "TIME", text)
        text = re.sub(r"\b\d+(\.\d+)? (ms|s|min|h)\b", "DURATION", text)
        text = re.sub(r'("(?:\w+_at|version|pid|heartbeat)": )[0-9.e+-]+', r"\1NUMBER", text)
        text = re.sub(r"[─]+", "─", text)
        return re.sub(r" +", " ", text)


@contextlib.contextmanager
def embedded(root: Path) -> Iterator[Installation]:
    """No server: state in the data folder, an executor of its own."""
    (root / "work").mkdir(parents=True)
    settings = {**_common(root), "VALKYRIE_HOME": str(root / "home"), "VALKYRIE_EXECUTOR_IDLE_S": "60"}
    try:
        yield Installation("embedded", root, settings)
    finally:
        end_executor(root / "home")


class Server:
    """A real `valkyrie serve`; killed, it can be started again on the same port."""

    def __init__(self, root: Path, database: str | None = None) -> None:
        self._log = root / "server.log"
        self._env = {**os.environ, **_common(root), "VALKYRIE_HOME": str(root / "home")}
        self._env["VALKYRIE_TRACKER_ALLOWED_NETWORKS"] = "127.0.0.0/8"  # services of tests are there
        if database:
            self._env |= {"VALKYRIE_DATABASE_URL": database, "VALKYRIE_SECRET_KEY": SEALING_KEY}
        self._process: subprocess.Popen[str] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def key(self, person: str = "ann", org: str = "default") -> str:
        """A new API key."""
        out = io.StringIO()
        words = ["admin", "key", "create", "--person", person, "--org", org]
        with patch.dict(os.environ, self._env), contextlib.redirect_stdout(out):
            with contextlib.redirect_stderr(io.StringIO()) as err:
                assert main(words) == 0, err.getvalue()
        return out.getvalue().strip()

    def begin(self) -> None:
        """Start it, and wait until it listens."""
        words = ["serve", "--port", str(self.port), "--json", "--drain-timeout", "0"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "valkyrie", *words],
                env=self._env,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._log.read_text()
        assert json.loads(line)["url"] == self.url

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it, in order or not."""
        process, self._process = self._process, None
        if process is not None and process.stdout is not None:
            process.send_signal(how)
            process.stdout.read()
            process.wait(60)
            process.stdout.close()

    def close(self) -> None:
        """End it, and the executor it may have left behind."""
        self.end()
        end_executor(Path(self._env["VALKYRIE_HOME"]))


@contextlib.contextmanager
def server(root: Path, database: str | None = None) -> Iterator[Installation]:
    """A server and a key; the person's machine has nothing but its address."""
    (root / "work").mkdir(parents=True)
    running = Server(root, database)
    key = running.key(getpass.getuser())
    running.begin()
    settings = {
        **_common(root),
        "VALKYRIE_HOME": str(root / "nothing"),
        "TRACKER_SERVICE_URL": running.url,
        "VALKYRIE_API_KEY": key,
    }
    try:
        yield Installation("server-postgres" if database else "server-sqlite", root, settings)
    finally:
        running.close()


def _common(root: Path) -> dict[str, str]:
    source = Path(__file__).parents[3]
    return {
        "VALKYRIE_CONFIG_PATH": str(root / "config" / "valkyrie.yaml"),
        "PYTHONPATH": f"{source / 'src'}{os.pathsep}{source}",
        "TZ": "UTC",
    }
