"""What a layer says about itself."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sandboxes.contents import FolderDigests, walk_folder
from valkyrie.agents.layers.tools import fetch_failed

NAME = "layer.json"
MOST_BYTES = 4 * 1024**3
MOST_FILES = 200_000


@dataclass(frozen=True, slots=True)
class LayerManifest:
    """Kept as `layer.json` in the layer."""

    name: str
    version: str
    root: Mapping[str, Any]
    """What of the kind of root file system it depends on."""
    installed: Mapping[str, str] = field(default_factory=dict)
    """Package → version, those that were brought along included."""
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    """How long it took to install."""
    built_at: str = ""
    digest: str = ""
    """Of everything else in the layer; compared whenever the layer is used."""

    def write(self, layer: Path) -> None:
        (layer / NAME).write_text(json.dumps(asdict(self), indent=1, sort_keys=True) + "\n")


def read_manifest(layer: Path) -> LayerManifest:
    """What `layer` says of itself."""
    return LayerManifest(**json.loads((layer / NAME).read_text()))


def layer_digest(layer: Path, digests: FolderDigests) -> str:
    """Return the digest of all of a layer but its manifest; compiled Python files are run, so they count."""
    entries = walk_folder(os.fspath(layer), ".", frozenset())
    return digests.known_or_read(layer, tuple(entry for entry in entries if entry.path != f"./{NAME}"))


def installed_packages(layer: Path) -> dict[str, str]:
    """Every package in it and its version."""
    found: dict[str, str] = {}
    lock = layer / "node_modules" / ".package-lock.json"
    if lock.is_file():
        for place, package in json.loads(lock.read_text()).get("packages", {}).items():
            found[place.rpartition("node_modules/")[2]] = str(package.get("version", ""))
    for info in (layer / "python").glob("*.dist-info"):
        name, _, version = info.name.removesuffix(".dist-info").partition("-")
        found[name] = version
    return found


def settle(layer: Path) -> tuple[int, int]:
    """Make all of it readable for everyone and writable for nobody else; how many files and bytes it has.

    Links may not leave it: it is seen elsewhere under another name.
    """
    files = size = 0
    inside = layer.resolve()
    layer.chmod(0o755)
    for parent, folders, names in os.walk(layer):
        for name in (*folders, *names):
            path = Path(parent, name)
            info = path.lstat()
            if stat.S_ISLNK(info.st_mode):
                if path.readlink().is_absolute() or not path.resolve().is_relative_to(inside):
                    raise fetch_failed(f"{path.relative_to(layer)} is a link that leads out of its package.")
                continue
            executable = stat.S_ISDIR(info.st_mode) or info.st_mode & 0o111
            path.chmod(0o755 if executable else 0o644)
            if stat.S_ISREG(info.st_mode):
                files, size = files + 1, size + info.st_size
        if files > MOST_FILES or size > MOST_BYTES:
            raise fetch_failed(
                f"the packages have more than {MOST_BYTES >> 30} GiB or {MOST_FILES:,} files; not kept."
            )
    return files, size
