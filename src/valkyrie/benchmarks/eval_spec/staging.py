"""The static part of a workspace: files and skills, put together in a folder of the host.

What is copied may hold links. One that stays inside what is copied is kept, one that leaves it is refused,
and none is ever written through: no entry of a spec reaches beyond the folder it is put into.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Set
from pathlib import Path, PurePosixPath

from sandboxes.errors import SandboxError
from sandboxes.protocol import Sandbox
from sandboxes.rooted import RootedFiles
from sandboxes.trees import FOLDER
from sandboxes.values import Command
from valkyrie.errors import BenchmarkError
from valkyrie.specs.model import FileEntry, Finding

SETUP_FAILED = "task_setup_failed"
LINKS_AT_ONCE = 200
_MAKE_LINKS = 'while [ $# -gt 1 ]; do ln -sfn -- "$2" "$1" || exit; shift 2; done'


def destination(entry: FileEntry) -> str | None:
    """Where below the workspace an entry goes, `.` for the workspace itself; None when it would leave it."""
    dest = entry.dest.strip()
    path = PurePosixPath(dest)
    if not dest or "\0" in dest or "\\" in dest or path.is_absolute() or ".." in path.parts:
        return None
    if dest.endswith("/") and entry.source.is_file():
        path /= entry.source.name
    return str(path)


def file_problems(entries: Iterable[FileEntry], what: str) -> Iterator[Finding]:
    """What keeps entries from being staged, as far as it shows beforehand."""
    for entry in entries:
        if destination(entry) is None:
            message = (
                f"{what}: dest {entry.dest!r} must be a path below the workspace, with `/` between its parts "
                "and without `..`"
            )
            yield Finding("environment-file-outside", "error", message, entry.place)
        if problem := _source_problem(entry):
            yield Finding(
                "environment-file-missing", "error", f"{what}: src {entry.src!r} {problem}", entry.place
            )


def _source_problem(entry: FileEntry) -> str | None:
    try:
        mode = entry.source.stat().st_mode
    except (OSError, ValueError):
        return f"is not there: no {_shown(entry.source)}; paths are relative to {entry.base.absolute()}"
    if stat.S_ISDIR(mode):
        link = next(leaving_links(entry.source), None)
        return (
            f"holds the link {link}, which leads out of it; copy what it leads to instead" if link else None
        )
    if not stat.S_ISREG(mode):
        return "is neither a file nor a folder"
    return None if os.access(entry.source, os.R_OK) else "cannot be read"


def _shown(path: Path) -> str:
    return os.path.normpath(path)


def leaving_links(folder: Path) -> Iterator[str]:
    """Links below a folder that lead out of it, relative to it."""
    top = os.path.realpath(folder)
    for parent, folders, names in os.walk(top):
        for name in (*folders, *names):
            path = Path(parent, name)
            if path.is_symlink() and not _inside(os.path.realpath(path), top):
                yield os.path.relpath(path, top)


def _inside(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top}/")


def lay_out(folder: Path, entries: Iterable[tuple[Path, str]]) -> None:
    """Copy files and folders of the host to places below `folder`, made if missing; later ones win."""
    folder.mkdir(parents=True, exist_ok=True)
    top = os.open(folder, FOLDER)
    try:
        files = RootedFiles(top, (os.geteuid(), os.getegid()))
        for source, place in entries:
            try:
                files.copy_in(source, place)
            except (OSError, SandboxError) as error:
                raise BenchmarkError(
                    f"cannot stage {source} as {place}: {error}", cause=SETUP_FAILED
                ) from error
    finally:
        os.close(top)


def placed(entries: Iterable[FileEntry]) -> Iterator[tuple[Path, str]]:
    """Entries as (what, where); those that cannot be staged raise BenchmarkError."""
    for entry in entries:
        place = destination(entry)
        if place is None or not entry.source.exists():
            finding = next(iter(file_problems((entry,), "files")))
            raise BenchmarkError(str(finding), cause=SETUP_FAILED)
        # The entry itself may be a link: its author named what it leads to.
        yield Path(os.path.realpath(entry.source)), place


async def put_tree(sandbox: Sandbox, source: Path, target: str, *, without: Set[str] = frozenset()) -> None:
    """A folder of the host in the sandbox as it is: links that lead out of it lead elsewhere in there.

    Sockets, pipes and devices stay behind, and what is to be left out, by paths below the folder.
    """
    if without:
        with tempfile.TemporaryDirectory(prefix="valkyrie-") as scratch:
            rest = Path(scratch, "tree")
            await asyncio.to_thread(_copy_without, source, rest, without)
            await put_tree(sandbox, rest, target)
        return
    links, left_out = await asyncio.to_thread(_unfit, source)
    if not links and not left_out:
        await sandbox.upload_folder(source, target)
        return
    with tempfile.TemporaryDirectory(prefix="valkyrie-") as scratch:
        fit = Path(scratch, "tree")
        await asyncio.to_thread(_copy_without, source, fit, links.keys() | left_out)
        await sandbox.upload_folder(fit, target)
    words = [word for path, leads in links.items() for word in (f"{target}/{path}", leads)]
    for start in range(0, len(words), 2 * LINKS_AT_ONCE):
        command = Command(("/bin/sh", "-c", _MAKE_LINKS, "links", *words[start : start + 2 * LINKS_AT_ONCE]))
        if (code := await sandbox.run(command)) != 0:
            raise BenchmarkError(f"cannot make the links of {source} in the sandbox: exit code {code}")


def _unfit(folder: Path) -> tuple[dict[str, str], set[str]]:
    """(links that lead out, with where to; what is neither file, folder nor link) below a folder."""
    links = {path: str((folder / path).readlink()) for path in leaving_links(folder)}
    special: set[str] = set()
    for parent, _, names in os.walk(folder):
        for name in names:
            mode = os.lstat(f"{parent}/{name}").st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
                special.add(os.path.relpath(f"{parent}/{name}", folder))
    return links, special


def _copy_without(source: Path, target: Path, left_out: Set[str]) -> None:
    def ignored(parent: str, names: list[str]) -> list[str]:
        return [name for name in names if os.path.relpath(f"{parent}/{name}", source) in left_out]

    shutil.copytree(source, target, symlinks=True, ignore=ignored)
