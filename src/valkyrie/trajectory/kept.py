"""What was kept of an agent's account of a trial, read from the folder of its attempt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from valkyrie.trajectory.converting import trajectory_of, transcript_of
from valkyrie.trajectory.cut import is_too_large
from valkyrie.trajectory.reading import TrajectoryError
from valkyrie.trajectory.records import from_record, to_record
from valkyrie.trajectory.shape import Trajectory
from valkyrie.trajectory.transcript import INSTRUCTION, TRANSCRIPT, Json, Transcript

TRAJECTORY = "trajectory.json"
AGENT_FOLDER = "agent"
GRADING_FOLDER = "grading"
FILES = (f"{AGENT_FOLDER}/*{TRAJECTORY}", f"*{TRANSCRIPT}", f"{AGENT_FOLDER}/*{INSTRUCTION}")
"""Patterns of the files that are read here, for `outputs`."""


@dataclass(frozen=True, slots=True)
class Account:
    """What an agent did in a trial, or in one step of it."""

    step: str
    """Empty where the task has no steps."""
    instruction: str | None
    trajectory: Trajectory | None
    problem: str | None = None
    """Why there is a file and no trajectory: agents may leave anything."""

    def to_json(self) -> Json:
        """Return plain data; the trajectory as ATIF."""
        # One without a single step is none that can be written.
        trajectory = self.trajectory.to_json() if self.trajectory and self.trajectory.steps else None
        told = {"step": self.step or None, "instruction": self.instruction, "trajectory": trajectory}
        return {**told, "problem": self.problem} if self.problem else told


def read_accounts(folder: Path) -> list[Account]:
    """Return what the agent did, a step of the task each; nothing where nothing was kept."""
    agent = folder / AGENT_FOLDER
    return [_account(folder, step) for step in _steps(agent)] if folder.is_dir() else []


def read_record(folder: Path, *, id: str, stimulus: str) -> Json | None:
    """Return the account as a record of results.jsonl has it; None where there is none that can be read.

    Of a task of several steps it is that of the last.
    """
    for step in reversed(_steps(folder / AGENT_FOLDER)):
        for file in _records(folder, step):
            if (found := _json(file)) is not None:
                return found
        if (data := _json(folder / AGENT_FOLDER / step / TRAJECTORY)) is not None:
            try:
                transcript: Transcript = transcript_of(Trajectory.from_json(data))
            except TrajectoryError:
                continue
            return to_record(transcript, id=id, stimulus=stimulus, work_dir="")
    return None


def _steps(agent: Path) -> list[str]:
    """Folders of the steps, oldest first; of a task without steps there is one, called nothing."""
    inner = [one for one in agent.iterdir() if one.is_dir() and _has_any(one)] if agent.is_dir() else []
    named = [one.name for one in sorted(inner, key=lambda one: (one.stat().st_mtime_ns, one.name))]
    return named if named and not _has_any(agent) else [""]


def _has_any(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (TRAJECTORY, TRANSCRIPT, INSTRUCTION))


def _account(folder: Path, step: str) -> Account:
    told = _text(folder / AGENT_FOLDER / step / INSTRUCTION)
    try:
        if (data := _json(folder / AGENT_FOLDER / step / TRAJECTORY)) is not None:
            return Account(step, told, Trajectory.from_json(data))
        for file in _records(folder, step):
            if (record := _json(file)) is not None:
                return Account(step, told, trajectory_of(from_record(record)))
    except (TrajectoryError, ValueError, KeyError, TypeError, RecursionError) as error:
        return Account(step, told, None, f"what the agent left cannot be read: {error}"[:500])
    files = (folder / AGENT_FOLDER / step / TRAJECTORY, *_records(folder, step))
    sizes = [one.stat().st_size for one in files if one.is_file()]
    if sizes and is_too_large(max(sizes)):
        return Account(step, told, None, f"it has {max(sizes) >> 20} MiB; raise trajectory_max_mb to read it")
    return Account(step, told, None)


def _records(folder: Path, step: str) -> Iterator[Path]:
    """Where a transcript may be: what grading put together says more than what the agent left."""
    yield folder / GRADING_FOLDER / step / TRANSCRIPT
    yield folder / AGENT_FOLDER / step / TRANSCRIPT


def _json(path: Path) -> Json | None:
    text = _text(path)
    try:
        found = None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _text(path: Path) -> str | None:
    try:
        if path.is_symlink() or not path.is_file() or is_too_large(path.stat().st_size):
            return None
        return path.read_text("utf-8", "replace")
    except OSError:
        return None
