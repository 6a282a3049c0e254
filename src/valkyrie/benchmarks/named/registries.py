"""Lists of tasks by name: `registry.json` (each task in some repository) and `dataset.toml` (beside it)."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from valkyrie.benchmarks.content import ContentDigests
from valkyrie.benchmarks.discovery import find_tasks
from valkyrie.benchmarks.named.git_source import FolderAt, fetch_all
from valkyrie.benchmarks.task_toml import ParsedToml, parse_toml
from valkyrie.errors import BenchmarkError, UsageError
from valkyrie.git.address import COMMIT, parse_source
from valkyrie.git.command import Progress
from valkyrie.git.fetching import TIMEOUT_S
from valkyrie.regular_files import read_regular
from valkyrie.suggest import did_you_mean

_TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class RegisteredDataset:
    """One named list of tasks in a `registry.json`."""

    name: str
    version: str
    tasks: Mapping[str, FolderAt]
    folder: Path
    """Where the registry lies; repositories of this machine must lie there too."""
    description: str = ""

    @property
    def reference(self) -> str:
        """`name@version`."""
        return f"{self.name}@{self.version}" if self.version else self.name

    def fetch(
        self, cache: Path, *, timeout: float = TIMEOUT_S, progress: Progress | None = None
    ) -> tuple[dict[str, Path], list[str]]:
        """Task → folder, and what is to be said about them."""
        for name, at in self.tasks.items():
            self._check_place(name, at)
        found, notices = fetch_all(list(self.tasks.values()), cache, timeout=timeout, progress=progress)
        return {name: found[at] for name, at in self.tasks.items()}, notices

    def _check_place(self, task: str, at: FolderAt) -> None:
        """Refuse a repository of this machine that is not the registry's to name."""
        place = parse_source(at.url, at.commit).folder
        if place is not None and not place.resolve().is_relative_to(self.folder.resolve()):
            raise UsageError(
                f"{self.reference}: task {task} names the repository {place} of this machine, outside of "
                f"{self.folder}. `valk benchmark add {place}` takes its tasks at your own word."
            )


@dataclass(frozen=True, slots=True)
class ListedDataset:
    """A `dataset.toml` and the folders of the tasks it lists."""

    name: str
    tasks: Mapping[str, Path]
    notices: Sequence[str] = ()


def read_registry(path: Path) -> list[RegisteredDataset]:
    """The data sets of a registry file. Raises UsageError naming data set and task."""
    try:
        listed = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {str(error)[:120]}.") from None
    if not isinstance(listed, list):
        raise UsageError(f"{path}: a registry is a list of data sets, each with name, version and tasks.")
    folder = path.absolute().parent
    return [_registered(item, f"{path}: data set {at}", folder) for at, item in enumerate(listed, 1)]


def choose(datasets: Sequence[RegisteredDataset], wanted: str, where: str) -> RegisteredDataset:
    """The one called `name` or `name@version`; the last version in the file when none is said."""
    name, _, version = wanted.partition("@")
    same = [dataset for dataset in datasets if dataset.name.lower() == name.lower()]
    fitting = [dataset for dataset in same if not version or dataset.version == version]
    if fitting:
        return fitting[-1]
    known = [dataset.reference for dataset in (same or datasets)]
    listed = ", ".join(known[:10])
    raise UsageError(f"{where} has no data set {wanted!r}; it has {listed}.{did_you_mean(wanted, known)}")


def _registered(item: object, where: str, folder: Path) -> RegisteredDataset:
    if not isinstance(item, dict) or not isinstance(item.get("tasks"), list):
        raise UsageError(f"{where} has no list of tasks.")
    name = _word(item, "name", where)
    where = f"{where} ({name})"
    tasks: dict[str, FolderAt] = {}
    seen: set[str] = set()
    for task in item["tasks"]:
        task_name, at = _registered_task(task, where)
        if task_name.lower() in seen:
            raise UsageError(f"{where}: two tasks are called {task_name!r}.")
        seen.add(task_name.lower())
        tasks[task_name] = at
    if not tasks:
        raise UsageError(f"{where} lists no tasks.")
    version, description = item.get("version"), item.get("description")
    return RegisteredDataset(name, str(version or ""), tasks, folder, str(description or ""))


def _registered_task(task: object, where: str) -> tuple[str, FolderAt]:
    if not isinstance(task, dict):
        raise UsageError(f"{where}: a task is an object with name, git_url, git_commit_id and path.")
    path = str(task.get("path") or "").strip("/")
    if path == ".":
        path = ""
    name = task.get("name") or PurePosixPath(path).name
    if not isinstance(name, str) or not _TASK_NAME.fullmatch(name):
        raise UsageError(f"{where}: {name!r} is no task's name.")
    inner = f"{where}, task {name}"
    url, commit = _word(task, "git_url", inner), _word(task, "git_commit_id", inner)
    if not COMMIT.fullmatch(commit):
        raise UsageError(f"{inner}: git_commit_id {commit!r} must be a whole commit, all 40 digits of it.")
    if any(part in ("", ".", "..") or part.lower() == ".git" for part in path.split("/") if path):
        raise UsageError(f"{inner}: {path!r} is no folder of a repository.")
    return name, FolderAt(url, commit, path)


def read_dataset(path: Path) -> ListedDataset:
    """A `dataset.toml`: its tasks are looked for in the folder it lies in."""
    try:
        data = parse_toml(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from None
    about, listed = data.get("dataset", {}), data.get("tasks", [])
    if not isinstance(about, dict) or not isinstance(listed, list) or not listed:
        raise UsageError(f"{path}: a data set has a [dataset] table and [[tasks]], each with a name.")
    name = str(about.get("name") or path.parent.resolve().name)
    beside = _Beside(path.parent)
    tasks: dict[str, Path] = {}
    for at, item in enumerate(listed, 1):
        if not isinstance(item, dict):
            raise UsageError(f"{path}: task {at} is no table.")
        word = _word(item, "name", f"{path}: task {at}")
        tasks[PurePosixPath(word).name] = beside.find(word, str(item.get("digest") or ""), path)
    return ListedDataset(PurePosixPath(name).name, tasks, list(beside.notices()))


@dataclass(slots=True)
class _Beside:
    """The task directories below a folder, by every name they have."""

    folder: Path
    _known: dict[str, Path] = field(default_factory=dict)
    _digests: ContentDigests = field(default_factory=ContentDigests)
    _unchecked: list[str] = field(default_factory=list)

    def find(self, word: str, digest: str, where: Path) -> Path:
        """The folder of the task called `word`; a digest of ours must be right, others cannot be checked."""
        names = self._names()
        found = names.get(word) or names.get(PurePosixPath(word).name)
        if found is None:
            raise UsageError(
                f"{where} lists the task {word!r}, which is not in {self.folder}: it is looked for beside "
                f"the file, by its folder's name or the name in task.toml.{did_you_mean(word, names)}"
            )
        if digest and digest.removeprefix("sha256:") != self._digests.of(found):
            self._unchecked.append(word)
        return found

    def notices(self) -> Iterator[str]:
        if self._unchecked:
            named = ", ".join(self._unchecked[:5])
            yield f"digests made by another tool were not checked ({len(self._unchecked)} tasks: {named})"

    def _names(self) -> dict[str, Path]:
        if not self._known:
            for task_id, folder in find_tasks(self.folder).items():
                self._known[PurePosixPath(task_id).name] = folder
                self._known[task_id] = folder
                self._known.update(_own_name(folder))
        return self._known


def _own_name(folder: Path) -> dict[str, Path]:
    try:
        name = ParsedToml.read(folder / "task.toml").config.task.name
    except BenchmarkError:
        return {}  # a broken task is told of when it is run
    return {name: folder} if name else {}


def _word(table: Mapping[str, Any], key: str, where: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise UsageError(f"{where}: {key} is missing, or no text.")
    return value.strip()


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} is larger than {_MOST_BYTES >> 20} MiB; it cannot be a list of tasks.")
        return read_regular(path, _MOST_BYTES).decode("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 (byte {error.start}).") from error
