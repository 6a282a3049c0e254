"""What `--from` means: a file or folder of records, task directories, a list of them, or a repository."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from valkyrie.benchmarks.discovery import find_tasks
from valkyrie.benchmarks.named import git_source, registries
from valkyrie.benchmarks.named.catalog import PublicBenchmark, suggestion
from valkyrie.errors import UnknownError, UsageError
from valkyrie.git.address import parse_source

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Found:
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


def locate(entry: PublicBenchmark | None, name: str, source: str | None, cache: Path, say: Say) -> Found:
    """What `source` means for this benchmark; `say` is told before the network is used."""
    if source is None:
        return _fetched(entry, _home(entry, name), cache, say)
    path = Path(source).expanduser()
    if path.name == "registry.json" and path.is_file():
        return _registered(entry, name, path, cache, say)
    listing = path / "dataset.toml" if path.is_dir() else path
    if listing.name == "dataset.toml" and listing.is_file():
        return _listed(listing)
    repository = git_source.is_repository(source)
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


def _fetched(entry: PublicBenchmark | None, address: str, cache: Path, say: Say) -> Found:
    wanted = parse_source(address)
    if entry is not None and entry.commit and not wanted.tree:
        wanted = parse_source(address, entry.commit)
    if wanted.protocols != ("file",):
        say(f"Fetching {wanted.url}: this needs the network.")
    try:
        got = git_source.fetch(wanted, cache)
    except UnknownError as error:
        if entry is None or wanted.ref != entry.commit:
            raise
        raise UnknownError(
            f"{error} {entry.title} is this commit: fetch it there, or add the clone under a name of yours."
        ) from None
    tasks = find_tasks(got.folder) if entry is None or entry.kind == "tasks" else {}
    path = None if tasks else got.folder
    return Found(got.origin, got.commit, path, tasks, got.notices, got.folder if tasks else None)


def _registered(entry: PublicBenchmark | None, name: str, path: Path, cache: Path, say: Say) -> Found:
    datasets = registries.read_registry(path)
    known = {dataset.reference for dataset in datasets} | {dataset.name for dataset in datasets}
    words = (name, *(entry.aliases if entry else ()))
    chosen = registries.choose(datasets, next((word for word in words if word in known), name), str(path))
    say(f"Fetching {len(chosen.tasks)} tasks of {chosen.reference}: this needs the network.")
    tasks, notices = chosen.fetch(cache)
    return Found(f"{path.name} {chosen.reference}", _digest([path]), None, tasks, notices)


def _listed(path: Path) -> Found:
    listed = registries.read_dataset(path)
    return Found(
        f"{path.name} {listed.name}", digest_of_folders(listed.tasks), None, listed.tasks, listed.notices
    )


def _local(entry: PublicBenchmark | None, path: Path) -> Found:
    if entry is None or entry.kind == "tasks":
        if not path.is_dir():
            what = entry.name if entry else "a benchmark outside the catalogue"
            raise UsageError(f"--from {path}: {what} is made from a folder of task directories, not a file.")
        tasks = find_tasks(path)
        return Found(path.absolute().name, digest_of_folders(tasks), None, tasks, folder=path)
    files = _files(path) if path.is_dir() else [path]
    return Found(path.absolute().name, _digest(files), path)


def digest_of_folders(folders: Mapping[str, Path]) -> str:
    """One sha256 over the files of all."""
    total = hashlib.sha256()
    for name, folder in sorted(folders.items()):
        total.update(f"{name}\0{_digest(_files(folder), folder)}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def _files(folder: Path) -> list[Path]:
    """Every file below, but for hidden ones such as `.git`."""
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
