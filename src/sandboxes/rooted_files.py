"""Read, write, list and resolve files of a sandbox from the host while the agent inside may plant traps."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import translate
from pathlib import Path

from sandboxes.errors import SandboxCrowdedError, SandboxError, SandboxFileNotFoundError, SandboxFullError
from sandboxes.trees import (
    CHUNK_BYTES,
    CREATE,
    FOLDER,
    READ,
    Ownership,
    copy_file_in,
    copy_tree_in,
    copy_tree_out,
    empty_folder,
    has_openat2,
    is_kernel_file_system,
    is_utf8,
    open_below,
    open_without_links,
    parts_of,
    printable,
    remove_entry,
    temporary_name,
    unlink_if_there,
)
from sandboxes.types import CopyLimits, CopyReport
from sandboxes.work import CarryRules, is_below

MAX_GLOB_ENTRIES = 100_000
"""How many names one search looks at before it gives up."""
MAX_GLOB_DEPTH = 64
"""How far below the fixed part of its pattern a search descends."""

NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_OUT_OF_REACH = (*NOT_THERE, errno.EACCES)

Opener = Callable[[list[str], int], int]


class GlobSearch:
    """One glob: `*`, `?` and `[…]` within a name, `**` for any folders. Hidden names need a dot."""

    def __init__(self, open_at: Opener, parts: list[str]) -> None:
        self._open = open_at
        self._left = MAX_GLOB_ENTRIES
        self._found: set[str] = set()
        fixed = 0
        while fixed < len(parts) - 1 and not _is_pattern(parts[fixed]):
            fixed += 1
        rest = parts[fixed:]
        if rest and rest[-1] == "**":
            rest.append("*")
        self._todo = [(parts[:fixed], rest)]
        self._fixed = fixed

    def run(self) -> list[str]:
        """The regular files found, sorted, as absolute paths."""
        while self._todo:
            where, rest = self._todo.pop()
            if not rest or len(where) > self._fixed + MAX_GLOB_DEPTH:
                continue
            if rest[0] == "**":
                self._todo.append((where, rest[1:]))
                self._scan(where, rest, None)
            elif _is_pattern(rest[0]):
                self._scan(where, rest, re.compile(translate(rest[0])))
            else:
                mode = mode_at(self._open, [*where, rest[0]])
                if mode is not None:
                    self._take([*where, rest[0]], rest[1:], stat.S_ISDIR(mode), stat.S_ISREG(mode))
        return sorted(self._found)

    def _take(self, path: list[str], rest: list[str], folder: bool, regular: bool) -> None:
        if rest and folder:
            self._todo.append((path, rest))
        elif not rest and regular:
            self._found.add("/" + "/".join(path))

    def _scan(self, where: list[str], rest: list[str], name_pattern: re.Pattern[str] | None) -> None:
        """Match the names in one folder; no pattern means: descend into its folders."""
        # The parents the caller named may be links, as everywhere; what was matched may not.
        nofollow = os.O_NOFOLLOW if len(where) > self._fixed else 0
        try:
            fd = self._open(where, os.O_RDONLY | os.O_DIRECTORY | nofollow)
        except OSError as error:
            if error.errno in _OUT_OF_REACH:
                return
            raise
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    self._left -= 1
                    if self._left < 0:
                        raise SandboxCrowdedError(
                            f"more than {MAX_GLOB_ENTRIES} names to look at; use a narrower pattern"
                        )
                    self._consider(entry, where, rest, name_pattern)
        finally:
            os.close(fd)

    def _consider(
        self, entry: os.DirEntry[str], where: list[str], rest: list[str], name_pattern: re.Pattern[str] | None
    ) -> None:
        name = entry.name
        if not is_utf8(name) or (name.startswith(".") and not rest[0].startswith(".")):
            return
        folder = entry.is_dir(follow_symlinks=False)
        if name_pattern is None:
            if folder:
                self._todo.append(([*where, name], rest))
        elif name_pattern.match(name):
            self._take([*where, name], rest[1:], folder, entry.is_file(follow_symlinks=False))


def mode_at(open_at: Opener, parts: list[str]) -> int | None:
    """The mode of what is there, a link not followed; None if nothing is."""
    try:
        fd = open_at(parts, os.O_PATH | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in NOT_THERE:
            return None
        raise
    try:
        return os.fstat(fd).st_mode
    finally:
        os.close(fd)


def _is_pattern(part: str) -> bool:
    return any(character in part for character in "*?[")


# Files of a sandbox, handled from the host while the agent inside may be planting traps.
#
# Every name is resolved below one root folder. A link in the middle of a path leads to a place below the
# root at most; a link at its end is never followed. What is opened is checked to be a regular file or a
# folder before it is used. Names which are not UTF-8 are never handed out.

_PLACE = os.O_PATH | os.O_DIRECTORY


class RootedFiles:
    """File operations below `root_fd`, which stays the caller's to close. Everything here blocks.

    `owner` is the host's uid and gid that new files and folders get. `openat2=False` forces the way of
    kernels before 5.6, where links in the middle of a path are refused as well.
    """

    def __init__(self, root_fd: int, owner: tuple[int, int] = (0, 0), *, openat2: bool | None = None) -> None:
        self._root = root_fd
        self._owner = Ownership(owner if owner != (os.geteuid(), os.getegid()) else None)
        resolve_in_root = has_openat2() if openat2 is None else openat2
        self._open_at = open_below if resolve_in_root else open_without_links

    def read(self, path: str, *, max_bytes: int | None = None) -> Iterator[bytes]:
        """Yield one regular file in pieces; more than `max_bytes` is an error."""
        with _explained("read", path):
            fd = self._open(parts_of(path), READ)
            try:
                info = os.fstat(fd)
                if not stat.S_ISREG(info.st_mode) or is_kernel_file_system(fd):
                    raise SandboxFileNotFoundError(f"{path} in the sandbox is not a regular file")
                if max_bytes is not None and info.st_size > max_bytes:
                    raise SandboxError(f"{path} in the sandbox has {info.st_size} bytes, over {max_bytes}")
                total = 0
                while chunk := os.read(fd, CHUNK_BYTES):
                    total += len(chunk)
                    if max_bytes is not None and total > max_bytes:
                        raise SandboxError(f"{path} in the sandbox grew over {max_bytes} bytes")
                    yield chunk
            finally:
                os.close(fd)

    def write(self, path: str, chunks: Iterable[bytes], mode: int = 0o644) -> None:
        """Write one file, making its parents; whatever file or link has the name is replaced whole."""
        with _explained("write", path), self._parent(path) as (folder, name):
            temporary = temporary_name()
            fd = os.open(temporary, CREATE, 0o600, dir_fd=folder)
            try:
                try:
                    for chunk in chunks:
                        _write_all(fd, chunk)
                    self._owner.apply(fd, mode)
                finally:
                    os.close(fd)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                unlink_if_there(temporary, folder)
                raise

    def make_folder(self, path: str, mode: int = 0o755) -> None:
        """Make a folder and its parents; one that is there keeps its mode."""
        with _explained("make folder", path):
            os.close(self._folder_for(parts_of(path), mode))

    def exists(self, path: str) -> bool:
        """Return whether anything, a link included, is at `path`."""
        with _explained("look at", path):
            return mode_at(self._open, parts_of(path)) is not None

    def is_folder(self, path: str) -> bool:
        """Return whether a real folder is at `path`; a link to one is not."""
        with _explained("look at", path):
            mode = mode_at(self._open, parts_of(path))
            return mode is not None and stat.S_ISDIR(mode)

    def clear_folder(self, path: str) -> None:
        """An empty folder at `path`. One that is there stays itself: something may be mounted on it."""
        with _explained("clear", path), self._parent(path) as (folder, name):
            if not empty_folder(name, folder):
                self.make_folder(path)

    def give_folder(self, path: str, uid: int, gid: int) -> None:
        """Change the owner of the real folder at `path`, by the host's ids."""
        with _explained("change the owner of", path), self._parent(path) as (folder, name):
            fd = os.open(name, FOLDER, dir_fd=folder)
            try:
                os.fchown(fd, uid, gid)
            finally:
                os.close(fd)

    def remove(self, path: str) -> None:
        """Delete the file, link or whole folder at `path`; nothing there is fine."""
        with _explained("remove", path):
            parts = _below_root(path)
            try:
                folder = self._open(parts[:-1], _PLACE)
            except OSError as error:
                if error.errno in NOT_THERE:
                    return
                raise
            try:
                remove_entry(parts[-1], folder)
            finally:
                os.close(folder)

    def copy_in(self, source: Path, path: str) -> None:
        """Copy a host file or folder to `path`; folders are merged, files and links replaced.

        Links inside the source are kept, made relative; one that leaves the source is an error.
        """
        with _explained(f"copy {source} to", path):
            if source.is_dir() and not parts_of(path):
                copy_tree_in(source, self._root, None, self._owner)
                return
            with self._parent(path) as (folder, name):
                if source.is_dir():
                    copy_tree_in(source, folder, name, self._owner)
                else:
                    copy_file_in(os.fspath(source), folder, name, self._owner)

    def copy_out(self, path: str, destination: Path, limits: CopyLimits | None = None) -> CopyReport:
        """Copy the regular files of a folder to the host folder `destination`, within limits."""
        with _explained("copy out", path, to_host=True):
            fd = self._open(parts_of(path), FOLDER)
            try:
                if is_kernel_file_system(fd):
                    raise SandboxFileNotFoundError(f"{path} in the sandbox belongs to the kernel")
                return copy_tree_out(fd, destination, limits or CopyLimits())
            finally:
                os.close(fd)

    def glob(self, pattern: str) -> list[str]:
        """Sorted absolute paths of the regular files that match; `**` stands for any folders."""
        with _explained("list", pattern):
            return GlobSearch(self._open, parts_of(pattern)).run()

    def _open(self, parts: list[str], flags: int) -> int:
        return self._open_at(self._root, parts, flags)

    @contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        """The open folder that `path` is in, made if missing, and its name there."""
        parts = _below_root(path)
        folder = self._folder_for(parts[:-1])
        try:
            yield folder, parts[-1]
        finally:
            os.close(folder)

    def _folder_for(self, parts: list[str], mode: int = 0o755) -> int:
        """An open folder, made with its parents if missing; `mode` is for the last one."""
        try:
            return self._open(parts, _PLACE)
        except FileNotFoundError:
            pass
        folder = self._open([], _PLACE)
        for depth in range(1, len(parts) + 1):
            try:
                below = self._open_or_make(folder, parts[:depth], mode if depth == len(parts) else 0o755)
            finally:
                os.close(folder)
            folder = below
        return folder

    def _open_or_make(self, folder: int, parts: list[str], mode: int) -> int:
        try:
            return self._open(parts, _PLACE)
        except FileNotFoundError:
            pass
        try:
            os.mkdir(parts[-1], 0o700, dir_fd=folder)
        except FileExistsError:
            # Made by someone else just now, or a link to nowhere: opening it again tells which.
            return self._open(parts, _PLACE)
        made = os.open(parts[-1], FOLDER, dir_fd=folder)
        try:
            self._owner.apply(made, mode)
        except BaseException:
            os.close(made)
            raise
        return made


def _below_root(path: str) -> list[str]:
    parts = parts_of(path)
    if not parts:
        raise SandboxError(f"{path!r} is the root of the sandbox; name something in it")
    return parts


def _write_all(fd: int, data: bytes) -> None:
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, memoryview(data)[written:])


@contextmanager
def _explained(action: str, path: str, *, to_host: bool = False) -> Iterator[None]:
    try:
        yield
    except SandboxError:
        raise
    except OSError as error:
        what = f"cannot {action} {printable(path)} in the sandbox"
        if error.errno == errno.ELOOP:
            raise SandboxFileNotFoundError(f"{what}: it is a link, and links are not followed") from error
        if error.errno in NOT_THERE:
            raise SandboxFileNotFoundError(f"{what}: {error.strerror}") from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            if to_host:
                raise  # the host's own disk is full, which is nobody's fault in the sandbox
            raise SandboxFullError(f"{what}: {error.strerror}") from error
        raise SandboxError(f"{what}: {error.strerror}") from error


# Where a link in a sandbox leads, found from the host one name at a time.

MOST_HOPS = 40
MOST_STEPS = 1000
MOST_STEPS_IN_ALL = 2_000_000
"""Names looked at for one link, and for all: an agent can make links whose resolution takes for ever."""
_NO_LINK = frozenset({errno.ENOENT, errno.EINVAL, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EACCES})


class Links:
    """Links below the open folder `root_fd`, which is the sandbox's root and stays the caller's to close."""

    def __init__(self, root_fd: int) -> None:
        self._root = root_fd
        self._known: dict[str, str | None] = {}
        self._steps_left = MOST_STEPS_IN_ALL

    def end_of(self, path: str, text: str) -> str | None:
        """Return the absolute path to which the link `text` at `path` leads; None when it goes in circles.

        What is not there is taken to be a folder, for it may come to be. `/proc` is not entered: what is
        below it depends on who looks. A way that is too long is taken to lead to `/`.
        """
        parts = path.strip("/").split("/")[:-1]
        return self._walk(parts, text)

    def real_path(self, path: str) -> str | None:
        """Return `path` with the links in its folders resolved, and not one at its end."""
        above, _, name = path.rstrip("/").rpartition("/")
        folder = self._walk([], above)
        return None if folder is None else f"{folder.rstrip('/')}/{name}"

    def is_forbidden(self, path: str, text: str, rules: CarryRules) -> bool:
        """Return whether the link `text` at `path` leads to a place the rules forbid, or into /proc; or
        whether it stands where no link may be."""
        if rules.refuses_link_at(path):
            return True
        end = self.end_of(path, text)
        if end is None:
            return False
        return rules.is_forbidden_target(end) or end == "/proc" or is_below(end, "/proc")

    def _walk(self, parts: list[str], text: str) -> str | None:
        parts = [] if text.startswith("/") else list(parts)
        to_do = text.split("/")[::-1]
        hops = steps = 0
        while to_do:
            name = to_do.pop()
            steps += 1
            self._steps_left -= 1
            if steps > MOST_STEPS or self._steps_left < 0:
                return "/"
            if name in ("", "."):
                continue
            if name == "..":
                if parts:
                    parts.pop()
                continue
            if parts == ["proc"]:
                return "/" + "/".join((*parts, name, *to_do[::-1]))
            link = self._read(parts, name)
            if link is None:
                parts.append(name)
                continue
            hops += 1
            if hops > MOST_HOPS:
                return None
            to_do += link.split("/")[::-1]
            if link.startswith("/"):
                parts = []
        return "/" + "/".join(parts)

    def _read(self, parts: list[str], name: str) -> str | None:
        """The text of the link, or None where none is. Nothing changes while links are looked at."""
        path = "/".join((*parts, name))
        if path not in self._known:
            self._known[path] = self._read_now(parts, name)
        return self._known[path]

    def _read_now(self, parts: list[str], name: str) -> str | None:
        try:
            fd = open_below(self._root, [*parts, name], os.O_PATH | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno in _NO_LINK:
                return None
            raise
        try:
            return os.readlink("", dir_fd=fd)
        except OSError as error:
            if error.errno in _NO_LINK:
                return None
            raise
        finally:
            os.close(fd)
