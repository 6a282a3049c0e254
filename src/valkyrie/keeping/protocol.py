"""What a place that keeps artifacts, and one that keeps logs, is to the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from valkyrie.nouns import Json

LINK_SECONDS = 86_400
"""How long a download link is good for."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """One object that is kept."""

    key: str
    size: int
    modified_at: float
    metadata: Json | None = None
    """What it was put with, where listing tells."""


class ArtifactStore(Protocol):
    """Objects by key: `/`-separated, relative, no `.` or `..` part. Every call may be made from any thread.

    What cannot be reached raises InfrastructureError (cause `artifacts`), after retries of its own; what is
    not allowed or not there as configured raises UserError (cause `artifacts_config`); a key that is not
    there raises UnknownError. No credential is in any message.
    """

    @property
    def place(self) -> Json:
        """Plain data without credentials, from which the same store is opened again: `kind`, …"""
        ...

    def put(self, key: str, file: Path, metadata: Json | None = None) -> None:
        """Keep a file under a key, over an earlier one; it appears whole or not at all. Streamed."""
        ...

    def put_text(self, key: str, text: str) -> None:
        """Keep a text under a key, likewise."""
        ...

    def read(self, key: str) -> Iterator[bytes]:
        """The bytes, piece by piece."""
        ...

    def get(self, key: str, file: Path) -> None:
        """Fetch into a file, which appears whole or not at all."""
        ...

    def find(self, key: str) -> Artifact | None:
        """What is kept under exactly this key."""
        ...

    def list(self, prefix: str) -> Iterator[Artifact]:
        """Everything below a prefix (`benchmarks/<run>/`), by key."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Keep the same under another key, without fetching it."""
        ...

    def delete(self, prefix: str) -> None:
        """Remove everything below a prefix that ends with `/`, or the one object of that key, if any."""
        ...

    def url(self, key: str) -> str:
        """Its address for people: `s3://bucket/key`, or a path."""
        ...

    def link(self, key: str, seconds: int = LINK_SECONDS) -> str | None:
        """A link anyone can download with for so long; None where there is no such thing."""
        ...

    def console_url(self, prefix: str) -> str | None:
        """Where a person can browse it; None where there is no such place."""
        ...

    def check(self) -> None:
        """Raise unless objects can be written, read and removed here: asked before anything is spent."""
        ...

    def close(self) -> None:
        """Calls that wait for an outage to end fail now instead; for a program that must end."""
        ...


@dataclass(frozen=True, slots=True)
class LogName:
    """Whose log it is."""

    run_id: str
    task_id: str
    k: int
    attempt: int
    started_at: float


class LogKeeper(Protocol):
    """Takes attempts' logs on as their files grow. Never slows an attempt down, never fails one."""

    @property
    def place(self) -> Json:
        """Plain data without credentials, from which the same keeper is opened again."""
        ...

    def follow(self, name: LogName, file: Path) -> None:
        """An attempt begins; its log will be this file (which may not exist yet)."""
        ...

    def ended(self, name: LogName) -> None:
        """The attempt ended: what is left of the file is shipped soon."""
        ...

    def read(self, name: LogName) -> Iterator[str]:
        """What was shipped of a log, piece by piece; for who does not have the file."""
        ...

    def url(self, run_id: str) -> str | None:
        """Where a person can look at a run's logs."""
        ...

    def check(self) -> None:
        """Raise unless logs can be written here."""
        ...

    def close(self, timeout: float = 10.0) -> None:
        """Ship what is left, for at most so long."""
        ...
