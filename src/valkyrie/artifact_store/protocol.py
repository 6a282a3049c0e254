"""What artifact stores and log keepers offer, and the keys they keep things under."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from valkyrie.domain import Json
from valkyrie.errors import UsageError

LINK_SECONDS = 86_400
"""How long a download link is good for."""


@dataclass(frozen=True, slots=True)
class StoredArtifact:
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

    def find(self, key: str) -> StoredArtifact | None:
        """Return what is kept under exactly this key."""
        ...

    def list(self, prefix: str) -> Iterator[StoredArtifact]:
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
        """Return where a person can browse it; None where there is no such place."""
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
        """Return what was shipped of a log, piece by piece; for who does not have the file."""
        ...

    def url(self, run_id: str) -> str | None:
        """Return where a person can look at a run's logs."""
        ...

    def check(self) -> None:
        """Raise unless logs can be written here."""
        ...

    def close(self, timeout: float = 10.0) -> None:
        """Ship what is left, for at most so long."""
        ...


# Under which keys things are kept: the layout people find in their bucket.


AGENTS = "agents/"
LONGEST_KEY = 1024
"""Bytes, a store's own prefix included."""
LONGEST_STREAM = 512


def check_key(key: str) -> str:
    """The key as it is; UsageError unless it names one object below the store's top and nothing else."""
    parts = key.split("/")
    if not key.isprintable() or any(part in ("", ".", "..") for part in parts):
        raise UsageError(
            f"{key[:200]!r} cannot be an artifact's key: parts between `/` that are printable, not empty and "
            "not `.` or `..` are.",
            cause="artifact_key",
        )
    if len(key.encode()) > LONGEST_KEY:
        raise UsageError(
            f"The artifact's key {key[:80]}… has more than {LONGEST_KEY} bytes.", cause="artifact_key"
        )
    return key


def check_prefix(prefix: str) -> str:
    """A prefix without its last `/`; nothing for everything."""
    bare = prefix.removesuffix("/")
    return check_key(bare) if bare else ""


def agent_key(name: str) -> str:
    return f"{AGENTS}{name}.zip"


def run_prefix(run_id: str) -> str:
    return f"benchmarks/{run_id}/"


def frozen_agent_key(run_id: str, name: str) -> str:
    return f"{run_prefix(run_id)}{quote(name, safe='')}.zip"


def results_key(run_id: str, benchmark: str, subset: str | None = None) -> str:
    """The results file; that of a subset of tasks stands beside it and never in its place."""
    name = quote(benchmark, safe=" +,=@()[]")
    return f"{run_prefix(run_id)}{name}{f'-subset-{subset}' if subset else ''}.json"


def task_prefix(run_id: str, task: str) -> str:
    """Return what the last attempt of a task's first trial left; `task` is encoded as in the data folder."""
    return f"{run_prefix(run_id)}{task}/"


def attempt_prefix(run_id: str, task: str, k: int, attempt: int) -> str:
    """Return what one attempt left, its log included; none is ever replaced by another."""
    return f"{task_prefix(run_id, task)}attempts/{k}/{attempt}/"


def upload_key(digest: str) -> str:
    """A benchmark's folder or an agent that came with a request, by digest."""
    return f"uploads/{digest}.zip"


def stream_name(name: LogName) -> str:
    """An attempt's log among those of its run: the task's id, and when it began in hex microseconds."""
    task = name.task_id.replace(":", "_").replace("*", "_")
    ending = f"{f'_k{name.k}' if name.k else ''}_{round(name.started_at * 1_000_000):x}"
    if len(task) + len(ending) > LONGEST_STREAM:
        ending = f"-{hashlib.sha256(name.task_id.encode()).hexdigest()[:24]}{ending}"
    return task[: LONGEST_STREAM - len(ending)] + ending
