"""Reading what an agent's program left: hostile data, so within bounds, and nothing in it raises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from valkyrie.agents.protocol import Trouble, Usage
from valkyrie.trajectory import Trajectory, TrajectoryBuilder
from valkyrie.trajectory.loose import at, dollars, items, parsed, tokens, word

__all__ = ["Ran", "Reading", "at", "dollars", "iso_time", "items", "json_lines", "parsed", "tokens", "word"]

MOST_LINE = 8 * 1024 * 1024
MOST_LINES = 200_000


@dataclass(frozen=True, slots=True)
class Ran:
    """How an agent's command went, for who reads its log."""

    log: Path
    """Its stdout, cut at a limit."""
    exit_code: int
    stderr: str = ""
    """The end of it."""
    instruction: str = ""
    kept: Path | None = None
    """The folder with what else was brought out of the sandbox."""
    seen: int = 0
    """Bytes of the session's own record that tell of earlier turns."""
    before: Usage | None = None
    """What earlier turns used, for programs that count from the beginning of the session."""
    began: float | None = None
    """When the command began, by our clock."""
    arrived: Sequence[tuple[int, float]] = ()
    """Up to which byte the log had come by when; most programs print no times of their own."""

    def events(self, built: TrajectoryBuilder) -> Iterator[dict[str, Any]]:
        """The JSON objects of the log; while one is read, `built` dates steps with the time it arrived."""
        arrived = iter(self.arrived)
        upto, when = next(arrived, (0, None))
        for end, event in _objects(self.log):
            while upto < end and when is not None:
                upto, when = next(arrived, (end, None))
            if when is not None:
                built.now = iso_time(when)
            yield event

    def begin(self, built: TrajectoryBuilder) -> None:
        """Begin with what the agent was told."""
        built.now = None if self.began is None else iso_time(self.began)
        built.user(self.instruction)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a log says."""

    trajectory: Trajectory | None = None
    usage: Usage | None = None
    trouble: Trouble | None = None


def iso_time(moment: float) -> str:
    """A moment as trajectories have it: `2026-11-17T04:26:23.120Z`."""
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def json_lines(path: Path, start: int = 0) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, one a line, from a byte on; lines that are none, or too long, are passed
    over."""
    return (found for _, found in _objects(path, start))


def _objects(path: Path, start: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """The same, each with the byte its line ends at."""
    with path.open("rb") as source:
        source.seek(start)
        for _ in range(MOST_LINES):
            line = source.readline(MOST_LINE)
            if not line:
                return
            if len(line) == MOST_LINE and not line.endswith(b"\n"):
                while (rest := source.readline(MOST_LINE)) and not rest.endswith(b"\n"):
                    pass
                continue
            found = parsed(line)
            if isinstance(found, dict):
                yield source.tell(), found
