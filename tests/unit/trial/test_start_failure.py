"""Agents that never started: told by their exit code, or by what their interpreter prints first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from valkyrie.agents.protocol import AgentExit, AgentUsage
from valkyrie.domain import ExitReason
from valkyrie.trial.attempt import start_failure

MISSING = "node:internal/modules/cjs/loader:1148\n  throw err;\n  ^\n\nError: Cannot find module '/a.js'\n"


@pytest.mark.parametrize("code", [126, 127])
def test_a_command_that_cannot_be_run(code: int) -> None:
    failure = start_failure(AgentExit(code), "sh: 1: agent: not found\n")
    assert failure is not None and failure.cause == "agent_not_started"
    assert f"exit code {code}" in str(failure)


@pytest.mark.parametrize(
    "program", ["import no_such_module_at_all\n", "def broken(:\n", "from os import nothing_of_it\n"]
)
def test_a_program_python_cannot_load(program: str, tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text(program)
    ran = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False)
    failure = start_failure(AgentExit(ran.returncode), ran.stderr)
    assert failure is not None and failure.cause == "agent_not_started" and "Error" in str(failure)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "no.py")], capture_output=True, text=True, check=False
    )
    assert start_failure(AgentExit(ran.returncode), ran.stderr) is not None
    assert start_failure(AgentExit(1), MISSING) is not None


@pytest.mark.parametrize(
    ("ended", "heard"),
    [
        (AgentExit(0), "Traceback (most recent call last):\nImportError: x\n"),
        (AgentExit(1), "working\nTraceback (most recent call last):\n  File\nImportError: x\n"),
        (AgentExit(1), 'Traceback (most recent call last):\n  File "a"\nKeyError: 1\n'),
        (AgentExit(1), "the key is wrong\n"),
        (AgentExit(127, ExitReason.TIMEOUT), ""),
        (AgentExit(127, usage=AgentUsage(steps=4)), ""),
    ],
    ids=["ended well", "had begun", "another error", "said why", "out of time", "used its model"],
)
def test_agents_that_started(ended: AgentExit, heard: str) -> None:
    assert start_failure(ended, heard) is None


def test_whatever_is_printed_is_looked_at_quickly() -> None:
    for text in ("Traceback (most recent call last):\n" + "  x\n" * 4000, "\n" * 16_000, ' File "' * 2000):
        assert start_failure(AgentExit(1), text) is None
