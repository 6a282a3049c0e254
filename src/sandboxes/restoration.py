"""Putting back what changed in a sandbox from one that nothing ran in."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from sandboxes.difference import KERNEL_FOLDERS, Attributes, Difference, Entry
from sandboxes.links import Links
from sandboxes.openat import open_without_links
from sandboxes.trees import CREATE, FOLDER, READ, remove_entry
from sandboxes.work import is_below
from sandboxes.work_target import Ids, WorkTarget, is_folder_in

_PLACE = os.O_PATH | os.O_DIRECTORY
_CHUNK_BYTES = 1 << 20
_ALL_MODE = 0o7777
_MAX_DEPTH = 64


def put_back(difference: Difference, root: int, pristine: int, ids: Ids, paths: Sequence[str]) -> None:
    """Make each path, and all below it, what it is below the open folder `pristine`.

    `difference` is that of the sandbox whose root is `root`: what is no part of it needs no work.
    """
    links = Links(pristine)
    wanted = {real for path in paths if (real := links.real_path(path)) is not None}
    entries = [entry for entry in difference.entries() if _concerns(entry, wanted)]
    target = WorkTarget(root, ids)
    try:
        whole: list[str] = []
        for entry in entries:
            if any(is_below(entry.path, one) for one in whole):
                continue
            if not _restore(entry, target, pristine, ids):
                whole.append(entry.path)
    finally:
        target.close()


def _concerns(entry: Entry, wanted: set[str]) -> bool:
    """Whether the entry is a path that is wanted, or in one; or whether it blocks the way to one."""
    if entry.kind is None or entry.path in KERNEL_FOLDERS:
        return False
    if any(entry.path == one or is_below(entry.path, one) for one in wanted):
        return True
    is_as_before = entry.is_folder and entry.before is not None
    return not is_as_before and any(is_below(one, entry.path) for one in wanted)


def _restore(entry: Entry, target: WorkTarget, pristine: int, ids: Ids) -> bool:
    """Restore one entry; whether what is below it has yet to be."""
    above, _, name = entry.path.rpartition("/")
    source = _open_parent(pristine, above)
    try:
        info = None if source is None else _look(source, name)
        folder = target.folder(above, make=info is not None)
        if folder is None:
            return False
        stays = entry.before is not None and is_folder_in(folder, name)
        if stays and info is not None and stat.S_ISDIR(info.st_mode):
            target.set_attributes(entry.path, Attributes.of(info))
            return True
        remove_entry(name, folder)
        if info is not None and source is not None:
            _copy(source, folder, name, info, ids, 0)
        return False
    finally:
        if source is not None:
            os.close(source)


def _open_parent(pristine: int, above: str) -> int | None:
    try:
        return open_without_links(pristine, above.split("/")[1:], _PLACE | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _look(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _copy(source: int, folder: int, name: str, info: os.stat_result, ids: Ids, depth: int) -> None:
    """Copy an entry of an open folder to another one, with all below it."""
    if stat.S_ISLNK(info.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=folder)
        if not ids.alone:
            os.chown(name, info.st_uid, info.st_gid, dir_fd=folder, follow_symlinks=False)
    elif stat.S_ISREG(info.st_mode):
        _copy_file(source, folder, name, info, ids)
    elif stat.S_ISDIR(info.st_mode) and depth < _MAX_DEPTH:
        _copy_folder(source, folder, name, info, ids, depth)


def _copy_file(source: int, folder: int, name: str, info: os.stat_result, ids: Ids) -> None:
    fd = os.open(name, READ, dir_fd=source)
    try:
        out = os.open(name, CREATE, 0o600, dir_fd=folder)
        try:
            while os.sendfile(out, fd, None, _CHUNK_BYTES):
                pass
            _apply(out, info, ids)
        finally:
            os.close(out)
    finally:
        os.close(fd)


def _copy_folder(source: int, folder: int, name: str, info: os.stat_result, ids: Ids, depth: int) -> None:
    os.mkdir(name, 0o700, dir_fd=folder)
    fd = os.open(name, FOLDER, dir_fd=source)
    try:
        out = os.open(name, FOLDER, dir_fd=folder)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    below = entry.stat(follow_symlinks=False)
                    _copy(fd, out, entry.name, below, ids, depth + 1)
            _apply(out, info, ids)
        finally:
            os.close(out)
    finally:
        os.close(fd)


def _apply(fd: int, info: os.stat_result, ids: Ids) -> None:
    if not ids.alone:
        os.fchown(fd, info.st_uid, info.st_gid)
    os.fchmod(fd, info.st_mode & _ALL_MODE)
    os.utime(fd, ns=(info.st_atime_ns, info.st_mtime_ns))
