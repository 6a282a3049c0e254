"""Write files and zip entries so that the same content gives the same bytes, whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from valkyrie.errors import BundleError, DiskFullError

_TIMESTAMP = (1980, 1, 1, 0, 0, 0)


def file_entry(name: str, *, executable: bool) -> zipfile.ZipInfo:
    """A file's entry, with one of two modes as in git: a umask changes neither it nor who can read it."""
    return _entry(name, stat.S_IFREG | (0o755 if executable else 0o644))


def folder_entry(name: str) -> zipfile.ZipInfo:
    """A folder's entry."""
    info = _entry(f"{name}/", stat.S_IFDIR | 0o755)
    info.external_attr |= 0x10
    return info


def link_entry(name: str) -> zipfile.ZipInfo:
    """A link's entry; its content is the target."""
    return _entry(name, stat.S_IFLNK | 0o777)


def _entry(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _TIMESTAMP)
    info.create_system = 3
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = mode << 16
    return info


@contextmanager
def new_file(destination: Path, what: str) -> Iterator[IO[bytes]]:
    """A file that takes its name, durably, once it was written without error."""
    part: Path | None = None
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=destination.parent, prefix=".part-", delete=False) as file:
            part = Path(file.name)
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.chmod(0o644)
        part.replace(destination)
        _sync_folder(destination.parent)
    except OSError as error:
        raise disk_error(what, error) from None
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def disk_error(what: str, error: OSError) -> BundleError | DiskFullError:
    """What went wrong with a file, told apart from a disk that is full."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"{what}: the disk is full. Free some space and try again.")
    return BundleError(f"{what}: {error.strerror or error}.")


def _sync_folder(folder: Path) -> None:
    """A rename is durable only once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
