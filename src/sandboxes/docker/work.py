"""The work of a container: packed as data, unpacked in another one, or undone.

All of it goes through the engine's archives and our own static programs. Nothing of the image is run in a
container an agent was in.
"""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from sandboxes import work_archive as tar
from sandboxes.docker import files
from sandboxes.docker.changes import (
    ContainerChange,
    ContainerListing,
    ContainerListings,
    WantedMembers,
    fetch_members,
    folders_above,
    mounts_of,
    workdir_of,
)
from sandboxes.docker.container_config import REMOVE_PROGRAM, uses_programs
from sandboxes.docker.engine import EngineClient
from sandboxes.docker.execution import run_program
from sandboxes.docker.files import ImageLinks
from sandboxes.errors import SandboxError
from sandboxes.protocol import MOST_LISTED, CarryRules, ChangedPath, PackedWork, WorkLimits, is_below
from sandboxes.rooted_files import printable
from sandboxes.streams import uninterrupted
from sandboxes.work import outermost
from sandboxes.work_archive import TarMember

Inspect = Callable[[str], Any]
_LEFT_LOOKED_AT: Final = 200_000
_KEPT_MODE: Final = 0o1777
_ARGUMENT_BYTES: Final = 96 << 10
_PIECE_BYTES: Final = 1 << 20


class _EnoughError(Exception):
    """No more entries may be packed."""


class ContainerWork:
    """Carries the work of the containers of one engine."""

    def __init__(self, client: EngineClient, listings: ContainerListings, inspect: Inspect) -> None:
        self._client = client
        self._listings = listings
        self._inspect = inspect
        self._image_links = ImageLinks(client)

    async def changes(self, name: str, rules: CarryRules | None) -> list[ChangedPath]:
        """Return what differs, and if rules are given what they carry of it."""
        container = await self._inspect(name)
        listing = await self._listings.of(container)
        made = {workdir_of(container), *folders_above(f"{workdir_of(container)}/")}
        changes = (
            ChangedPath(one.path, one.kind)
            for one in listing.found.values()
            if not (one.kind == "added" and one.path in made) and (rules is None or rules.carries(one.path))
        )
        return [change for _, change in zip(range(MOST_LISTED), changes, strict=False)]

    async def pack(self, name: str, rules: CarryRules, archive: Path, limits: WorkLimits) -> PackedWork:
        """Pack what differs and is carried into a new file."""
        container = await self._inspect(name)
        listing = await self._listings.of(container)
        made = {workdir_of(container), *folders_above(f"{workdir_of(container)}/")}
        packed = PackedWork(cut_short=listing.cut_short)
        wanted, removed = set(), []
        for path, one in listing.found.items():
            if not rules.carries(path):
                if not (one.kind == "added" and path in made):
                    packed.leave(path, one.kind)
                if packed.left_count >= _LEFT_LOOKED_AT:
                    packed.cut_short = True
                    break
            elif one.kind == "removed":
                removed.append(path)
            elif one.what == "o":
                packed.skip(path, "neither a regular file nor a folder nor a link")
            else:
                wanted.add(path)
        packed.removed = list(outermost(removed))
        try:
            with archive.open("xb+") as file:
                packer = _Packer(file, packed, limits, rules, mounts_of(container))
                await self._fetch_all(name, WantedMembers(wanted, listing.made_folders), packer)
                await self._add_links(str(container["Image"]), listing, packer)
                packer.close()
        except BaseException:
            archive.unlink(missing_ok=True)
            raise
        return packed

    async def _fetch_all(self, name: str, wanted: WantedMembers, packer: _Packer) -> None:
        try:
            for path in await fetch_members(self._client, name, wanted, packer):
                packer.packed.skip(path, "not to be had from the engine")
            # Hard links to what is not packed: asked for alone, each is a file.
            await fetch_members(self._client, name, WantedMembers(set(packer.again)), packer)
        except _EnoughError:
            pass

    async def _add_links(self, image: str, listing: ContainerListing, packer: _Packer) -> None:
        """Write the links that lead to no forbidden place once the work lies over the image."""

        def is_work(path: str) -> bool:
            return path in packer.written or listing.is_added(path)

        texts = {path: member.link for path, member in packer.links.items()}
        refused = await self._image_links.forbidden(image, texts, packer.rules, is_work)
        packer.write_links(refused)

    async def unpack(self, name: str, archive: Path, rules: CarryRules, removed: Sequence[str]) -> None:
        """Make a container at the carried paths what the packed one was."""
        container = await self._inspect(name)
        members = await asyncio.to_thread(_read_checked, archive, rules, removed)
        listing = await self._listings.of(container)
        texts = {path: member.link for path, member in members.items() if member.kind == tar.TAR_LINK}
        refused = await self._image_links.forbidden(
            str(container["Image"]), texts, rules, lambda path: path in members or listing.is_added(path)
        )
        kept = {above for path in members for above in folders_above(path)} | set(members)
        lost = [
            path
            for path, one in listing.found.items()
            if one.kind == "added" and one.what != "o" and path not in kept and rules.carries(path)
        ]
        await self._delete_trees(name, list(outermost((*lost, *removed))))
        if not members:
            return
        what = f"unpack work in {name}"
        if not refused:
            with archive.open("rb") as file:
                await files.put_archive(self._client, name, "/", file, what=what)
            return
        with tempfile.TemporaryFile() as file:
            await uninterrupted(asyncio.to_thread(_copy_without, archive, refused, file))
            file.seek(0)
            await files.put_archive(self._client, name, "/", file, what=what)

    async def _delete_trees(self, name: str, paths: Sequence[str]) -> None:
        """Delete with the image's own program, in a container that nobody hostile was in."""
        for batch in _batches(paths):
            argv = ["/bin/sh", "-c", 'exec rm -rf -- "$@"', "sh", *batch]
            code = await run_program(self._client, name, argv)
            if code != 0:
                raise SandboxError(f"cannot unpack work in {name}: deleting files ended with {code}")

    async def put_back(self, name: str, paths: Sequence[str], pristine: str) -> None:
        """Make each path, and all below it, what it is in the container `pristine`."""
        container = await self._inspect(name)
        listing = await self._listings.of(container)
        concerned = _Concerned(listing, paths)
        await self._look_at_unknown(name, concerned)
        added = sorted((one.path for one in concerned.added), key=lambda path: (-path.count("/"), path))
        if added:
            await self._remove(name, container, added)
        if not concerned.restored:
            return
        with tempfile.TemporaryFile() as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as packed:
                copier = _Copier(packed)
                wanted = WantedMembers(set(concerned.restored), concerned.whole)
                await fetch_members(self._client, pristine, wanted, copier)
                await fetch_members(self._client, pristine, WantedMembers(set(copier.again)), copier)
            if copier.written:
                file.seek(0)
                await files.put_archive(self._client, name, "/", file, what=f"put back files in {name}")

    async def _look_at_unknown(self, name: str, concerned: _Concerned) -> None:
        """Ask for what a listing does not say: whether what changed is a folder now."""
        for path in concerned.unknown:
            found = await files.stat_path(self._client, name, path)
            if found is None or not found.is_folder:
                concerned.whole.add(path)

    async def _remove(self, name: str, container: Mapping[str, Any], paths: Sequence[str]) -> None:
        """Delete files, links and folders, each after what is in it."""
        if not uses_programs(container):
            await self._delete_trees(name, list(outermost(paths)))
            return
        for batch in _batches(paths):
            code = await run_program(self._client, name, [REMOVE_PROGRAM, *batch])
            if code != 0:
                raise SandboxError(f"cannot put back files in {name}: removing some ended with {code}")
        left = (await self._listings.of(container)).found
        for path in paths:
            if path in left and left[path].kind == "added" and _is_text(path):
                raise SandboxError(f"cannot put back files in {name}: {printable(path)} cannot be removed")


class _Packer:
    """Writes members the engine sent to an archive of ours, within the limits."""

    def __init__(
        self,
        file: BinaryIO,
        packed: PackedWork,
        limits: WorkLimits,
        rules: CarryRules,
        mounted: Collection[str],
    ) -> None:
        self._file = file
        self._limits = limits
        self._mounted = mounted
        self._seen: set[str] = set()
        self.packed = packed
        self.rules = rules
        self.written: dict[str, TarMember] = {}
        self.links: dict[str, TarMember] = {}
        self.again: set[str] = set()

    def wants(self, path: str) -> bool:
        if path in self._seen or path in self._mounted or not self.rules.carries(path):
            return False
        return not any(above in self._mounted for above in folders_above(path))

    def take(self, path: str, info: tarfile.TarInfo, content: io.BufferedIOBase | None) -> bool:
        self._seen.add(path)
        member = TarMember(
            name=path[1:],
            kind=tar.TAR_FILE,
            mode=info.mode & _KEPT_MODE,
            uid=info.uid,
            gid=info.gid,
            mtime_ns=_nanoseconds(info),
        )
        if info.isdir():
            self._write(replace(member, kind=tar.TAR_FOLDER))
        elif info.issym():
            self._count()
            self.links[path] = replace(member, kind=tar.TAR_LINK, mode=0o777, link=info.linkname)
        elif info.islnk():
            return self._take_hard_link(path, member, info.linkname)
        elif content is None:
            self.packed.skip(path, "neither a regular file nor a folder nor a link")
        else:
            return self._add_file(replace(member, size=info.size), content)
        return True

    def _take_hard_link(self, path: str, member: TarMember, target: str) -> bool:
        """Write a further name of a file as a file of its own: the first may not be there to link to."""
        if target in self.links:
            self._count()
            self.links[path] = replace(self.links[target], name=path[1:])
            return True
        first = self.written.get(target)
        if first is None:
            self.again.add(path)
            return True
        self._file.flush()
        with os.fdopen(os.dup(self._file.fileno()), "rb") as again:
            return self._add_file(replace(member, size=first.size), _Part(again.fileno(), first))

    def _add_file(self, member: TarMember, content: io.BufferedIOBase | _Part) -> bool:
        limit = self._limits
        if member.size > limit.max_file_bytes:
            reason = f"{member.size} bytes, over the limit of {limit.max_file_bytes} for a file"
        elif self.packed.bytes + member.size > limit.max_bytes:
            self.packed.cut_short = True
            reason = f"{member.size} bytes, over what is left of {limit.max_bytes}"
        else:
            self._write(member, content)
            self.packed.files += 1
            self.packed.bytes += member.size
            return True
        self.packed.skip(f"/{member.name}", reason)
        return False

    def _write(self, member: TarMember, content: io.BufferedIOBase | _Part | None = None) -> None:
        self._count()
        self._file.write(tar.header(member))
        self.written[f"/{member.name}"] = replace(member, offset=self._file.tell())
        left = member.size
        while content is not None and left:
            piece = content.read(min(left, _PIECE_BYTES))
            if not piece:
                raise SandboxError(f"cannot pack /{printable(member.name)}: it broke off before its end")
            self._file.write(piece)
            left -= len(piece)
        self._file.write(bytes(-member.size % tar.BLOCK))

    def _count(self) -> None:
        if len(self.written) + len(self.links) >= self._limits.max_entries:
            self.packed.cut_short = True
            raise _EnoughError

    def write_links(self, refused: Collection[str]) -> None:
        """Write the links that are not refused."""
        for path, member in sorted(self.links.items()):
            if path in refused:
                self.packed.skip(path, f"a link to {printable(member.link)}")
            else:
                self._file.write(tar.header(member))

    def close(self) -> None:
        """Write the end of the archive."""
        self._file.write(bytes(2 * tar.BLOCK))
        self._file.flush()


class _Part:
    """The content of a member in a file that is still being written."""

    def __init__(self, fd: int, member: TarMember) -> None:
        self._fd = fd
        self._at = member.offset

    def read(self, size: int) -> bytes:
        piece = os.pread(self._fd, size, self._at)
        self._at += len(piece)
        return piece


class _Copier:
    """Copies members as they are, under their whole paths."""

    def __init__(self, packed: tarfile.TarFile) -> None:
        self._packed = packed
        self.written: set[str] = set()
        self.again: set[str] = set()

    def wants(self, path: str) -> bool:
        return path not in self.written

    def take(self, path: str, info: tarfile.TarInfo, content: io.BufferedIOBase | None) -> bool:
        if info.islnk():
            if info.linkname not in self.written:
                self.again.add(path)
                return True
            info.linkname = info.linkname[1:]
        info.name = path[1:]
        # Names are written anew from the fields above.
        info.pax_headers = {
            key: value for key, value in info.pax_headers.items() if key not in ("path", "linkpath", "size")
        }
        self._packed.addfile(info, content)
        self.written.add(path)
        return True


class _Concerned:
    """What of a listing has to be undone so that some paths are what they were."""

    def __init__(self, listing: ContainerListing, paths: Sequence[str]) -> None:
        wanted = set(paths)
        entries = [one for one in listing.found.values() if _concerns(one, wanted)]
        self.added = [one for one in entries if one.kind == "added"]
        self.restored = {one.path for one in entries if one.kind != "added"}
        self.unknown = [one.path for one in entries if one.kind == "changed" and not one.what]
        self.whole = {
            one.path
            for one in entries
            if one.kind == "removed" or (one.kind == "changed" and one.what not in ("", "d"))
        }
        if not listing.is_exact:
            # Changes that keep size and times are not told.
            self.restored |= {path for path in wanted if not listing.is_added(path)}


def _concerns(one: ContainerChange, wanted: Collection[str]) -> bool:
    """Return whether the entry is a wanted path, is in one, or stands in the way to one."""
    if one.path in wanted or any(above in wanted for above in folders_above(one.path)):
        return True
    is_folder_now = one.what == "d" and one.kind == "changed"
    return not is_folder_now and any(is_below(path, one.path) for path in wanted)


def _read_checked(archive: Path, rules: CarryRules, removed: Sequence[str]) -> dict[str, TarMember]:
    with archive.open("rb") as file:
        members = {f"/{member.name}": member for member in tar.read_members(file)}
    links = {path for path, member in members.items() if member.kind == tar.TAR_LINK}
    for path in (*members, *removed):
        normal = not {"", ".", ".."} & set(path[1:].split("/")) and "\0" not in path
        if not (path.startswith("/") and normal and rules.carries(path)):
            raise SandboxError(f"work cannot be unpacked: {printable(path)} is not a path to carry")
        if any(above in links for above in folders_above(path)):
            raise SandboxError(f"work cannot be unpacked: {printable(path)} is below a link")
    return members


def _copy_without(archive: Path, refused: Collection[str], target: BinaryIO) -> None:
    with archive.open("rb") as file:
        for member in tar.read_members(file):
            if f"/{member.name}" in refused:
                continue
            target.write(tar.header(member))
            part, left = _Part(file.fileno(), member), member.size
            while left and (piece := part.read(min(left, _PIECE_BYTES))):
                target.write(piece)
                left -= len(piece)
            target.write(bytes(-member.size % tar.BLOCK))
        target.write(bytes(2 * tar.BLOCK))


def _batches(paths: Sequence[str]) -> Iterator[list[str]]:
    """Yield the paths in lists that fit a command line. Requests are text: other names stay."""
    batch: list[str] = []
    room = _ARGUMENT_BYTES
    for path in filter(_is_text, paths):
        if len(path.encode()) + 1 > room and batch:
            yield batch
            batch, room = [], _ARGUMENT_BYTES
        batch.append(path)
        room -= len(path.encode()) + 1
    if batch:
        yield batch


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _nanoseconds(info: tarfile.TarInfo) -> int:
    text = info.pax_headers.get("mtime")
    if text is None:
        return int(info.mtime) * 10**9
    whole, _, fraction = text.partition(".")
    sign = -1 if whole.startswith("-") else 1
    return int(whole) * 10**9 + sign * int(fraction[:9].ljust(9, "0") or 0)
