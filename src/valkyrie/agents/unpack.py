"""Unpack an agent's archive without trusting a word of it."""

from __future__ import annotations

import shutil
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sandboxes.contents import Entry, UnreadableContentError, file_digest
from valkyrie.agents.bundle import ContentDigest
from valkyrie.archives.reading import OpenArchive, open_archive
from valkyrie.archives.writing import disk_error
from valkyrie.errors import BundleError

CONTRACTS = ("contract.yaml", "contract.yml")
_MAX_CONTRACT_BYTES = 1024 * 1024


def unpack(archive: Path, destination: Path, *, expect: str | None = None) -> str:
    """Unpack the archive's one top folder as `destination`, which must not exist; returns its digest.

    Nothing is left behind unless everything went well and the digest is the one expected.
    """
    if destination.exists() or destination.is_symlink():
        raise BundleError(f"{destination} exists already; nothing is overwritten. Choose another folder.")
    destination.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=destination.parent, prefix=".unpack-"))
    try:
        root = part / "root"
        root.mkdir()
        with open_archive(archive) as opened:
            digest = _digest(opened, root)
        if expect is not None and digest != expect:
            raise BundleError(
                f"{archive} is not the agent that was frozen (digest {digest[:12]}, expected {expect[:12]})."
            )
        root.rename(destination)
    except OSError as error:
        raise disk_error(f"{archive} cannot be unpacked as {destination}", error) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return digest


def digest_archive(archive: Path) -> str:
    """Content digest of an archive, read in full; the same `digest_folder` gives for its folder."""
    with open_archive(archive) as opened:
        return _digest(opened, None)


def _digest(opened: OpenArchive, root: Path | None) -> str:
    digest = ContentDigest()
    opened.extract(root, digest.add)
    return digest.hexdigest()


def digest_unpacked(folder: Path, entries: Sequence[Entry]) -> str | None:
    """Return the content digest of an unpacked folder; None for one with what no archive holds."""
    digest, paths = ContentDigest(), [entry.path for entry in entries]
    populated = {path.rsplit("/", up)[0] for path in paths for up in range(1, path.count("/") + 1)}
    for entry in entries:
        name = entry.path.removeprefix("./")
        if stat.S_ISDIR(entry.mode):
            if entry.path not in populated:
                digest.add(name, False, "")
        elif stat.S_ISREG(entry.mode):
            try:
                content = file_digest(folder / name).hex()
            except UnreadableContentError:
                return None
            digest.add(name, bool(entry.mode & 0o111), content)
        else:
            return None
    return digest.hexdigest()


def read_contract(archive: Path) -> tuple[str, str]:
    """(name inside the archive, text) of the contract in the top folder."""
    with open_archive(archive) as opened:
        found = [member for member in opened.members if member.name in CONTRACTS]
        if len(found) != 1:
            both = "both contract.yaml and contract.yml" if found else "no contract.yaml"
            raise BundleError(f"{archive} has {both} in its top folder.")
        with opened.file.open(found[0].info) as file:
            content = file.read(_MAX_CONTRACT_BYTES + 1)
    try:
        return found[0].name, content.decode()
    except UnicodeDecodeError:
        raise BundleError(f"{archive}: {found[0].name} is not UTF-8 text.") from None
