"""Lists of tasks (`registry.json`, `dataset.toml`), and the folders of git repositories they name."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from benchmark_runner.archive import disk_error
from valkyrie.benchmarks.task_dir.benchmark import ContentDigests, find_tasks
from valkyrie.benchmarks.task_dir.task_toml import ParsedToml, parse_toml
from valkyrie.errors import BenchmarkError, BundleError, UsageError, paths_shown_as
from valkyrie.git.command import Progress
from valkyrie.git.local import COMMIT
from valkyrie.git.repository import (
    TIMEOUT_S,
    GitSource,
    Repository,
    WantedCommit,
    not_fetched,
    opened,
    parse_source,
)
from valkyrie.text import did_you_mean, read_regular

_ADDRESS = re.compile(r"(https?|ssh|file)://|[\w.-]+@[\w.-]+:")
_KEPT = "git"


@dataclass(frozen=True, slots=True)
class FetchedFolder:
    """A folder of a repository as it is at one commit."""

    folder: Path
    """Shared with whoever asks for the same: read, never written."""
    commit: str
    origin: str
    """`address[/folder]@commit`."""
    notices: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PinnedFolder:
    """A folder of some repository at some commit."""

    url: str
    commit: str
    path: str = ""
    """`/` between parts; empty is all of it."""

    @property
    def key(self) -> str:
        """The name it is kept under: a commit never changes."""
        return hashlib.sha256("\0".join((self.url, self.commit, self.path)).encode()).hexdigest()


def is_repository(text: str) -> bool:
    """Return whether people mean a git repository by this: an address, a clone, or a bare repository."""
    if _ADDRESS.match(text):
        return True
    folder = Path(text).expanduser()
    return (folder / ".git").exists() or ((folder / "HEAD").is_file() and (folder / "objects").is_dir())


def fetch(
    source: GitSource, cache: Path, *, timeout: float = TIMEOUT_S, progress: Progress | None = None
) -> FetchedFolder:
    """Return what a repository's address, branch and folder mean today; fetched unless it is here already."""
    with opened(source, timeout, progress) as repository:
        wanted = repository.resolve()
        commit = wanted.what if COMMIT.fullmatch(wanted.what) else repository.fetch(wanted)
        at = PinnedFolder(source.url, commit, wanted.folder)
        notices: Sequence[str] = ()
        if not _place(cache, at).is_dir():
            if commit == wanted.what:
                repository.fetch(wanted)
            notices = _take(repository, commit, {at: "all"}, cache)
    place = f"{source.url}/{wanted.folder}" if wanted.folder else source.url
    return FetchedFolder(_place(cache, at), commit, f"{place}@{commit}", notices)


def fetch_all(
    folders: Sequence[PinnedFolder],
    cache: Path,
    *,
    timeout: float = TIMEOUT_S,
    progress: Progress | None = None,
) -> tuple[dict[PinnedFolder, Path], list[str]]:
    """Every folder, and what is to be said about them; each repository is asked once per commit."""
    missing: dict[tuple[str, str], list[PinnedFolder]] = {}
    for at in dict.fromkeys(folders):
        if not _place(cache, at).is_dir():
            missing.setdefault((at.url, at.commit), []).append(at)
    notices: list[str] = []
    for (url, commit), wanted in missing.items():
        if not COMMIT.fullmatch(commit):
            raise UsageError(f"{url}: {commit!r} is no commit; a commit is named by all of its digits.")
        with opened(parse_source(url, commit), timeout, progress, logins=False) as repository:
            repository.fetch(WantedCommit(commit, "", commit))
            notices += _take(repository, commit, {at: str(n) for n, at in enumerate(wanted)}, cache)
    return {at: _place(cache, at) for at in folders}, notices


def _place(cache: Path, at: PinnedFolder) -> Path:
    return cache / _KEPT / at.key


def _take(repository: Repository, commit: str, folders: Mapping[PinnedFolder, str], cache: Path) -> list[str]:
    """Check folders out side by side under plain names, and move each to where it is kept."""
    trees = {name: repository.tree(commit, at.path) for at, name in folders.items()}
    whole = repository.joined(trees)
    entries = repository.check_listing(whole)
    repository.check_out(whole)
    url = repository.source.url
    notices = [f"{url}: {notice}" for notice in not_fetched(entries, repository.files)]
    for at, name in folders.items():
        with paths_shown_as({repository.files / name: f"{url}/{at.path}".rstrip("/")}):
            _refuse_links_outside(repository.files / name)
        _keep(repository.files / name, _place(cache, at))
    return notices


def _refuse_links_outside(root: Path) -> None:
    """Files are read as the benchmark's own: a link must not make them this machine's."""
    real = os.path.realpath(root)
    for parent, folders, files in os.walk(root):
        for path in (Path(parent, name) for name in (*folders, *files)):
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(real):
                raise BundleError(f"{path} is a link to {str(path.readlink())!r}, outside the folder taken.")


def _keep(folder: Path, place: Path) -> None:
    """Whole or not at all; another process may have been faster, with the same content."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=place.parent, prefix=".fetch-"))
        try:
            inner = part / "all"
            if folder.is_dir():
                shutil.copytree(folder, inner, symlinks=True)
            else:
                inner.mkdir()  # git keeps no empty folders
            inner.rename(place)
        except OSError:
            if not place.is_dir():
                raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise disk_error(f"{place} cannot be written", error) from None


# Lists of tasks by name: `registry.json` (each task in some repository) and `dataset.toml` (beside it).

_TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class RegisteredDataset:
    """One named list of tasks in a `registry.json`."""

    name: str
    version: str
    tasks: Mapping[str, PinnedFolder]
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

    def _check_place(self, task: str, at: PinnedFolder) -> None:
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
    tasks: dict[str, PinnedFolder] = {}
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


def _registered_task(task: object, where: str) -> tuple[str, PinnedFolder]:
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
    return name, PinnedFolder(url, commit, path)


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
