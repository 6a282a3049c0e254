"""Read published records, and write the tasks that converters make of them as task directories."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, TextIO

from sandboxes.registry import add_packages
from valkyrie.errors import UsageError
from valkyrie.text import did_you_mean

MOST_BYTES = 4 << 30
"""Of a file once unpacked; the largest data set here is below a tenth of it."""
KINDS = ("jsonl", "ndjson", "json", "csv", "tsv", "parquet")
_ROWS_WORDS = ("rows", "data", "examples", "records")
"""Where exports that are one JSON object keep their list."""


@dataclass(frozen=True, slots=True)
class PublishedRecord:
    """One published record."""

    fields: Mapping[str, Any]
    where: str
    """File and line, for messages."""

    @property
    def sha256(self) -> str:
        """Over the record's fields, whatever file format they came in."""
        return digest_of(self.fields)

    def get(self, *names: str) -> Any:
        """The first of these fields that is there and not None."""
        return next((self.fields[name] for name in names if self.fields.get(name) is not None), None)

    def text(self, *names: str) -> str:
        """The first of these fields, which must be there and must not be blank. Numbers become text."""
        value = self.get(*names)
        if value is None:
            raise self.problem(f"has no field {' or '.join(map(repr, names))}", names[0])
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            raise self.problem(f"{names[0]!r} should be text, not {type(value).__name__}")
        if not value.strip():
            raise self.problem(f"{names[0]!r} is empty")
        return value

    def problem(self, what: str, missing: str = "") -> UsageError:
        """Return what is wrong with this record, where, and what it does have."""
        has = f" (it has: {', '.join(list(self.fields)[:12])})" if missing else ""
        return UsageError(f"{self.where}: the record {what}{has}.{did_you_mean(missing, self.fields)}")


def digest_of(value: object) -> str:
    """sha256 of a JSON value in one canonical form."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def read_records(path: Path) -> Iterator[PublishedRecord]:
    """The records of a file, in order. Raises UsageError when it is none, or a line of it is broken."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name the file of records in it ({', '.join(KINDS)}).")
    kind = _kind(path)
    if kind == "parquet":
        rows: Iterator[PublishedRecord] = _parquet(path)
    elif kind == "json":
        rows = _json(path)
    elif kind in ("csv", "tsv"):
        rows = _csv(path, "\t" if kind == "tsv" else ",")
    else:
        rows = _jsonl(path)
    count = 0
    for row in rows:
        count += 1
        yield row
    if count == 0:
        raise UsageError(f"{path} holds no records.")


def files_of(source: Path, *places: str) -> list[Path]:
    """The files `source` means: itself, or those in the first of `places` below it, or in it."""
    if not source.is_dir():
        return [source]
    for folder in (*(source / place for place in places), source):
        found = sorted(path for path in folder.glob("*") if path.is_file() and _kind_of(path) in KINDS)
        if found:
            return found
    raise UsageError(f"{source} holds no file of records ({', '.join(KINDS)}).")


def file_of(source: Path, preferred: Sequence[str], *places: str) -> Path:
    """The one file `source` means: itself, or in a folder the first that fits a glob, else the only one."""
    found = files_of(source, *places)
    for pattern in preferred:
        if fitting := [path for path in found if fnmatch(path.name, pattern)]:
            return fitting[0]
    if len(found) > 1:
        listed = ", ".join(path.name for path in found[:8])
        raise UsageError(f"{source} holds several files of records; name one of them: {listed}.")
    return found[0]


def _kind(path: Path) -> str:
    kind = _kind_of(path)
    if kind not in KINDS:
        raise UsageError(f"{path}: cannot tell what it is by its name; it must end in .{', .'.join(KINDS)}.")
    return kind


def _kind_of(path: Path) -> str:
    suffixes = [suffix.lower().removeprefix(".") for suffix in path.suffixes]
    if suffixes and suffixes[-1] == "gz":
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _open(path: Path) -> TextIO:
    """The file as text, unpacked, and no more of it than `MOST_BYTES`."""
    try:
        packed = path.suffix.lower() == ".gz"
        raw: Any = gzip.open(path) if packed else path.open("rb")  # noqa: SIM115 - closed with the text
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}.") from error
    return io.TextIOWrapper(io.BufferedReader(_Bounded(raw, path)), encoding="utf-8-sig", newline="")


class _Bounded(io.RawIOBase):
    """Reads another file, up to `MOST_BYTES`."""

    def __init__(self, inner: Any, path: Path) -> None:
        self._inner = inner
        self._path = path
        self._left = MOST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data: bytes = self._inner.read(len(buffer))
        except (OSError, EOFError, zlib.error) as error:
            raise UsageError(f"cannot read {self._path}: {error}.") from error
        self._left -= len(data)
        if self._left < 0:
            raise UsageError(f"{self._path} is larger than {MOST_BYTES >> 30} GiB; it cannot be a data set.")
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._inner.close()
        super().close()


def _record(value: object, where: str) -> PublishedRecord:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: a record is an object with named fields, not {type(value).__name__}.")
    return PublishedRecord(value, where)


def _jsonl(path: Path) -> Iterator[PublishedRecord]:
    with _open(path) as file:
        number = 0
        try:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _record(_parsed(line, f"{path} line {number}"), f"{path} line {number}")
        except UnicodeDecodeError as error:
            raise UsageError(f"{path} line {number + 1}: not UTF-8 text ({error.reason}).") from error


def _parsed(text: str, where: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON: {str(error)[:120]}.") from error


def read_json(path: Path) -> object:
    """The one JSON value of a file."""
    with _open(path) as file:
        try:
            text = file.read()
        except UnicodeDecodeError as error:
            raise UsageError(f"{path}: not UTF-8 text ({error.reason}).") from error
    return _parsed(text, str(path))


def _json(path: Path) -> Iterator[PublishedRecord]:
    value = read_json(path)
    if isinstance(value, dict):
        rows = next((value[word] for word in _ROWS_WORDS if isinstance(value.get(word), list)), None)
        value = [value] if rows is None else rows
    if not isinstance(value, list):
        raise UsageError(f"{path}: expected a list of records, not {type(value).__name__}.")
    for number, item in enumerate(value, 1):
        # The data set viewer wraps each row: {"row_idx": 0, "row": {…}}.
        inner = item["row"] if isinstance(item, dict) and isinstance(item.get("row"), dict) else item
        yield _record(inner, f"{path} record {number}")


def _csv(path: Path, delimiter: str) -> Iterator[PublishedRecord]:
    csv.field_size_limit(1 << 28)
    with _open(path) as file:
        reader = csv.DictReader(file, delimiter=delimiter, strict=True)
        try:
            for row in reader:
                where = f"{path} line {reader.line_num}"
                if None in row:
                    raise UsageError(f"{where}: has more columns than the first line names.")
                yield PublishedRecord(row, where)
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{path} line {reader.line_num + 1}: not UTF-8 text ({error.reason})."
            ) from error
        except csv.Error as error:
            raise UsageError(f"{path} line {reader.line_num}: not CSV: {error}.") from error


def _parquet(path: Path) -> Iterator[PublishedRecord]:
    try:
        import pyarrow.parquet as parquet  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        raise UsageError(
            f"{path} is parquet, which needs the package pyarrow: `{add_packages(['pyarrow'])}`, or "
            'convert the file: python -c "import pandas; '
            "pandas.read_parquet('FILE').to_json('FILE.jsonl', orient='records', lines=True)\"."
        ) from None
    try:
        file = parquet.ParquetFile(path)
        number = 0
        for batch in file.iter_batches(batch_size=64):
            for row in batch.to_pylist():
                number += 1
                yield _record(row, f"{path} row {number}")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not a parquet file that can be read: {str(error)[:120]}.") from error


# Tasks that converters make of published records, and how they are written as task directories.

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
    """A function of this package that makes tasks of a benchmark's records."""

    def __call__(self, source: Path, options: ConverterOptions) -> Iterator[TaskDraft]:
        """Yield tasks in the data set's own order; `source` is the file or folder the user brought.

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


def write_tasks(
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
