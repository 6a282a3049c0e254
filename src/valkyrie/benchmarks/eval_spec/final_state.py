"""Final states of workspaces, kept for people: whole (`--workspace`), or the artifacts a stimulus names."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from valkyrie.benchmarks.eval_spec.snapshot import LIMITS, files_in, make_links
from valkyrie.digest import content_digest
from valkyrie.errors import UsageError
from valkyrie.grade.globs import TooManyFilesError, WorkspaceGlob

MOST_ARTIFACTS = 2_000
MOST_ARTIFACT_BYTES = 250 << 20
_MARK = re.compile(r"((?:.*/)?)\.([^/]+)\.valkyrie", re.DOTALL)
_UNFINISHED = re.compile(r"(?:.*/)?\.[^/]+\.(?:new|old)-[0-9a-f]{8}/.*", re.DOTALL)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def folder_name(name: str) -> str:
    """A stimulus' name as the name of a folder; two names never share one."""
    plain = _UNSAFE.sub("-", name).strip("-.")[:80]
    return name if name and plain == name else f"{plain or 'stimulus'}-{content_digest(name)[-8:]}"


async def materialise(final: Path, target: Path, unseen: Collection[str] = ()) -> None:
    """A copy of a final state at `target`, whole or not at all, in place of an earlier one of ours.

    Links that lead out of it are not copied, nor what is at a path in `unseen`. Raises UsageError when
    something that we did not make is at `target`.
    """
    await asyncio.to_thread(_materialise, final, target, unseen)


async def keep_artifacts(
    final: Path, include: Sequence[str], exclude: Sequence[str], target: Path, unseen: Collection[str] = ()
) -> list[str]:
    """Copy the files that match a glob of `include` and none of `exclude` to `target`; their paths."""
    return await asyncio.to_thread(_keep_artifacts, final, include, exclude, target, unseen)


def merge(folders: Iterable[Path], into: Path, unseen: Collection[str] = ()) -> bool:
    """Copy the files of folders into one, later ones over earlier ones; whether that was too much."""
    into.mkdir(parents=True, exist_ok=True)
    layers = list(folders)
    cut_short = any(not _copy(files_in(folder, unseen=unseen), into) for folder in layers)
    for folder in reversed(layers):
        found = dict(files_in(folder, unseen=unseen, links=True))
        make_links(into, {name: str(path.readlink()) for name, path in found.items() if path.is_symlink()})
    return cut_short


def _materialise(final: Path, target: Path, unseen: Collection[str]) -> None:
    mark = target.parent / f".{target.name}.valkyrie"
    _refuse_foreign(target, mark)
    target.parent.mkdir(parents=True, exist_ok=True)
    token = secrets.token_hex(4)
    new, old = (target.parent / f".{target.name}.{word}-{token}" for word in ("new", "old"))
    try:
        new.mkdir()
        _copy(_not_kept_before(dict(files_in(final, unseen=unseen, links=True))), new)
        if target.exists():
            target.rename(old)
        new.rename(target)
        mark.write_text(_identity(target))
    finally:
        for left in (new, old):
            shutil.rmtree(left, ignore_errors=True)


def _not_kept_before(files: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    """Files but those of final states that lie among them, as they do below a `--work-dir`.

    Each would hold those before it, and so grow without end.
    """
    marks = [match for name in files if (match := _MARK.fullmatch(name))]
    kept = tuple(f"{mark[1]}{mark[2]}/" for mark in marks)
    for name, path in files.items():
        if not name.startswith(kept) and not _MARK.fullmatch(name) and not _UNFINISHED.fullmatch(name):
            yield name, path


def _refuse_foreign(target: Path, mark: Path) -> None:
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not target.is_dir():
        raise UsageError(
            f"--workspace: {target} is there and is no folder; remove it, or name another place."
        )
    made = mark.read_text() if mark.is_file() and not mark.is_symlink() else None
    if made != _identity(target) and any(target.iterdir()):
        raise UsageError(
            f"--workspace: {target} is not empty, and no eval made it; remove it, or name another place."
        )


def _identity(folder: Path) -> str:
    """Which folder it is: one made anew under the same name is another."""
    info = folder.stat()
    return f"{info.st_dev}:{info.st_ino}"


def _keep_artifacts(
    final: Path, include: Sequence[str], exclude: Sequence[str], target: Path, unseen: Collection[str]
) -> list[str]:
    root = Path(os.path.realpath(final))
    try:
        refused = set(_matching(root, exclude, unseen))
        chosen = [path for path in dict.fromkeys(_matching(root, include, unseen)) if path not in refused]
    except TooManyFilesError:
        return []
    chosen = chosen[:MOST_ARTIFACTS]
    if chosen:
        target.mkdir(parents=True, exist_ok=True)
        _copy(((path, root / path) for path in chosen), target, MOST_ARTIFACT_BYTES)
    return [path for path in chosen if (target / path).is_file()]


def _matching(root: Path, patterns: Sequence[str], unseen: Collection[str]) -> Iterator[str]:
    """Regular files below `root` that a glob matches, those below a folder it matches included."""
    for pattern in patterns:
        for found in WorkspaceGlob(pattern).find(root, unseen):
            if found.is_symlink():
                continue
            if found.is_dir():
                yield from (str((found / name).relative_to(root)) for name, _ in files_in(found))
            elif found.is_file():
                yield str(found.relative_to(root))


def _copy(files: Iterable[tuple[str, Path]], into: Path, most_bytes: int = LIMITS.max_bytes) -> bool:
    """Copy files to their places below a folder of ours, within limits; whether all were."""
    left, entries = most_bytes, LIMITS.max_entries
    for name, path in files:
        left -= path.lstat().st_size
        entries -= 1
        if left < 0 or entries < 0:
            return False
        place = into / name
        if place.is_dir():
            shutil.rmtree(place)
        _make_room(place, into)
        shutil.copyfile(path, place, follow_symlinks=False)
        shutil.copymode(path, place, follow_symlinks=False)
    return True


def _make_room(place: Path, top: Path) -> None:
    """Folders for a file, in place of files of those names."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        for parent in place.relative_to(top).parents:
            if (top / parent).is_file():
                (top / parent).unlink()
        place.parent.mkdir(parents=True, exist_ok=True)
