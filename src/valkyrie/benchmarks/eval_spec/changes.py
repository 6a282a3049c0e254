"""What changed in a workspace since its set-up, and since each turn, as git tells it."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from valkyrie.benchmarks.eval_spec.snapshots import LIMITS, InitialWorkspace, WorkspaceSnapshot, files_in
from valkyrie.errors import GraderError, InfrastructureError, UserError
from valkyrie.git.command import OfflineGit

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
