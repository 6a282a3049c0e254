from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import valkyrie.tracker
from tests.unit.cli.fake_tracker import FakeTracker
from tests.unit.cli.said import HERE, Said
from tests.unit.cli.web import Web
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
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTracker:
    tracker = FakeTracker()
    monkeypatch.setattr(valkyrie.tracker, "open_tracker", lambda **_options: tracker, raising=False)
    return tracker


@pytest.fixture
def valk(
    fake: FakeTracker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Said]:
    def call(*words: str, stdin: str = "") -> Said:
        monkeypatch.setattr(
            sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode(errors="surrogateescape")))
        )
        code = main(words)
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return call


@pytest.fixture
def web() -> Iterator[Web]:
    """A web server on loopback that answers what a test puts into it."""
    served = Web()
    with served.running():
        yield served


@pytest.fixture
def program_env() -> dict[str, str]:
    """Environment for `fake_valk.py` and `python -m valkyrie` as processes."""
    source = str(HERE.parents[2] / "src")
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join((source, str(HERE), str(HERE.parents[2]))),
        "TERM": "xterm",
        "PYTHONWARNINGS": "error",
    }
