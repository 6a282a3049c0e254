"""Write drafts as task directories."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from valkyrie.benchmarks.named.drafts import Files, TaskDraft
from valkyrie.errors import UsageError

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "agent": {"timeout_sec": 1800.0},
    # Graders bring all they need; what an agent did to the system is no part of any of these answers.
    "verifier": {"timeout_sec": 120.0, "environment_mode": "fresh"},
    "environment": {"cpus": 1, "memory_mb": 2048, "storage_mb": 4096, "network_mode": "no-network"},
}


def write(
    drafts: Iterable[TaskDraft],
    folder: Path,
    benchmark: str,
    metadata: Mapping[str, Any] | None = None,
    mark: Callable[[TaskDraft], Mapping[str, Any]] = lambda _draft: {},
) -> list[str]:
    """Write each draft below `folder` and return the ids in order.

    `metadata` (where the records come from) goes into every task, and what `mark` says about this one.
    """
    ids: dict[str, str] = {}
    for draft in drafts:
        _check(draft, ids)
        ids[draft.id.lower()] = draft.id
        target = folder / draft.id
        extra = {**(metadata or {}), **mark(draft)}
        put_file(target / "task.toml", task_toml(draft, benchmark, extra))
        put_file(target / "instruction.md", draft.instruction.rstrip() + "\n")
        for part in ("tests", "solution", "environment"):
            put_files(target / part, getattr(draft, part))
    return list(ids.values())


def _check(draft: TaskDraft, ids: Mapping[str, str]) -> None:
    if not _ID.fullmatch(draft.id):
        raise UsageError(
            f"record {draft.source_id!r} would become the task {draft.id!r}, which cannot be a folder's name."
        )
    if draft.id.lower() in ids:
        raise UsageError(f"two records are called {draft.source_id!r}; which of them is meant?")
    if "test.sh" not in draft.tests:
        raise AssertionError(f"the converter gave task {draft.id} no tests/test.sh")


def task_toml(draft: TaskDraft, benchmark: str, metadata: Mapping[str, Any]) -> str:
    """The text of a draft's task.toml."""
    names = [*_DEFAULTS, *(name for name in draft.config if name not in _DEFAULTS)]
    tables: dict[str, Mapping[str, Any]] = {
        "task": {"name": f"{benchmark}/{draft.id}", "keywords": list(draft.keywords)},
        "metadata": {
            "benchmark": benchmark,
            "source_id": draft.source_id,
            "record_sha256": draft.record_sha256,
            **draft.metadata,
            **metadata,
        },
        **{name: {**_DEFAULTS.get(name, {}), **draft.config.get(name, {})} for name in names},
    }
    return 'schema_version = "1.4"\n' + "".join(
        f"\n[{name}]\n" + "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items())
        for name, table in tables.items()
    )


def toml_text(tables: Mapping[str, Any]) -> str:
    """Plain keys as TOML lines."""
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in tables.items())


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, str):
        # A JSON string is a TOML string, but for the one control character JSON leaves alone.
        whole = value.encode("utf-8", "replace").decode()
        return json.dumps(whole, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    raise TypeError(f"{type(value).__name__} cannot be written to task.toml")


def put_files(folder: Path, files: Files) -> None:
    """Write files below `folder`; their names must stay inside it."""
    for name, content in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
            raise UsageError(f"a record names the file {name!r}, which is not a path inside its task.")
        put_file(folder / path, content)


def put_file(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode("utf-8", "replace") if isinstance(content, str) else content)
    if path.suffix == ".sh":
        path.chmod(0o755)
