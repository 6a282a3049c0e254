"""Keep pushed agents, one zip each, and take agents out of git repositories."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from benchmark_runner.agent_bundle import CONTRACT_FILES
from benchmark_runner.agent_bundle.bundle import NAME, NAME_RULE, digest_archive, pack, unpack
from benchmark_runner.archive import new_file
from valkyrie.agents.catalog import CATALOG
from valkyrie.artifact_store.protocol import AGENTS, agent_key
from valkyrie.domain import content_digest
from valkyrie.errors import BundleError, UnknownError, UsageError, paths_shown_as
from valkyrie.git.command import Progress, hide_credentials
from valkyrie.git.repository import (
    MOST_NAMED,
    TIMEOUT_S,
    GitSource,
    Repository,
    WantedCommit,
    not_fetched,
    opened,
)
from valkyrie.text import did_you_mean
from valkyrie.views import AgentView

if TYPE_CHECKING:
    from valkyrie.artifact_store.protocol import ArtifactStore, StoredArtifact


_CHUNK = 1024 * 1024
_DIGEST = re.compile("[0-9a-f]{64}")
_LONGEST_ORIGIN = 500
_LONGEST_PERSON = 320
_STALE_S = 3600.0
"""Nobody is still reading a fetched archive that was asked for so long ago, once there is a newer one."""


@dataclass(frozen=True, slots=True)
class PushedAgent:
    """One row of `agent list`."""

    name: str
    modified: datetime
    size: int
    """Bytes of its archive."""
    digest: str
    """Empty where the archive is damaged, or nobody said."""
    origin: str | None = None
    """Where it was installed from, commit included."""
    pushed_by: str | None = None
    """Who pushed it."""


class Library(ABC):
    """Pushed agents by name. A name that is not there raises UnknownError."""

    def push(
        self,
        directory: Path,
        name: str | None = None,
        *,
        origin: str | None = None,
        person: str | None = None,
    ) -> PushedAgent:
        """Take an agent's folder in, over an earlier one of that name. Its contract must be valid."""
        from benchmark_runner.agent_bundle.contract import load_contract

        if not directory.is_dir():
            raise UsageError(f"{directory} is no folder. An agent is a folder with a contract.yaml.")
        name = check_name(name or directory.resolve().name)
        origin = _checked_origin(origin)
        load_contract(directory)
        about = {"origin": origin, "pushed_by": _printable(person)}
        self._take(directory, name, {key: value for key, value in about.items() if value})
        return self.get(name)

    def push_archive(
        self, file: Path, name: str, origin: str | None = None, person: str | None = None
    ) -> PushedAgent:
        """Take a stranger's archive in: unpacked with all checks, then pushed as its folder would be."""
        check_name(name)
        with tempfile.TemporaryDirectory(dir=self._room(), prefix=".push-") as room:
            folder = Path(room) / name
            with paths_shown_as({folder: name, file: f"{name}.zip"}):
                unpack(file, folder)
                return self.push(folder, name, origin=origin, person=person)

    def download(self, name: str, output_dir: Path) -> Path:
        """Unpack a pushed agent as `output_dir/<name>`, which must not exist."""
        archive = self.path(name)
        unpack(archive, output_dir / name)
        return output_dir / name

    @staticmethod
    def view(agent: PushedAgent) -> AgentView:
        """An agent as the verbs give it."""
        modified, digest = agent.modified.timestamp(), agent.digest or None
        return AgentView(agent.name, modified, agent.size, digest, agent.origin, agent.pushed_by)

    @abstractmethod
    def names(self) -> list[str]:
        """Return names of all pushed agents."""

    @abstractmethod
    def get(self, name: str) -> PushedAgent:
        """One pushed agent."""

    @abstractmethod
    def path(self, name: str) -> Path:
        """A pushed agent's archive, as a file of this machine."""

    @abstractmethod
    def archive(self, name: str) -> tuple[int | None, Iterator[bytes]]:
        """A pushed agent's archive: its size and its bytes, piece by piece."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Delete a pushed agent. Runs keep their own frozen copies."""

    @abstractmethod
    def _take(self, directory: Path, name: str, about: Mapping[str, str]) -> None:
        """Keep a folder that was checked, and what is said about it."""

    @abstractmethod
    def _room(self) -> Path:
        """A folder for temporary things."""

    def list(self) -> Sequence[PushedAgent]:
        """Return all pushed agents by name. A damaged archive is listed with an empty digest."""
        found = []
        for name in self.names():
            with suppress(UnknownError):  # removed meanwhile
                found.append(self.get(name))
        return found

    def _unknown(self, name: str) -> UnknownError:
        known = self.names()
        hint = did_you_mean(name, known) or f" Pushed: {', '.join(known) or 'none'}."
        return UnknownError(f"no pushed agent is called {name!r}.{hint}")


@dataclass(frozen=True, slots=True)
class AgentLibrary(Library):
    """`folder` holds `<name>.zip` for every pushed agent; it is made when first needed.

    `<name>.json` beside it says where it came from and who pushed it, and of which archive it says so.
    """

    folder: Path

    def names(self) -> list[str]:
        return sorted(file.stem for file in self.folder.glob("*.zip"))

    def get(self, name: str) -> PushedAgent:
        file = self.path(name)
        status, digest = file.stat(), _digest(file)
        modified = datetime.fromtimestamp(status.st_mtime, UTC)
        about = self._told(name, digest)
        origin, person = about.get("origin"), about.get("pushed_by")
        return PushedAgent(name, modified, status.st_size, digest, origin, person)

    def path(self, name: str) -> Path:
        file = self._file(name) if NAME.fullmatch(name) else None
        if file is None or not file.is_file():
            raise self._unknown(name)
        return file

    def archive(self, name: str) -> tuple[int | None, Iterator[bytes]]:
        file = self.path(name)
        return file.stat().st_size, _pieces(file)

    def remove(self, name: str) -> None:
        self.path(name).unlink()
        self._about(name).unlink(missing_ok=True)

    def _take(self, directory: Path, name: str, about: Mapping[str, str]) -> None:
        digest = pack(directory, name, self._file(name))
        if not about:
            self._about(name).unlink(missing_ok=True)
            return
        with new_file(self._about(name), f"where {name} came from cannot be written") as file:
            file.write(json.dumps({"digest": digest, **about}).encode())

    def _told(self, name: str, digest: str) -> Mapping[str, str]:
        try:
            about = json.loads(self._about(name).read_text())
        except (OSError, ValueError):
            return {}
        if not isinstance(about, dict) or about.get("digest") != digest:
            return {}
        return {key: str(value) for key, value in about.items()}

    def _room(self) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.zip"

    def _about(self, name: str) -> Path:
        return self.folder / f"{name}.json"


class StoredLibrary(Library):
    """Agents as `agents/<name>.zip` where artifacts are kept; digest and origin are the object's metadata.

    An archive that is needed as a file is fetched into `cache` once, and checked.
    """

    def __init__(self, store: ArtifactStore, cache: Path) -> None:
        self._store = store
        # One folder a place: what its metadata says must not lead to the archives of another.
        self._cache = cache / content_digest(store.place).removeprefix("sha256:")[:32]

    def names(self) -> list[str]:
        keys = (artifact.key for artifact in self._store.list(AGENTS))
        names = (key.removeprefix(AGENTS).removesuffix(".zip") for key in keys if key.endswith(".zip"))
        return sorted(name for name in names if NAME.fullmatch(name))

    def get(self, name: str) -> PushedAgent:
        found = self._find(name)
        about = found.metadata or {}
        origin, person = (unquote(about[key]) if about.get(key) else None for key in ("origin", "pushed_by"))
        modified = datetime.fromtimestamp(found.modified_at, UTC)
        return PushedAgent(name, modified, found.size, str(about.get("digest") or ""), origin, person)

    def path(self, name: str) -> Path:
        folder = self._cache / name
        for _ in range(2):  # it may be replaced between a look and a fetch
            said = self.get(name).digest
            known = folder / f"{said}.zip"
            if _DIGEST.fullmatch(said) and known.is_file():
                os.utime(known)
                return known
            with tempfile.TemporaryDirectory(dir=self._room(), prefix=".fetch-") as room:
                part = Path(room) / f"{name}.zip"
                self._store.get(agent_key(name), part)
                found = digest_archive(part)
                if said in ("", found):
                    folder.mkdir(parents=True, exist_ok=True)
                    part.replace(folder / f"{found}.zip")
                    _forget_stale(folder, found)
                    return folder / f"{found}.zip"
        raise BundleError(f"agent {name} is not what it was pushed as: {self._where(name)}. Push it again.")

    def archive(self, name: str) -> tuple[int | None, Iterator[bytes]]:
        return self._find(name).size, self._store.read(agent_key(name))

    def remove(self, name: str) -> None:
        self._find(name)
        self._store.delete(agent_key(name))

    def _take(self, directory: Path, name: str, about: Mapping[str, str]) -> None:
        # Object stores take ASCII.
        quoted = {key: quote(value, safe="/:@+,=~()") for key, value in about.items()}
        with tempfile.TemporaryDirectory(dir=self._room(), prefix=".push-") as room:
            archive = Path(room) / f"{name}.zip"
            self._store.put(agent_key(name), archive, {"digest": pack(directory, name, archive), **quoted})

    def _find(self, name: str) -> StoredArtifact:
        found = self._store.find(agent_key(name)) if NAME.fullmatch(name) else None
        if found is None:
            raise self._unknown(name)
        return found

    def _where(self, name: str) -> str:
        return self._store.url(agent_key(name))

    def _room(self) -> Path:
        self._cache.mkdir(parents=True, exist_ok=True)
        return self._cache


def _pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while piece := opened.read(_CHUNK):
            yield piece


def _digest(file: Path) -> str:
    """The digest `pack` left in the archive's comment; that of an archive made elsewhere is computed."""
    try:
        with zipfile.ZipFile(file) as archive:
            comment = archive.comment.decode("ascii", "replace")
        return comment if _DIGEST.fullmatch(comment) else digest_archive(file)
    except (zipfile.BadZipFile, BundleError):
        return ""


def _forget_stale(folder: Path, current: str) -> None:
    """Earlier archives of an agent, unless someone may still be reading them."""
    for file in folder.glob("*.zip"):
        if file.stem != current and file.stat().st_mtime < time.time() - _STALE_S:
            file.unlink(missing_ok=True)


def _checked_origin(origin: str | None) -> str | None:
    if origin is None:
        return None
    if not origin or len(origin) > _LONGEST_ORIGIN or not origin.isprintable():
        raise UsageError(f"an agent's origin is one line of at most {_LONGEST_ORIGIN} characters.")
    return hide_credentials(origin)


def _printable(person: str | None) -> str | None:
    """A person's name as one short line, however it came to be."""
    return "".join(c for c in person if c.isprintable())[:_LONGEST_PERSON] if person else None


def check_name(name: str) -> str:
    """A name an agent may be pushed under, or UsageError."""
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot be an agent's name: {NAME_RULE}. Choose one with --name.")
    if name in CATALOG:
        raise UsageError(f"{name!r} is an agent of the catalogue. Choose another name with --name.")
    return name


# An agent's folder out of a git repository, at one commit: shallow, nothing executed, bounded.


@dataclass(frozen=True, slots=True)
class Checkout:
    """An agent's folder as the repository has it at one commit."""

    folder: Path
    name: str
    """What to keep it under."""
    commit: str
    origin: str
    """`address[/folder]@commit`."""
    notices: Sequence[str] = ()
    """What is not as its author meant it, and keeps nothing from running."""


@contextmanager
def checked_out(
    source: GitSource,
    name: str | None = None,
    *,
    timeout: float = TIMEOUT_S,
    progress: Progress | None = None,
) -> Iterator[Checkout]:
    """The agent's folder, there while the context lasts; it has a contract, which is not read yet."""
    with opened(source, timeout, progress) as repository:
        wanted = repository.resolve()
        chosen = check_name(name or PurePosixPath(wanted.folder).name or source.repository)
        commit = repository.fetch(wanted)
        tree = repository.tree(commit, wanted.folder)
        entries = repository.check_listing(tree)
        if not any(path in CONTRACT_FILES for _, path in entries):
            raise _no_contract(repository, commit, wanted)
        repository.check_out(tree)
        place = f"{source.url}/{wanted.folder}" if wanted.folder else source.url
        notices = not_fetched(entries, repository.files)
        with paths_shown_as({repository.files: place}):
            yield Checkout(repository.files, chosen, commit, f"{place}@{commit}", notices)


def _no_contract(repository: Repository, commit: str, wanted: WantedCommit) -> BundleError:
    """Say where contracts are, if there are any."""
    source = repository.source
    where = f"folder {wanted.folder!r} of {source.url}" if wanted.folder else source.url
    paths = [PurePosixPath(path) for _, path in repository.entries(commit)]
    folders = [str(path.parent) for path in paths if path.name in CONTRACT_FILES and str(path.parent) != "."]
    said = f"{where} has no contract.yaml at {commit[:12]}"
    if len(folders) == 1:
        url = source.folder_url(wanted.word, folders[0])
        return BundleError(f"{said}. There is one in {folders[0]!r}: valk agent install {url}")
    if folders:
        more = f" and {len(folders) - MOST_NAMED} more" if len(folders) > MOST_NAMED else ""
        return BundleError(
            f"{said}; these folders have one: {', '.join(folders[:MOST_NAMED])}{more}. "
            f"Name one: {source.folder_url(wanted.word, 'FOLDER')}"
        )
    return BundleError(f"{said}, and no other folder of it has; an agent is a folder with one.")
