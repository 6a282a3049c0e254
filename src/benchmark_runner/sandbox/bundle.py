"""An agent's bundle as a manifest pins it: one zip, named by the sha256 of its bytes."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from benchmark_runner.agent_bundle.bundle import PLACE, list_folder, pack, unpack
from benchmark_runner.archive import open_archive
from benchmark_runner.errors import BundleError


@dataclass(frozen=True, slots=True)
class Bundle:
    """An agent's files, checked."""

    root: str
    content: bytes = field(repr=False)
    """The zip."""
    sha256: str

    @property
    def place(self) -> str:
        """Return where it stands in a sandbox."""
        return f"{PLACE}/{self.root}"

    def unpack(self, folder: Path) -> Path:
        """Write the files below `folder`; returns the bundle's own folder in it."""
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".bundle-") as archive:
            archive.write(self.content)
            archive.flush()
            unpack(Path(archive.name), folder / self.root)
        return folder / self.root


def pack_bundle(folder: Path, root: str) -> Bundle:
    """Pack a folder; the same files give the same digest. BundleError, a ValueError, if it cannot be."""
    if not any(True for _ in list_folder(folder)):
        raise BundleError(f"{folder} has no files to send.")
    with tempfile.TemporaryDirectory(prefix="agent-bundle-") as room:
        archive = Path(room) / "bundle.zip"
        pack(folder, root, archive, compressed=False)
        content = archive.read_bytes()
    return Bundle(root, content, hashlib.sha256(content).hexdigest())


def load_bundle(path: Path, sha256: str | None = None) -> Bundle:
    """Read a bundle from a zip, and check it. BundleError if it is not the one whose digest is given."""
    with open_archive(path) as opened:
        opened.extract(None, lambda _name, _executable, _sha256: None)
        root = opened.top
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256:
        raise BundleError(
            f"{path} is not the bundle that was pinned: sha256 {found[:12]}…, not {sha256[:12]}…. "
            "Get the right file, or make the manifest anew."
        )
    return Bundle(root, content, found)
