"""Workspaces before and after the agent, and what changed between them."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sandboxes.errors import SandboxFileNotFoundError
from sandboxes.protocol import A_LINK, Sandbox
from sandboxes.rooted_files import is_utf8
from sandboxes.types import CopyLimits, CopyReport, OutputSink
from valkyrie.domain import content_digest
from valkyrie.errors import GraderError, InfrastructureError, UsageError, UserError
from valkyrie.git.command import OfflineGit
from valkyrie.specs.globs import TooManyFilesError, WorkspaceGlob

LIMITS = CopyLimits(max_bytes=2 << 30, max_file_bytes=256 << 20, max_entries=200_000)
_TOO_LARGE = ("for a file", "over the limits")
_CUT_SHORT = ("not looked at", "left of")
MOST_TOLD = 10
MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class WorkspaceSnapshot:
    """The state of a workspace at one moment."""

    folder: Path
    """Read only: it may be the user's own `--work-dir`. Links in a copy lead nowhere out of it; those in
    `--work-dir` may, and are not to be followed."""
    too_large: frozenset[str] = frozenset()
    """Files that were left behind for their size."""
    cut_short: bool = False
    """More than the limits allow was there: what is missing here may have been there."""
    untouched: bool = False
    """Nothing has been written since set-up."""


@dataclass(frozen=True, slots=True)
class InitialWorkspace:
    """What a workspace was when the agent got it."""

    folders: tuple[Path, ...]
    """Later ones lie over earlier ones."""
    too_large: frozenset[str] = frozenset()
    """Files that were there and are in none of the folders, for their size."""
    live_since: int | None = None
    """When set-up ended (ns), if the first folder is `--work-dir`: what changed there later, people or other
    trials changed, and not the agent."""
    not_looked_at: tuple[str, ...] = ()
    """Files and folders, relative to the workspace, that the agent was not shown."""


def files_in(
    folder: Path,
    *,
    but: frozenset[str] = frozenset(),
    unseen: Collection[str] = (),
    links: bool = False,
) -> Iterator[tuple[str, Path]]:
    """Regular files below a folder, by their path in it; names in `but` and paths in `unseen` are passed
    over, and so are links, unless `links` asks for those that lead to something in the folder."""
    top = os.path.realpath(folder)
    waiting = [("", os.fspath(folder), 0)]
    while waiting:
        prefix, path, depth = waiting.pop()
        with os.scandir(path) as found:
            entries = list(found)  # not read while callers hold the iterator: they may never come back
        for entry in entries:
            if entry.name in but or not is_utf8(entry.name) or prefix + entry.name in unseen:
                continue
            if entry.is_dir(follow_symlinks=False):
                if depth < MAX_DEPTH:
                    waiting.append((f"{prefix}{entry.name}/", entry.path, depth + 1))
            elif entry.is_file(follow_symlinks=False) or (
                links and entry.is_symlink() and leads_inside(entry.path, top, unseen)
            ):
                yield prefix + entry.name, Path(entry.path)


def leads_inside(link: str, top: str, unseen: Collection[str] = ()) -> bool:
    """Return whether a link is relative, and leads to a place in the folder `top` that the agent was
    shown."""
    try:
        if os.path.isabs(os.readlink(link)):  # noqa: PTH115, PTH117 - asked of each entry
            return False
        real = os.path.realpath(link, strict=False)
    except (OSError, ValueError):
        return False
    place = os.path.relpath(real, top)
    shown = not any(place == one or place.startswith(f"{one}/") for one in unseen)
    return (real == top or real.startswith(f"{top}/")) and shown


def make_links(folder: Path, links: Mapping[str, str], inner: str | None = None) -> int:
    """Make links in a copy of a folder that lead to places in it; how many were made.

    `inner` is what the folder is called in the sandbox it comes from: links may name it as a whole.

    What leads out, in whatever way, is not made: contents are hostile, and graders read them on this machine.
    """
    top = os.path.realpath(folder)
    made = []
    for path, target in sorted(links.items()):
        place = Path(top, path)
        leads = _relative(path, target, inner)
        if leads is None or os.path.lexists(place) or not _has_plain_parents(place, top):
            continue
        place.symlink_to(leads)
        made.append(place)
    leaving = [place for place in made if not leads_inside(os.fspath(place), top)]
    for place in leaving:
        place.unlink()
    return len(made) - len(leaving)


def _relative(path: str, target: str, inner: str | None) -> str | None:
    """Return what a link says, as seen from itself; None for one that leads out, or says nothing."""
    if not target or "\0" in target:
        return None
    above = path.count("/")
    if inner is not None and (target == inner or target.startswith(f"{inner}/")):
        return "/".join([*[".."] * above, target[len(inner) :].lstrip("/") or "."])
    return None if target.startswith("/") else target


def _has_plain_parents(place: Path, top: str) -> bool:
    """Return whether the folders above are there and none is a link; a download makes all it looked into."""
    folders = [one for one in place.parents if len(os.fspath(one)) > len(top)]
    return all(one.is_dir() and not one.is_symlink() for one in folders)


async def download(sandbox: Sandbox, path: str, into: Path, log: OutputSink) -> WorkspaceSnapshot:
    """Bring a folder of the sandbox out; one the agent removed, or put a link for, is an empty one.

    What is at `into` from an earlier time goes.
    """
    if into.exists():
        await asyncio.to_thread(shutil.rmtree, into)
    try:
        report = await sandbox.download_folder(path, into, LIMITS)
    except SandboxFileNotFoundError as error:
        log("stderr", f"{path} is taken for empty: {error}\n")
        into.mkdir(parents=True, exist_ok=True)
        return WorkspaceSnapshot(into)
    made = await asyncio.to_thread(make_links, into, report.links, path) if report.links else 0
    return _told(report, path, into, log, made)


def _told(report: CopyReport, path: str, into: Path, log: OutputSink, made: int) -> WorkspaceSnapshot:
    lost = [(name, why) for name, why in report.skipped if why != A_LINK]
    for name, why in lost[:MOST_TOLD]:
        log("stderr", f"{path}/{name} is left behind: {why}\n")
    if links := len(report.links) - made:
        log("stderr", f"{path}: {links} links that lead out of it are left behind\n")
    cut_short = any(mark in why for _, why in lost for mark in _CUT_SHORT)
    unlisted = report.skipped_count > len(report.skipped) and bool(lost)
    too_large = frozenset(name for name, why in lost if why.endswith(_TOO_LARGE))
    return WorkspaceSnapshot(into, too_large, cut_short or unlisted)


# Final states of workspaces, kept for people: whole (`--workspace`), or the artifacts a stimulus names.

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
    """Return which folder it is: one made anew under the same name is another."""
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


# What changed in a workspace since its set-up, and since each turn, as git tells it.

MAX_DIFF_BYTES = 16 << 20
GIT_TIMEOUT_S = 120.0
_GIT = frozenset({".git"})
_SETTINGS = (("core.quotePath", "false"), ("core.bigFileThreshold", "4m"))
_DIFF = ("diff-tree", "-p", "-r", "-M", "-l2000", "--no-color", "--no-ext-diff", "--no-textconv")

Files = dict[str, Path]
"""Path in the workspace → where it is on this machine."""


def diff(before: InitialWorkspace, after: WorkspaceSnapshot) -> str:
    """The changes from `before` to `after`. Blocks."""
    if after.untouched:
        return ""
    if after.cut_short:
        raise GraderError(
            "the workspace is too large to tell what changed in it "
            f"(limits: {LIMITS.max_entries:,} entries, {LIMITS.max_bytes >> 20:,} MiB)"
        )
    old, new = _layered(before.folders), _layered((after.folder,))
    passed_over = after.too_large | before.too_large
    changed = sorted(
        path
        for path in old.keys() | new.keys()
        if path not in passed_over
        and _differs(old.get(path), new.get(path))
        and not _changed_outside(path, before)
    )
    text = _compared(before.folders, after.folder, old, new, changed) if changed else ""
    grown = sorted(path for path in after.too_large - before.too_large if not _was_large(path, before))
    return text + "".join(f"Binary files a/{path} and b/{path} differ\n" for path in grown)


def _changed_outside(path: str, before: InitialWorkspace) -> bool:
    if any(path == one or path.startswith(f"{one}/") for one in before.not_looked_at):
        return True
    if before.live_since is None:
        return False
    try:
        return (before.folders[0] / path).lstat().st_ctime_ns > before.live_since
    except OSError:
        return False


def _layered(folders: Sequence[Path]) -> Files:
    files: Files = {}
    for number, folder in enumerate(folders):
        for path, place in files_in(folder, but=_GIT, links=True):
            if _is_large(place):
                continue
            if number:
                # What lies above replaces a file where it has a folder, and a folder where it has a file.
                for parent in Path(path).parents:
                    files.pop(str(parent), None)
                for below in [name for name in files if name.startswith(f"{path}/")]:
                    del files[below]
            files[path] = place
    return files


def _was_large(path: str, before: InitialWorkspace) -> bool:
    return any(_is_large(folder / path) for folder in before.folders)


def _is_large(path: Path) -> bool:
    try:
        return path.lstat().st_size > LIMITS.max_file_bytes
    except OSError:
        return False


def _differs(old: Path | None, new: Path | None) -> bool:
    if old is None or new is None:
        return True
    was, is_now = old.lstat(), new.lstat()
    if was.st_size != is_now.st_size or _mode(was) != _mode(is_now):
        return True
    if stat.S_ISLNK(was.st_mode):
        return old.readlink() != new.readlink()
    with old.open("rb") as one, new.open("rb") as other:
        while piece := one.read(1 << 18):
            if piece != other.read(1 << 18):
                return True
    return False


def _mode(info: os.stat_result) -> str:
    if stat.S_ISLNK(info.st_mode):
        return "120000"
    return "100755" if info.st_mode & stat.S_IXUSR else "100644"


def _compared(before: Sequence[Path], after: Path, old: Files, new: Files, changed: Sequence[str]) -> str:
    with tempfile.TemporaryDirectory(prefix="valkyrie-diff-") as scratch:
        git = _Git(Path(scratch))
        ignored = git.ignored(after, [path for path in changed if path not in old])
        for folder in before:
            ignored |= git.ignored(folder, [path for path in changed if path in old])
        kept = [path for path in changed if path not in ignored or path.split("/")[-1] == ".gitignore"]
        return git.compare(old, new, kept) if kept else ""


class _Git:
    """A repository of our own that knows nothing of the workspace's."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._git = OfflineGit(scratch / "git", scratch, GIT_TIMEOUT_S, _SETTINGS)
        self._run("init", "--quiet", "--template=", "--bare")

    def ignored(self, folder: Path, paths: Sequence[str]) -> set[str]:
        """Those of `paths` that the `.gitignore` files of a folder hide."""
        if not paths:
            return set()
        given = self._scratch / "paths"
        # A name that begins with `:` would be read as more than a name.
        given.write_bytes("\0".join(f"./{path}" for path in paths).encode())
        words = ("-c", "core.bare=false", "check-ignore", "--no-index", "-z", "--stdin")
        with given.open("rb") as stdin:
            said = self._run(*words, stdin=stdin, work_tree=folder, fine=(0, 1, 128))
        return {name.decode(errors="replace").removeprefix("./") for name in said.split(b"\0") if name}

    def compare(self, old: Files, new: Files, paths: Sequence[str]) -> str:
        """The differences of these files."""
        stream = self._scratch / "stream"
        with stream.open("wb") as out:
            for name, files in (("old", old), ("new", new)):
                _write_commit(out, name, ((path, files[path]) for path in paths if path in files))
        with stream.open("rb") as stdin:
            self._run("fast-import", "--quiet", "--force", stdin=stdin)
        said = self._run(*_DIFF, "refs/heads/old", "refs/heads/new", most=MAX_DIFF_BYTES + 1)
        text = said[:MAX_DIFF_BYTES].decode(errors="replace")
        cut = f"\n[the diff is cut here, after {MAX_DIFF_BYTES >> 20} MiB]\n"
        return text + cut if len(said) > MAX_DIFF_BYTES else text

    def _run(
        self,
        *words: str,
        stdin: BinaryIO | None = None,
        work_tree: Path | None = None,
        fine: tuple[int, ...] = (0,),
        most: int = 64 << 20,
    ) -> bytes:
        try:
            done = self._git.run(*words, stdin=stdin, work_tree=work_tree, most=most)
        except InfrastructureError:
            raise GraderError(f"git did not tell the changes within {GIT_TIMEOUT_S:g} s") from None
        except UserError:
            raise GraderError(
                "git is not installed here, and what changed in a workspace is told by git"
            ) from None
        if done.code not in fine:
            why = " ".join(done.said)[-500:]
            raise GraderError(f"git could not tell the changes: {why or f'exit code {done.code}'}")
        return done.output


def _write_commit(out: BinaryIO, name: str, files: Iterable[tuple[str, Path]]) -> None:
    """One commit as fast-import reads it."""
    out.write(f"commit refs/heads/{name}\ncommitter valkyrie <> 0 +0000\ndata 0\n".encode())
    for path, place in files:
        if place.is_symlink():
            said = os.fsencode(place.readlink())
            out.write(f"M 120000 inline {_quoted(path)}\ndata {len(said)}\n".encode() + said + b"\n")
            continue
        with place.open("rb") as file:
            info = os.fstat(file.fileno())
            out.write(f"M {_mode(info)} inline {_quoted(path)}\ndata {info.st_size}\n".encode())
            left = info.st_size
            while left and (piece := file.read(min(left, 1 << 20))):
                out.write(piece)
                left -= len(piece)
            if left:
                raise GraderError(f"{path} became shorter while it was compared")
            out.write(b"\n")


def _quoted(path: str) -> str:
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


# What had changed in a workspace when a turn but the last had ended, in files beside `workspace.patch`.

MOST_PATCH = 16 << 20
_NAME = re.compile(r"workspace\.turn-([0-9]{1,5})\.patch")


def turn_patch(number: int) -> str:
    """The name of a turn's file."""
    return f"workspace.turn-{number}.patch"


def turn_patches(folder: Path) -> Mapping[int, Path]:
    """Turn → its file, of those in a folder; links are passed over."""
    if not folder.is_dir():
        return {}
    named = ((_NAME.fullmatch(path.name), path) for path in sorted(folder.iterdir()))
    return {
        int(match[1]): path for match, path in named if match and path.is_file() and not path.is_symlink()
    }


def read_turn_patches(folder: Path) -> Mapping[int, str]:
    """Turn → what had changed by then."""
    found = {}
    for number, path in turn_patches(folder).items():
        with path.open("rb") as file:
            found[number] = file.read(MOST_PATCH + 100).decode("utf-8", "replace")
    return found
