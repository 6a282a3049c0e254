"""Read published records: jsonl, json, csv, tsv and parquet, plain or gzipped, with the place of each."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TextIO

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


def read(path: Path) -> Iterator[PublishedRecord]:
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
