"""The agents pushed to this machine: one zip each, below one folder."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from valkyrie.agents.bundle import pack
from valkyrie.agents.catalog import CATALOG
from valkyrie.agents.names import NAME, NAME_RULE
from valkyrie.agents.unpack import digest_archive, unpack
from valkyrie.errors import BundleError, UsageError
from valkyrie.suggest import did_you_mean


@dataclass(frozen=True, slots=True)
class PushedAgent:
    """One row of `agent list`."""

    name: str
    modified: datetime
    size: int
    """Bytes of its archive."""
    digest: str


class AgentLibrary:
    """`folder` holds `<name>.zip` for every pushed agent; it is made when first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def push(self, directory: Path, name: str | None = None) -> PushedAgent:
        """Take an agent's folder in, over an earlier one of that name. Its contract must be valid."""
        from valkyrie.agents.contract import load_contract

        if not directory.is_dir():
            raise UsageError(f"{directory} is no folder. An agent is a folder with a contract.yaml.")
        name = check_name(name or directory.resolve().name)
        load_contract(directory)
        pack(directory, name, self._file(name))
        return self.get(name)

    def names(self) -> list[str]:
        """Names of all pushed agents."""
        return sorted(file.stem for file in self.folder.glob("*.zip"))

    def list(self) -> list[PushedAgent]:
        """All pushed agents by name. A damaged archive is listed with an empty digest."""
        return [self.get(name) for name in self.names()]

    def get(self, name: str) -> PushedAgent:
        """One pushed agent."""
        file = self.path(name)
        status = file.stat()
        return PushedAgent(name, datetime.fromtimestamp(status.st_mtime, UTC), status.st_size, _digest(file))

    def path(self, name: str) -> Path:
        """The archive of a pushed agent."""
        file = self._file(name) if NAME.fullmatch(name) else None
        if file is None or not file.is_file():
            known = self.names()
            hint = did_you_mean(name, known) or f" Pushed: {', '.join(known) or 'none'}."
            raise UsageError(f"no pushed agent is called {name!r}.{hint}")
        return file

    def remove(self, name: str) -> None:
        """Delete a pushed agent. Runs keep their own frozen copies."""
        self.path(name).unlink()

    def download(self, name: str, output_dir: Path) -> Path:
        """Unpack a pushed agent as `output_dir/<name>`, which must not exist."""
        destination = output_dir / name
        unpack(self.path(name), destination)
        return destination

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.zip"


def _digest(file: Path) -> str:
    """The digest `pack` left in the archive's comment; that of an archive made elsewhere is computed."""
    try:
        with zipfile.ZipFile(file) as archive:
            comment = archive.comment.decode("ascii", "replace")
        return comment if len(comment) == 64 else digest_archive(file)
    except (zipfile.BadZipFile, BundleError):
        return ""


def check_name(name: str) -> str:
    """A name an agent may be pushed under, or UsageError."""
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot be an agent's name: {NAME_RULE}. Choose one with --name.")
    if name in CATALOG:
        raise UsageError(f"{name!r} is an agent of the catalogue. Choose another name with --name.")
    return name
