"""Under which keys things are kept: the layout people find in their bucket."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING
from urllib.parse import quote

from valkyrie.errors import UsageError

if TYPE_CHECKING:
    from valkyrie.keeping.protocol import LogName

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
    """A pushed agent's archive."""
    return f"{AGENTS}{name}.zip"


def run_prefix(run_id: str) -> str:
    """Everything of one run."""
    return f"benchmarks/{run_id}/"


def frozen_agent_key(run_id: str, name: str) -> str:
    """The agent as this run has it."""
    return f"{run_prefix(run_id)}{quote(name, safe='')}.zip"


def results_key(run_id: str, benchmark: str, subset: str | None = None) -> str:
    """The results file; that of a subset of tasks stands beside it and never in its place."""
    name = quote(benchmark, safe=" +,=@()[]")
    return f"{run_prefix(run_id)}{name}{f'-subset-{subset}' if subset else ''}.json"


def task_prefix(run_id: str, task: str) -> str:
    """What the last attempt of a task's first trial left; `task` is encoded as in the data folder."""
    return f"{run_prefix(run_id)}{task}/"


def attempt_prefix(run_id: str, task: str, k: int, attempt: int) -> str:
    """What one attempt left, its log included; none is ever replaced by another."""
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
