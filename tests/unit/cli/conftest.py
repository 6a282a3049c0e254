from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.cli.command_result import HERE, CommandResult
from tests.unit.cli.filled_store import FilledStore
from tests.unit.cli.recorded_tracker import RecordedTracker
from tests.unit.cli.web_server import Web
from valkyrie.cli.main import main
from valkyrie.config.values import KEYS

DAYTONA = ("DAYTONA_API_KEY", "DAYTONA_API_URL", "DAYTONA_TARGET")


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALKYRIE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "config" / "valkyrie.yaml"))
    monkeypatch.setenv("TZ", "UTC")
    for name in ("NO_COLOR", "VALKYRIE_DEBUG", *(key.env for key in KEYS if key.env), *DAYTONA):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[FilledStore]:
    """The data folder of the person at the command line: its store is empty, its executor only answers."""
    store = FilledStore(tmp_path / "home")
    yield store
    store.close()


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> RecordedTracker:
    """What the command line asks of its tracker."""
    return RecordedTracker(monkeypatch)


@pytest.fixture
def valk(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., CommandResult]:
    def call(*words: str, stdin: str = "") -> CommandResult:
        monkeypatch.setattr(
            sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode(errors="surrogateescape")))
        )
        code = main(words)
        captured = capsys.readouterr()
        return CommandResult(code, captured.out, captured.err)

    return call


@pytest.fixture
def web() -> Iterator[Web]:
    """A web server on loopback that answers what a test puts into it."""
    served = Web()
    with served.running():
        yield served


@pytest.fixture
def program_env() -> dict[str, str]:
    """Environment for `python -m valkyrie` as a process."""
    source = str(HERE.parents[2] / "src")
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    return {
        **inherited,
        "PYTHONPATH": source,
        "TERM": "xterm",
        "PYTHONWARNINGS": "error",
    }
