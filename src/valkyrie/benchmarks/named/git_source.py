"""Folders out of git repositories, each at one commit: fetched once, kept by what they are."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmark_runner.archive import disk_error
from valkyrie.errors import BundleError, UsageError, paths_shown_as
from valkyrie.git.address import COMMIT, GitSource, parse_source
from valkyrie.git.command import Progress
from valkyrie.git.fetching import TIMEOUT_S, Repository, Wanted, not_fetched, opened

_ADDRESS = re.compile(r"(https?|ssh|file)://|[\w.-]+@[\w.-]+:")
_KEPT = "git"


@dataclass(frozen=True, slots=True)
class Fetched:
    """A folder of a repository as it is at one commit."""

    folder: Path
    """Shared with whoever asks for the same: read, never written."""
    commit: str
    origin: str
    """`address[/folder]@commit`."""
    notices: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class FolderAt:
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
    """Whether people mean a git repository by this: an address, a clone, or a bare repository."""
    if _ADDRESS.match(text):
        return True
    folder = Path(text).expanduser()
    return (folder / ".git").exists() or ((folder / "HEAD").is_file() and (folder / "objects").is_dir())


def fetch(
    source: GitSource, cache: Path, *, timeout: float = TIMEOUT_S, progress: Progress | None = None
) -> Fetched:
    """What a repository's address, branch and folder mean today; fetched unless it is here already."""
    with opened(source, timeout, progress) as repository:
        wanted = repository.resolve()
        commit = wanted.what if COMMIT.fullmatch(wanted.what) else repository.fetch(wanted)
        at = FolderAt(source.url, commit, wanted.folder)
        notices: Sequence[str] = ()
        if not _place(cache, at).is_dir():
            if commit == wanted.what:
                repository.fetch(wanted)
            notices = _take(repository, commit, {at: "all"}, cache)
    place = f"{source.url}/{wanted.folder}" if wanted.folder else source.url
    return Fetched(_place(cache, at), commit, f"{place}@{commit}", notices)


def fetch_all(
    folders: Sequence[FolderAt], cache: Path, *, timeout: float = TIMEOUT_S, progress: Progress | None = None
) -> tuple[dict[FolderAt, Path], list[str]]:
    """Every folder, and what is to be said about them; each repository is asked once per commit."""
    missing: dict[tuple[str, str], list[FolderAt]] = {}
    for at in dict.fromkeys(folders):
        if not _place(cache, at).is_dir():
            missing.setdefault((at.url, at.commit), []).append(at)
    notices: list[str] = []
    for (url, commit), wanted in missing.items():
        if not COMMIT.fullmatch(commit):
            raise UsageError(f"{url}: {commit!r} is no commit; a commit is named by all of its digits.")
        with opened(parse_source(url, commit), timeout, progress, logins=False) as repository:
            repository.fetch(Wanted(commit, "", commit))
            notices += _take(repository, commit, {at: str(n) for n, at in enumerate(wanted)}, cache)
    return {at: _place(cache, at) for at in folders}, notices


def _place(cache: Path, at: FolderAt) -> Path:
    return cache / _KEPT / at.key


def _take(repository: Repository, commit: str, folders: Mapping[FolderAt, str], cache: Path) -> list[str]:
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
