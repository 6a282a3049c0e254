"""Where a run is kept: `<results>/<run_id>/`, every file written whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from benchmark_runner.checkpoint import RunConfig
from benchmark_runner.schemas import EvalResult, GenerationResult, ScoreResult

Model = TypeVar("Model", bound=BaseModel)

LONGEST_NAME = 200
"""Bytes; file systems take 255, and a name needs room for an ending."""
_PLAIN = " +,=@()[]:"
_TEMPORARY = ".new-"


class ArtifactError(Exception):
    """A file of a run cannot be used; the message names it and the way out."""


class RunInUseError(ArtifactError):
    """Another process works on the run."""


class RunArtifacts:
    """The files of one run."""

    def __init__(self, results_dir: Path | str, run_id: str) -> None:
        self.run_id = checked_run_id(run_id)
        self.shown = Path(results_dir) / self.run_id
        """The run's folder as it was named, for messages."""
        self.root = self.shown.absolute()
        """The same folder, also where an author's code goes to another one."""
        self.set_aside: list[Path] = []
        """Files that could not be read and were moved out of the way."""

    @property
    def config_path(self) -> Path:
        """The run's configuration."""
        return self.root / "run_config.json"

    @property
    def score_path(self) -> Path:
        """The run's score."""
        return self.root / "final_score.json"

    def task_dir(self, task_id: str) -> Path:
        """Return all that is kept of one task."""
        return _task_dir(self.root, task_id)

    def generation_path(self, task_id: str) -> Path:
        """A task's answer."""
        return self.task_dir(task_id) / "generation.json"

    def eval_path(self, task_id: str) -> Path:
        """A task's evaluation."""
        return self.task_dir(task_id) / "eval.json"

    def log_dir(self, task_id: str) -> Path:
        """Return where `generate` may leave files."""
        return self.task_dir(task_id) / "agent_logs"

    def shown_log_dir(self, task_id: str) -> Path:
        """The same, as it was named."""
        return self.shown / folder_name(task_id) / "agent_logs"

    def make_log_dir(self, task_id: str) -> Path:
        """The same, as a folder that is there."""
        logs = self.log_dir(task_id)
        try:
            os.makedirs(logs, exist_ok=True)  # noqa: PTH103 - one for every task: cheaper
        except OSError as error:
            raise ArtifactError(f"{logs} cannot be made: {error.strerror}.") from error
        return logs

    def read_config(self) -> RunConfig | None:
        """Return what the run was started with, if it was. Not repairable, so a broken one is an error."""
        try:
            return RunConfig.model_validate_json(self.config_path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise ArtifactError(
                f"{self.config_path} is not a run's configuration: {_first(error)}. "
                "Restore it, or start anew with another --run-id."
            ) from None

    def write_config(self, config: RunConfig) -> None:
        """Keep what the run was started with."""
        write_model(self.config_path, config)

    def read_generation(self, task_id: str) -> GenerationResult | None:
        """A task's answer, if there is one."""
        return self._read(GenerationResult, self.generation_path(task_id))

    def write_generation(self, result: GenerationResult) -> None:
        """Keep an answer."""
        write_model(self.generation_path(result.task_id), result)

    def read_eval(self, task_id: str) -> EvalResult | None:
        """A task's evaluation, if there is one."""
        return self._read(EvalResult, self.eval_path(task_id))

    def write_eval(self, result: EvalResult) -> None:
        """Keep an evaluation."""
        write_model(self.eval_path(result.task_id), result)

    def drop_eval(self, task_id: str) -> None:
        """Forget the evaluation of an answer that is about to be replaced."""
        self.eval_path(task_id).unlink(missing_ok=True)

    def read_score(self) -> ScoreResult | None:
        """The score, if the run has one."""
        return self._read(ScoreResult, self.score_path)

    def write_score(self, score: ScoreResult) -> None:
        """Keep the score."""
        write_model(self.score_path, score)

    def drop_score(self) -> None:
        """Forget a score that evaluations have outrun."""
        self.score_path.unlink(missing_ok=True)

    # Upstream's names for the same.

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        return self.root

    @property
    def run_config_path(self) -> Path:
        """The run's configuration."""
        return self.config_path

    @property
    def final_score_path(self) -> Path:
        """The run's score."""
        return self.score_path

    def agent_logs_dir(self, task_id: str) -> Path:
        """Return where `generate` may leave files."""
        return self.log_dir(task_id)

    load_run_config, save_run_config = read_config, write_config
    load_generation, save_generation = read_generation, write_generation
    load_eval, save_eval = read_eval, write_eval
    load_final_score, save_final_score = read_score, write_score

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep other processes from working on the run; RunInUseError where one already does."""
        had_results = self.root.parent.exists()
        handle = self._lock()
        try:
            self._sweep()
            yield
        finally:
            if not self.config_path.exists():
                # It never came to a run: nothing is left of the attempt.
                self._lock_path.unlink(missing_ok=True)
                with suppress(OSError):
                    self.root.rmdir()
                    if not had_results:
                        self.root.parent.rmdir()
            os.close(handle)

    def ignores_case(self) -> bool:
        """Return whether the file system takes names for the same that differ in case only. Within
        `in_use`."""
        return self._lock_path.with_name(self._lock_path.name.upper()).exists()

    def has_answers(self) -> bool:
        """Return whether any task was ever generated."""
        return next(self.root.glob("*/generation.json"), None) is not None

    def _sweep(self) -> None:
        """Remove what a process that was killed had begun to write."""
        with os.scandir(self.root) as entries:
            folders = [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
        for folder in (self.root, *folders):
            for path in folder.iterdir():
                if path.name.startswith(_TEMPORARY):
                    path.unlink(missing_ok=True)

    @property
    def _lock_path(self) -> Path:
        return self.root / ".lock"

    def _lock(self) -> int:
        while True:
            self.root.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(handle), self._lock_path.stat()):
                    return handle
            except BlockingIOError:
                os.close(handle)
                raise RunInUseError(
                    f"Another process is working on run {self.run_id} ({self.shown}). "
                    "Wait for it or stop it, or choose another --run-id."
                ) from None
            except FileNotFoundError:
                pass  # its holder went away with it just now
            os.close(handle)

    def _read(self, model: type[Model], path: Path) -> Model | None:
        try:
            return model.model_validate_json(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValidationError:
            aside = path.with_name(f"{path.name}.unreadable")
            path.replace(aside)
            self.set_aside.append(aside)
            return None


def checked_run_id(run_id: str) -> str:
    """A run id that can name a folder; ValueError otherwise."""
    if run_id in ("", ".", "..") or not run_id.isprintable() or re.search(r"[/\\]", run_id):
        raise ValueError(f"{run_id!r} is no run id: it names a folder, so no slashes, not empty, not . or ..")
    if len(os.fsencode(run_id)) > LONGEST_NAME:
        raise ValueError(f"the run id is too long: {len(os.fsencode(run_id))} bytes, at most {LONGEST_NAME}")
    return run_id


@lru_cache(maxsize=4096)
def _task_dir(root: Path, task_id: str) -> Path:
    return root / folder_name(task_id)


@lru_cache(maxsize=4096)
def folder_name(task_id: str) -> str:
    """A task's folder: its id where that is a plain name, else encoded so that no two ids share one."""
    if not task_id or not task_id.isprintable():
        raise ValueError(f"{task_id!r} is no task id: it must be printable and not empty")
    name = quote(task_id, safe=_PLAIN)
    if name.startswith(".") or name.lower().endswith(".json"):
        # Hidden files and the run's own files are not tasks.
        name = name.replace(".", "%2E")
    if len(name) > LONGEST_NAME:
        digest = hashlib.sha256(task_id.encode()).hexdigest()[:16]
        name = f"{name[: LONGEST_NAME - 20]}%~{digest}"
    return name


def write_model(path: Path, model: BaseModel) -> None:
    """Write JSON so that a reader sees the old file or the new one, whatever happens in between.

    ValueError where the model holds what JSON cannot carry, ArtifactError where the file cannot be written.
    """
    text = memoryview(_as_json(model))
    folder, name = os.path.split(path)
    part = f"{folder}/{_TEMPORARY}{name}-{os.getpid()}"
    try:
        with _opened(part, folder) as sink:
            while text:
                text = text[sink.write(text) :]
        os.rename(part, path)  # noqa: PTH104 - two of these for every task: paths as text are cheaper
    except OSError as error:
        with suppress(OSError):
            Path(part).unlink()
        raise ArtifactError(f"{path} cannot be written: {error.strerror}.") from error


def _as_json(model: BaseModel) -> bytes:
    try:
        return model.model_dump_json(indent=2).encode() + b"\n"
    except PydanticSerializationError:
        pass  # half a surrogate pair, which is replaced, or no JSON at all
    try:
        text = json.dumps(model.model_dump(), indent=2, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"what would be written is not JSON: {error}") from None
    return text.encode("utf-8", "replace") + b"\n"


def _opened(part: str, folder: str) -> io.FileIO:
    try:
        return io.FileIO(part, "wb")
    except FileNotFoundError:
        Path(folder).mkdir(parents=True, exist_ok=True)
        return io.FileIO(part, "wb")


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]
