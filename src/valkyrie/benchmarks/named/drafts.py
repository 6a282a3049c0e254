"""Tasks that converters make of published records, and how they are written as task directories."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from valkyrie.errors import UsageError

Files = Mapping[str, str | bytes]
"""Relative path (`/` between parts) → content. A name that ends in `.sh` becomes executable."""


@dataclass(frozen=True, slots=True)
class TaskDraft:
    """One task of a benchmark; `writing.write` makes the directory."""

    id: str
    """Name of its directory: letters, digits, `.`, `_`, `-`."""
    source_id: str
    """What the data set calls it."""
    record_sha256: str
    """Of the published record it was made from."""
    instruction: str
    tests: Files
    """`test.sh` must be among them. Arrive when the agent is dead."""
    solution: Files = field(default_factory=dict)
    """`solve.sh` and what it needs; empty when the data has no gold answer."""
    environment: Files = field(default_factory=dict)
    """Copied to the working folder before the agent starts, or the context of its Dockerfile."""
    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Tables of task.toml over the defaults: {"agent": {"timeout_sec": 3000.0}, "environment": {…}}."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What else is worth keeping in `[metadata]`: domain, difficulty."""
    keywords: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    """Named subsets of the benchmark that it belongs to, such as a language."""


@dataclass(frozen=True, slots=True)
class ConverterOptions:
    """What else a converter is told."""

    benchmark: str
    """Name of the benchmark, as in the catalogue."""
    variant: str = ""
    """Which of several benchmarks that share a converter, such as `instruct`."""


class Converter(Protocol):
    """A module of this package with a function `convert`."""

    def convert(self, source: Path, options: ConverterOptions) -> Iterator[TaskDraft]:
        """Tasks in the data set's own order, one by one; `source` is the file or folder the user brought.

        Raises UsageError naming file, line and field when the records are not what they should be.
        """
        ...


# Instructions from a template and a record, whatever characters the record has.

_PLACE = re.compile(r"@([A-Z_]+)@")


def fill(template: str, **values: str) -> str:
    """The template with its `@NAME@` replaced, once: a value that looks like a place stays as it is."""
    return _PLACE.sub(lambda match: values[match[1].lower()], template)


def fenced(text: str, language: str = "") -> str:
    """A fenced block that nothing in the text can end."""
    longest = max((len(run) for run in re.findall("`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


# Tasks whose answer is one short line in a file, graded by comparing it.


ANSWER = "/app/answer.txt"
# Only builtins of bash, for the agent may have replaced any program. A link is refused: it could lead to
# the expected value, which is there by now.
_TEST = """\
#!/bin/bash
# Compares /app/answer.txt with the expected value. No answer, or one of another form, earns 0; when the
# expected value cannot be read there is no verdict.
LC_ALL=C
out=${VERIFIER_DIR:-/logs/verifier}
answer=@ANSWER@
expected=
IFS= read -r expected < "${0%/*}/expected.txt"
if [ -z "$expected" ]; then
    printf 'the expected value cannot be read\\n' >&2
    exit 1
fi
given=
if [ -f "$answer" ] && [ ! -L "$answer" ]; then
    IFS= read -r -d '' -n 1000 given < "$answer"
fi
given=${given#"${given%%[![:space:]]*}"}
given=${given%"${given##*[![:space:]]}"}
reward=0
@RULE@
printf '%s\\n' "$reward" > "$out/reward.txt"
"""
_SOLVE = """\
#!/bin/bash
set -eu
mkdir -p "$(dirname @ANSWER@)"
cp "$(dirname "$0")/answer.txt" @ANSWER@
"""


def answer_tests(expected: str, rule: str) -> Files:
    """`rule` is bash that sets `reward=1` when `$given` (trimmed) is as good as `$expected`."""
    script = fill(_TEST, answer=ANSWER, rule=rule.strip())
    return {"test.sh": script, "expected.txt": f"{expected}\n"}


def answer_solution(expected: str) -> Files:
    """Writes the gold answer."""
    return {"solve.sh": fill(_SOLVE, answer=ANSWER), "answer.txt": f"{expected}\n"}


# Write drafts as task directories.

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
