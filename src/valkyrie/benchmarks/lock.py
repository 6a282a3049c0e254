"""`benchmark.lock`: what `benchmark check` found of each task, by the digest of the task's content.

A task that says nothing of its verification is graded as its entry says. An entry counts only while its
digest is the task's. The file is no part of any task, so that writing it changes no digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from valkyrie.errors import BenchmarkError, UsageError
from valkyrie.nouns import VerifyMode
from valkyrie.settings import data_folder

FILE_NAME = "benchmark.lock"
FOLDER = "locks"
VERSION = 1
MOST_BYTES = 64 << 20


class LockedTask(BaseModel):
    """What was found of one task."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    digest: str
    """Of the task's content, as it was checked."""
    mode: VerifyMode
    keep_processes: bool = False
    oracle: list[float | None] = Field(default_factory=list)
    """The score of each run of its own solution; null is a run without a verdict."""
    nop: float | None = None
    """The score of doing nothing."""
    open_to: list[str] = Field(default_factory=list)
    """The classes of cheating it is open to."""
    program: str = ""
    """The version of this program that looked."""


class Lock(BaseModel):
    """All of one file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    tasks: dict[str, LockedTask] = Field(default_factory=dict)

    def entry(self, task_id: str, digest: str) -> LockedTask | None:
        """What was found of the task, if it was found of this content."""
        found = self.tasks.get(task_id)
        return found if found is not None and found.digest == digest else None

    def to_text(self) -> str:
        """The file's content: the same entries give the same bytes."""
        return json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def own_lock(folder: Path) -> Path:
    """The lock file in a benchmark's own folder."""
    return folder / FILE_NAME


def kept_lock(folder: Path) -> Path:
    """The lock file of a benchmark whose folder is not to be written, in the data folder."""
    place = hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:12]
    return data_folder() / FOLDER / f"{folder.name}-{place}.lock"


def lock_file(folder: Path) -> Path | None:
    """The lock file that holds for the benchmark in `folder`: its own before the one in the data folder."""
    return next((path for path in (own_lock(folder), kept_lock(folder)) if path.is_file()), None)


def read_lock(folder: Path) -> Lock:
    """The lock of the benchmark in `folder`; an empty one where there is no file."""
    path = lock_file(folder)
    return Lock() if path is None else parse_lock(path)


def parse_lock(path: Path) -> Lock:
    """The lock in the file `path`. Raises BenchmarkError when it is none."""
    again = "; remove it, and run `valk benchmark check` again"
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return Lock()
    except OSError as error:
        raise BenchmarkError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > MOST_BYTES:
        raise BenchmarkError(f"{path} is larger than {MOST_BYTES >> 20} MiB{again}")
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BenchmarkError(f"{path} is not valid JSON ({error}){again}") from error
    if isinstance(data, dict) and data.get("version") != VERSION:
        raise BenchmarkError(
            f"{path} is of version {data.get('version')!r}; this program knows {VERSION}{again}"
        )
    try:
        return Lock.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise BenchmarkError(f"{path}: {key}: {first['msg']}{again}") from error


def write_lock(path: Path, entries: Mapping[str, LockedTask]) -> Lock:
    """Add or replace entries in the lock file at `path`; those of other tasks stay."""
    lock = Lock(tasks={**parse_lock(path).tasks, **entries})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".lock-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(lock.to_text())
            Path(draft).chmod(0o644)
            Path(draft).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(draft).unlink()
            raise
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    return lock
