"""`benchmark add`: make published records or task directories a benchmark with a name."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

from benchmark_runner.archive import disk_error
from valkyrie.benchmarks.named import catalog, registries
from valkyrie.benchmarks.named import conversion as writing
from valkyrie.benchmarks.named.catalog import (
    SHIPPED,
    AddedBenchmark,
    PublicBenchmark,
    converter_of,
    suggestion,
)
from valkyrie.benchmarks.named.conversion import ConverterOptions, TaskDraft, digest_of
from valkyrie.benchmarks.task_dir.benchmark import LOCK_FILE_NAME as LOCK
from valkyrie.benchmarks.task_dir.benchmark import MANIFEST_FILE_NAME as MANIFEST
from valkyrie.benchmarks.task_dir.benchmark import BenchmarkManifest, find_tasks, read_manifest
from valkyrie.benchmarks.task_dir.task_toml import stray_problem
from valkyrie.config.values import data_folder
from valkyrie.errors import BenchmarkError, UnknownError, UsageError
from valkyrie.git.repository import parse_source
from valkyrie.text import did_you_mean

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LocatedSource:
    """What was named, on this machine by now."""

    origin: str
    """How it is remembered: no path of this machine, which others may not see."""
    revision: str
    path: Path | None = None
    """Records."""
    tasks: Mapping[str, Path] = field(default_factory=dict)
    """Task directories, by id."""
    notices: Sequence[str] = ()
    folder: Path | None = None
    """The folder the task directories are in, with what it says of them."""


def locate(
    entry: PublicBenchmark | None, name: str, source: str | None, cache: Path, say: Say
) -> LocatedSource:
    """Return what `source` means for this benchmark; `say` is told before the network is used."""
    if source is None:
        return _fetched(entry, _home(entry, name), cache, say)
    path = Path(source).expanduser()
    if path.name == "registry.json" and path.is_file():
        return _registered(entry, name, path, cache, say)
    listing = path / "dataset.toml" if path.is_dir() else path
    if listing.name == "dataset.toml" and listing.is_file():
        return _listed(listing)
    repository = registries.is_repository(source)
    # A clone is taken as it lies there, unless it is known which commit is meant, or it has no files.
    by_commit = repository and (bool(entry and entry.commit) or not (path / ".git").exists())
    if path.exists() and not by_commit:
        return _local(entry, path)
    if repository:
        return _fetched(entry, source, cache, say)
    raise UsageError(
        f"--from {source}: there is no such file or folder, and it is no address of a repository."
    )


def _home(entry: PublicBenchmark | None, name: str) -> str:
    if entry is not None and entry.git:
        return entry.git
    if entry is None:
        raise UsageError(
            f"{name} is no benchmark of the catalogue (`valk benchmark list --available`)."
            f"{suggestion(name)} For one of your own, say --from where its tasks are."
        )
    raise UsageError(
        f"{entry.name} needs --from: {entry.bring}. It is published as {'; '.join(entry.published)}."
    )


def _fetched(entry: PublicBenchmark | None, address: str, cache: Path, say: Say) -> LocatedSource:
    wanted = parse_source(address)
    if entry is not None and entry.commit and not wanted.tree:
        wanted = parse_source(address, entry.commit)
    if wanted.protocols != ("file",):
        say(f"Fetching {wanted.url}: this needs the network.")
    try:
        got = registries.fetch(wanted, cache)
    except UnknownError as error:
        if entry is None or wanted.ref != entry.commit:
            raise
        raise UnknownError(
            f"{error} {entry.title} is this commit: fetch it there, or add the clone under a name of yours."
        ) from None
    tasks = find_tasks(got.folder) if entry is None or entry.kind == "tasks" else {}
    path = None if tasks else got.folder
    return LocatedSource(got.origin, got.commit, path, tasks, got.notices, got.folder if tasks else None)


def _registered(entry: PublicBenchmark | None, name: str, path: Path, cache: Path, say: Say) -> LocatedSource:
    datasets = registries.read_registry(path)
    known = {dataset.reference for dataset in datasets} | {dataset.name for dataset in datasets}
    words = (name, *(entry.aliases if entry else ()))
    chosen = registries.choose(datasets, next((word for word in words if word in known), name), str(path))
    say(f"Fetching {len(chosen.tasks)} tasks of {chosen.reference}: this needs the network.")
    tasks, notices = chosen.fetch(cache)
    return LocatedSource(f"{path.name} {chosen.reference}", _digest([path]), None, tasks, notices)


def _listed(path: Path) -> LocatedSource:
    listed = registries.read_dataset(path)
    return LocatedSource(
        f"{path.name} {listed.name}", digest_of_folders(listed.tasks), None, listed.tasks, listed.notices
    )


def _local(entry: PublicBenchmark | None, path: Path) -> LocatedSource:
    if entry is None or entry.kind == "tasks":
        if not path.is_dir():
            what = entry.name if entry else "a benchmark outside the catalogue"
            raise UsageError(f"--from {path}: {what} is made from a folder of task directories, not a file.")
        tasks = find_tasks(path)
        return LocatedSource(path.absolute().name, digest_of_folders(tasks), None, tasks, folder=path)
    files = _files(path) if path.is_dir() else [path]
    return LocatedSource(path.absolute().name, _digest(files), path)


def digest_of_folders(folders: Mapping[str, Path]) -> str:
    """One sha256 over the files of all."""
    total = hashlib.sha256()
    for name, folder in sorted(folders.items()):
        total.update(f"{name}\0{_digest(_files(folder), folder)}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def _files(folder: Path) -> list[Path]:
    """Return every file below, but for hidden ones such as `.git`."""
    found: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != ".git")
        found += [Path(parent, name) for name in sorted(names)]
    return found


def _digest(files: Sequence[Path], base: Path | None = None) -> str:
    """sha256 of a file as it is, or over the names and contents of several."""
    if len(files) == 1 and base is None:
        return _sha256(files[0])
    top = base or Path(os.path.commonpath([file.parent for file in files])) if files else Path()
    total = hashlib.sha256()
    for file in files:
        line = f"{file.relative_to(top).as_posix()}\0{_sha256(file)}\n"
        total.update(line.encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def _sha256(file: Path) -> str:
    try:
        if file.is_symlink() and not file.exists():
            return hashlib.sha256(os.fsencode(file.readlink())).hexdigest()
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}.") from error


# `benchmark add`: published records, or a repository's task directories, become a benchmark with a name.

Item = TypeVar("Item")

SOUND = "sound"
"""Dataset of the tasks that are not known to be bad."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class AddRequest:
    """What is to be added."""

    name: str
    source: str | None = None
    """`--from`: a file, a folder or a repository."""
    limit: int | None = None
    task_ids: Sequence[str] = ()
    overwrite: bool = False
    network: str | None = None
    """`public` or `no-network` for every converted task; None is what its converter says."""


class InstallationWatcher(Protocol):
    """Told how it goes."""

    def say(self, line: str) -> None:
        """Something worth a line, before it happens."""
        ...

    def count(self, done: int, total: int | None) -> None:
        """Take how many tasks there are by now."""
        ...


def add(request: AddRequest, watcher: InstallationWatcher) -> tuple[AddedBenchmark, bool]:
    """Add a benchmark; what there is now, and whether anything changed."""
    entry, name = _named(request.name)
    with catalog.locked() as folder:
        found = locate(entry, name, request.source, data_folder() / "cache", watcher.say)
        variant = entry.variant if entry else ""
        ids = sorted(request.task_ids)
        own = _manifest_of(entry, found)
        more = [own.model_dump()] if own != BenchmarkManifest() else []
        asked = digest_of([name, variant, found.revision, request.limit, ids, request.network, *more])
        before = catalog.read(name)
        if before and not request.overwrite:
            if before.asked == asked:
                return before, False
            raise UsageError(
                f"{name} is there already ({before.tasks} tasks from {before.origin}). --overwrite replaces "
                "it; runs of the old one can then not be resumed."
            )
        work = Path(tempfile.mkdtemp(dir=folder, prefix=".new-"))
        try:
            made = _write(entry, name, found, request, work / "tasks", watcher)
            new = AddedBenchmark(
                name=name,
                description=made.description,
                tasks=len(made.ids),
                origin=found.origin,
                revision=found.revision,
                asked=asked,
                content=digest_of_folders({"": work / "tasks"})[:20],
                added_at=time.time(),
                notices=[*found.notices, *made.notices, *_remarks(entry, made, request)],
            )
            catalog.put(new, work / "tasks")
        except OSError as error:
            raise disk_error(f"{folder} cannot be written", error) from None
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return new, before is None or before.content != new.content


@dataclass(slots=True)
class _Made:
    """What was written so far."""

    ids: list[str] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    datasets: dict[str, list[str]] = field(default_factory=dict)
    description: str = ""
    notices: list[str] = field(default_factory=list)


def _named(text: str) -> tuple[PublicBenchmark | None, str]:
    """The catalogue's entry, or a name of the user's own."""
    if entry := catalog.find(text):
        return entry, entry.name
    if text in SHIPPED:
        raise UsageError(f"{text} is there already, it comes with the program; choose another name.")
    if not _NAME.fullmatch(text):
        raise UsageError(
            f"{text[:80]!r} is no benchmark of the catalogue (`valk benchmark list --available`)."
            f"{catalog.suggestion(text)} A name of your own has lower-case letters, digits, '.', '_' and '-'."
        )
    return None, text


def _write(
    entry: PublicBenchmark | None,
    name: str,
    found: LocatedSource,
    request: AddRequest,
    target: Path,
    watcher: InstallationWatcher,
) -> _Made:
    if found.path is not None and entry is not None:
        made = _convert(entry, found, found.path, request, target, watcher)
    else:
        made = _copy(entry, found, request, target, watcher)
    if not made.ids:
        raise UsageError(f"{found.origin} holds no task.")
    own = _manifest_of(entry, found)
    made.description = own.description or _description(entry, found)
    _keep_datasets(own, found, made)
    bad = set(made.bad)
    if bad and len(bad) < len(made.ids):
        made.datasets[SOUND] = [task_id for task_id in made.ids if task_id not in bad]
    manifest = writing.toml_text({"name": name, "description": made.description})
    if made.datasets:
        manifest += f"\n[datasets]\n{writing.toml_text(made.datasets)}"
    writing.put_file(target / "benchmark.toml", manifest)
    return made


def _manifest_of(entry: PublicBenchmark | None, found: LocatedSource) -> BenchmarkManifest:
    """Return what a folder of tasks says of itself; of what is in the catalogue, that says it."""
    if entry is not None or found.folder is None:
        return BenchmarkManifest()
    if problem := stray_problem(found.folder / MANIFEST, found.folder):
        raise BenchmarkError(f"{MANIFEST} {problem}")
    return read_manifest(found.folder)


def _keep_datasets(own: BenchmarkManifest, found: LocatedSource, made: _Made) -> None:
    """Keep the datasets of a folder as far as their tasks are added."""
    there = set(made.ids)
    for dataset in own.datasets:
        chosen = own.choose(dataset, list(found.tasks), str(found.folder))
        if kept := [task_id for task_id in chosen if task_id in there]:
            made.datasets[dataset] = kept
        else:
            made.notices.append(f"dataset {dataset!r} is left out: none of its tasks was added")


def _convert(
    entry: PublicBenchmark,
    found: LocatedSource,
    records: Path,
    request: AddRequest,
    target: Path,
    watcher: InstallationWatcher,
) -> _Made:
    made = _Made()
    total = request.limit or len(request.task_ids) or entry.tasks

    def mark(draft: TaskDraft) -> dict[str, str]:
        made.ids.append(draft.id)
        for dataset in draft.datasets:
            made.datasets.setdefault(dataset, []).append(draft.id)
        watcher.count(len(made.ids), total)
        why = entry.why_bad(draft.source_id, draft.id)
        if why is None:
            return {}
        made.bad.append(draft.id)
        return {"known_bad": why}

    drafts = converter_of(entry)(records, ConverterOptions(entry.name, entry.variant))
    pin = {"source": found.origin, "source_revision": found.revision}
    chosen = _chosen(drafts, request, lambda draft: (draft.id, draft.source_id))
    writing.write_tasks((_connected(draft, request) for draft in chosen), target, entry.name, pin, mark)
    return made


def _connected(draft: TaskDraft, request: AddRequest) -> TaskDraft:
    """The draft with the network that was asked for."""
    if request.network is None:
        return draft
    environment = {**draft.config.get("environment", {}), "network_mode": request.network}
    return replace(draft, config={**draft.config, "environment": environment})


def _copy(
    entry: PublicBenchmark | None,
    found: LocatedSource,
    request: AddRequest,
    target: Path,
    watcher: InstallationWatcher,
) -> _Made:
    """Task directories stay as their authors wrote them: what they are pinned to is in `source.json`."""
    if request.network is not None:
        raise UsageError("--network is for converted tasks; these say in their task.toml what they need.")
    made = _Made()
    for task_id, folder in _chosen(found.tasks.items(), request, lambda item: (item[0],)):
        shutil.copytree(folder, target / task_id, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        made.ids.append(task_id)
        watcher.count(len(made.ids), request.limit or len(request.task_ids) or len(found.tasks))
        if entry and entry.why_bad(task_id):
            made.bad.append(task_id)
    lock = found.folder / LOCK if found.folder and entry is None else None
    if lock and lock.is_file() and not lock.is_symlink():
        shutil.copyfile(lock, target / LOCK)
    return made


def _chosen(
    items: Iterable[Item], request: AddRequest, names_of: Callable[[Item], Sequence[str]]
) -> Iterator[Item]:
    """Those asked for by id, up to the limit; nothing is read beyond the last of them."""
    wanted = {task_id.casefold(): task_id for task_id in request.task_ids}
    seen: list[str] = []
    given = 0
    for item in items:
        names = names_of(item)
        seen += names[:1]
        hit = {name.casefold() for name in names} & wanted.keys()
        if request.task_ids and not hit:
            continue
        yield item
        given += 1
        for name in hit:
            del wanted[name]
        if given == request.limit or (request.task_ids and not wanted):
            return
    if wanted:
        first = next(iter(wanted.values()))
        more = f" and {len(wanted) - 1} more" if len(wanted) > 1 else ""
        raise UsageError(f"there is no task {first!r}{more}.{did_you_mean(first, seen)}")


def _description(entry: PublicBenchmark | None, found: LocatedSource) -> str:
    return f"{entry.title}: {entry.what}" if entry else f"Tasks of {found.origin}."


def _remarks(entry: PublicBenchmark | None, made: _Made, request: AddRequest) -> Iterator[str]:
    if entry is None:
        return
    whole = request.limit is None and not request.task_ids
    if whole and len(made.ids) != entry.tasks:
        yield f"{entry.title} has {entry.tasks} tasks where it is published; these are {len(made.ids)}"
    if made.bad:
        yield (
            f"{len(made.bad)} tasks are known to be bad (metadata.known_bad says why); "
            f"--dataset {SOUND} leaves them out"
        )
    yield f"licence: {entry.licence}"
    yield from entry.notes
