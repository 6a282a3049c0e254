"""Chosen files and folders out of a container, as the engine packs them: no program of the image is run.

Each request for an archive costs the engine a tenth of a second. So what lies close together is fetched with
the folder it is in, and the rest of the folder is passed over; where that turns out to be much, the entries
of the folder are fetched one by one.
"""

from __future__ import annotations

import io
import tarfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from sandboxes.docker.client import EngineClient
from sandboxes.docker.listing import folders_above
from sandboxes.errors import SandboxError, SandboxNotFoundError
from sandboxes.threads import feed

MERGED_AT: Final = 3
"""More requests than that in one folder become one."""
MOST_PASSED_OVER: Final = 64 << 20
MOST_REQUESTS: Final = 3000
_NEVER_WHOLE: Final = frozenset({"/", "/usr", "/var", "/lib", "/opt", "/etc", "/home", "/root"})
_BUFFER_BYTES: Final = 1 << 18


class Taker(Protocol):
    """Takes the members that are wanted. Called in a thread."""

    def wants(self, path: str) -> bool:
        """Whether the entry at that path is to be taken, if it is there."""

    def take(self, path: str, member: tarfile.TarInfo, content: io.BufferedIOBase | None) -> bool:
        """Take a member, a hard link with the path it leads to; False when its content was not read."""


@dataclass(slots=True)
class Wanted:
    """Paths that are to be fetched. `whole` are those below which everything is wanted."""

    paths: set[str]
    whole: Collection[str] = ()
    single: set[str] = field(default_factory=set)
    """Folders that were found to hold too much else."""

    def requests(self) -> list[tuple[str, bool]]:
        """Return what to ask for, in order: a path, and whether with all that is below it."""
        below: defaultdict[str, list[tuple[str, bool]]] = defaultdict(list)
        nodes = {above for path in self.paths for above in folders_above(path)} | self.paths
        for path in sorted(nodes, key=lambda one: (-one.count("/"), one)):
            inner = below.pop(path, [])
            above = path.rpartition("/")[0]
            merges = len(inner) > MERGED_AT and path not in _NEVER_WHOLE
            if path not in self.single and (merges or (path in self.paths and path in self.whole)):
                below[above].append((path, True))
            else:
                below[above] += ([(path, False)] if path in self.paths else []) + inner
        return sorted(below[""])


async def fetch(client: EngineClient, container: str, wanted: Wanted, taker: Taker) -> list[str]:
    """Hand all wanted members to the taker; the paths that were not there, or could not be asked for."""
    missing: list[str] = []
    asked = 0
    while wanted.paths:
        requests = wanted.requests()
        for path, deep in requests:
            asked += 1
            if asked > MOST_REQUESTS:
                missing += sorted(wanted.paths)
                return missing
            stream = _MemberStream(path, deep, wanted, taker)
            if not await _ask(client, container, path, stream):
                missing.append(path)
                wanted.paths.discard(path)
            elif stream.too_much:
                # What was not fetched yet is asked for anew, without merging this folder.
                wanted.single.add(path)
                break
            elif deep:
                gone = {one for one in wanted.paths if one == path or one.startswith(f"{path}/")}
                missing += sorted(gone)
                wanted.paths -= gone
            else:
                wanted.paths.discard(path)
    return missing


async def _ask(client: EngineClient, container: str, path: str, stream: _MemberStream) -> bool:
    """Whether there was something at the path."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False  # requests are text
    what = f"read {path} in {container}"
    try:
        async with client.answer(
            "GET", f"containers/{container}/archive", what=what, query={"path": path}
        ) as answer:
            await feed(answer.content.iter_any(), stream.read)
    except SandboxNotFoundError as error:
        lower = str(error).lower()
        if "no such container" in lower and "could not find the file" not in lower:
            raise
        return False
    return True


class _MemberStream:
    """Reads one archive of the engine; the members of it that are wanted go to the taker."""

    def __init__(self, root: str, deep: bool, wanted: Wanted, taker: Taker) -> None:
        self._root = root
        self._deep = deep
        self._wanted = wanted
        self._taker = taker
        self._passed_over = 0
        self.too_much = False

    def read(self, chunks: Iterable[bytes]) -> None:
        source: Any = _Chunks(iter(chunks))
        try:
            with tarfile.open(
                fileobj=source, mode="r|", bufsize=_BUFFER_BYTES, errors="surrogateescape"
            ) as tar:
                for member in self._members(tar):
                    path = self._path(member)
                    if self._wants(path) and self._take(tar, path, member):
                        self._wanted.paths.discard(path)
                    else:
                        self._passed_over += member.size
                    if not self._deep:
                        return
                    if self._passed_over > MOST_PASSED_OVER:
                        self.too_much = True
                        return
                    tar.members = []  # type: ignore[attr-defined] # it would keep all of them
        except (tarfile.TarError, EOFError) as error:
            raise SandboxError(f"cannot read what the engine packed of {self._root}: {error}") from error

    def _members(self, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
        while (member := tar.next()) is not None:
            yield member

    def _path(self, member: tarfile.TarInfo) -> str:
        return self._absolute(member.name)

    def _absolute(self, name: str) -> str:
        """The path of a member; the engine calls them by the last name of what was asked for."""
        rest = name.strip("/").partition("/")[2]
        return f"{self._root}/{rest}" if rest else self._root

    def _wants(self, path: str) -> bool:
        if path in self._wanted.paths:
            return True
        # Names that are not UTF-8 are not told by every engine.
        return any(above in self._wanted.whole for above in folders_above(path)) and self._taker.wants(path)

    def _take(self, tar: tarfile.TarFile, path: str, member: tarfile.TarInfo) -> bool:
        if member.islnk():
            member.linkname = self._absolute(member.linkname)
        content = tar.extractfile(member) if member.isreg() else None
        taken = self._taker.take(path, member, content)  # type: ignore[arg-type]
        if not taken:
            self._wanted.paths.discard(path)
        return taken


class _Chunks(io.RawIOBase):
    """Chunks of any size as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._held = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        found = bytearray()
        while size < 0 or len(found) < size:
            if not self._held:
                self._held = next(self._chunks, b"")
                if not self._held:
                    break
            take = len(self._held) if size < 0 else size - len(found)
            found += self._held[:take]
            self._held = self._held[take:]
        return bytes(found)
