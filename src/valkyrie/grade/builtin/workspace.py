"""Graders of the files the agent left in the workspace, and of its changes as a diff."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from valkyrie.errors import GraderError
from valkyrie.grade.base import (
    BuiltIn,
    Config,
    Matching,
    Sought,
    Substring,
    UnreadableError,
    clipped,
    is_file,
    read_text,
    sought_by,
    wanted_by,
    workspace_of,
)
from valkyrie.grade.protocol import GraderInput, GraderResult, Need
from valkyrie.specs.globs import TooManyFilesError, WorkspaceGlob

_HEADER = re.compile(r"diff --git (?P<old>\"?a/.*?\"?) (?P<new>\"?b/.*\"?)$")
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_NOTES = {
    "rename from ": "rename from",
    "rename to ": "rename to",
    "deleted file mode": "deleted",
    "new file mode": "new",
    "old mode": "old mode",
    "new mode": "new mode",
    "Binary files": "binary",
    "GIT binary patch": "binary",
}


@dataclass(frozen=True, slots=True)
class FileChange:
    """What happens to one file."""

    lines: tuple[str, ...]
    """`-` and `+` lines in order; context is left out."""
    notes: frozenset[str] = frozenset()


def changes_of(patch: str, *, ignore_whitespace: bool = False) -> Mapping[str, FileChange]:
    """Path → what changes. Text that is no diff changes nothing."""
    found: dict[str, tuple[list[str], set[str]]] = {}
    path: str | None = None
    old_left = new_left = 0
    for line in patch.splitlines():
        if old_left > 0 or new_left > 0:
            old_left -= line[:1] != "+" and line[:1] != "\\"
            new_left -= line[:1] != "-" and line[:1] != "\\"
            if path is not None and line[:1] in ("+", "-"):
                found[path][0].append(_normal(line, ignore_whitespace))
        elif hunk := _HUNK.match(line):
            old_left, new_left = (1 if size is None else int(size) for size in hunk.groups())
        elif header := _HEADER.match(line):
            path = _plain(header["new"])
            found.setdefault(path or "", ([], set()))
        elif line.startswith("--- "):
            path = _plain(line[4:]) or path
        elif line.startswith("+++ "):
            path = _plain(line[4:]) or path
            if path is not None:
                found.setdefault(path, ([], set()))
        elif path is not None:
            found[path][1].update(note for start, note in _NOTES.items() if line.startswith(start))
    return {name: FileChange(tuple(lines), frozenset(notes)) for name, (lines, notes) in found.items()}


def _plain(name: str) -> str | None:
    """A path without its prefix, quotes or date; None for /dev/null."""
    name = name.split("\t")[0].strip().strip('"')
    if name == "/dev/null":
        return None
    return name[2:] if name[:2] in ("a/", "b/") else name


def _normal(line: str, ignore_whitespace: bool) -> str:
    return line[0] + ("".join(line[1:].split()) if ignore_whitespace else line[1:].rstrip())


# Files the agent left in the workspace.

_SHOWN = 5
MOST_BYTES_IN_ALL = 256 * 1024 * 1024
"""Of all files that one grader looks into."""


class _FileGrader(BuiltIn):
    needs = frozenset({Need.WORKSPACE})

    def read(self, config: Config) -> None:
        self.glob = WorkspaceGlob(config.text("path"))
        self.wanted = wanted_by(config, self.spec.type)

    async def look(self, given: GraderInput) -> GraderResult:
        root = workspace_of(given.workspace).resolve()
        try:
            if self.glob.plain:
                return self.search(root, given.unseen)
            return await asyncio.to_thread(self.search, root, given.unseen)
        except TooManyFilesError as error:
            return self.failed(f"cannot tell: {error}")

    def search(self, root: Path, unseen: Collection[str]) -> GraderResult:
        raise NotImplementedError

    def nothing(self) -> str:
        why = " (it leads out of the workspace)" if self.glob.leaves else ""
        return f"no file matches {self.glob.pattern}{why}"


class FileExistsGrader(_FileGrader):
    """`file-exists`, `file-not-exists`: something in the workspace has this path."""

    def search(self, root: Path, unseen: Collection[str]) -> GraderResult:
        path = next(self.glob.find(root, unseen), None)
        if path is None:
            return self.found(not self.wanted, self.nothing())
        return self.found(self.wanted, f"there is {path.relative_to(root)}")


class FileTextGrader(_FileGrader):
    """`file-contains`, `file-matches` and their `-not-` forms: any file with this path has it."""

    def read(self, config: Config) -> None:
        super().read(config)
        self.sought = sought_by(config, self.spec.type, case_sensitive=True)

    def search(self, root: Path, unseen: Collection[str]) -> GraderResult:
        read, unreadable = list[str](), list[str]()
        left = MOST_BYTES_IN_ALL
        for path in self.glob.find(root, unseen):
            if not is_file(path):
                continue
            name = str(path.relative_to(root))
            try:
                text = read_text(path, most=left)
            except UnreadableError as error:
                unreadable.append(f"{name}: {error}")
                continue
            left -= len(text)
            place = self.sought.where(text)
            if place is not None:
                return self.found(self.wanted, f"{name} has {self.sought.name}: {place}")
            read.append(name)
        if unreadable:
            return self.failed(f"cannot tell: {'; '.join(unreadable[:_SHOWN])}")
        if not read:
            return self.found(not self.wanted, self.nothing())
        names = clipped(", ".join(read[:_SHOWN]), 300) + (" …" if len(read) > _SHOWN else "")
        return self.found(not self.wanted, f"{self.sought.name} is not in {names}")


# What the agent changed in the workspace, as a diff from the end of set-up.

MOST_PATCH = 16 * 1024 * 1024


class _DiffGrader(BuiltIn):
    needs = frozenset({Need.DIFF})

    def read(self, config: Config) -> None:
        self.turn = config.whole("turn", low=0, high=10_000, default=self.spec.turn)

    def diff_of(self, given: GraderInput) -> str:
        """The diff after the grader's turn: all that changed since set-up."""
        last = len(given.stimulus.turns) - 1
        if self.turn is not None and self.turn < last:
            if self.turn not in given.turn_diffs:
                raise GraderError(f"there is no diff of turn {self.turn}: nobody said when it ended.")
            return given.turn_diffs[self.turn]
        if given.diff is None:
            raise GraderError(
                "there is no diff to look at. `valk grade` takes it from --artifact-dir, the folder of the "
                "results, or --diff-file."
            )
        return given.diff


class DiffTextGrader(_DiffGrader):
    """`diff-contains`, `diff-not-contains`: `value` is a text, `pattern` a regex."""

    def read(self, config: Config) -> None:
        super().read(config)
        self.wanted = wanted_by(config, self.spec.type)
        self.sought: Sought
        if not config.has("pattern"):
            self.sought = Substring(config.text("value", "substring"), case_sensitive=True)
        elif config.value("value", "substring") is None:
            self.sought = Matching(config.pattern("pattern"))
        else:
            raise config.wrong("give `value` or `pattern`, not both.")

    async def look(self, given: GraderInput) -> GraderResult:
        place = self.sought.where(self.diff_of(given))
        if place is None:
            return self.found(not self.wanted, f"the diff does not have {self.sought.name}")
        return self.found(self.wanted, f"the diff has {self.sought.name}: {place}")


class DiffEmptyGrader(_DiffGrader):
    """`diff-empty`: nothing was changed."""

    type = "diff-empty"

    def read(self, config: Config) -> None:
        super().read(config)
        self.negate = config.flag("negate")

    async def look(self, given: GraderInput) -> GraderResult:
        diff = self.diff_of(given)
        if not diff.strip():
            return self.found(not self.negate, "nothing was changed")
        names = ", ".join(changes_of(diff)) or clipped(diff, 200)
        return self.found(self.negate, f"changed: {clipped(names, 500)}")


class ExpectedDiffGrader(_DiffGrader):
    """`expected-diff`: the same lines go and come in the same files as in a patch the author gives."""

    type = "expected-diff"

    def read(self, config: Config) -> None:
        super().read(config)
        self.ignore_whitespace = config.flag("ignore_whitespace")
        self.subset = config.flag("allow_other_files")
        config.known.update(("patch", "file"))
        if config.has("patch") == config.has("file") and config.has("patch"):
            raise config.wrong("give `patch` or `file`, not both.")
        self.patch = config.text("patch") if config.has("patch") else None
        if config.has("file"):
            self.patch = _read(config, config.text("file"))
        if self.patch is None:
            self.needs = frozenset({*type(self).needs, Need.GOLDEN_PATCH})  # type: ignore[misc]  # only then

    async def look(self, given: GraderInput) -> GraderResult:
        patch = self.patch if self.patch is not None else given.golden_patch
        if patch is None:
            raise GraderError("there is no patch to compare with: set `patch` or `file`, or a golden patch.")
        expected = changes_of(patch, ignore_whitespace=self.ignore_whitespace)
        if not expected and patch.strip():
            raise GraderError("the expected patch is no unified diff.")
        actual = changes_of(self.diff_of(given), ignore_whitespace=self.ignore_whitespace)
        problems = [f"{path} is not changed" for path in expected if path not in actual]
        problems += [
            f"{path} is changed otherwise: {_difference(change, actual[path])}"
            for path, change in expected.items()
            if path in actual and not _same(change, actual[path])
        ]
        if not self.subset:
            problems += [f"{path} should not be changed" for path in actual if path not in expected]
        same = f"the changes of {len(expected)} files are as expected"
        return self.found(not problems, "; ".join(problems) or same)


def _same(expected: FileChange, actual: FileChange) -> bool:
    """The same lines; notes (new, deleted, renamed) count where the patch has any."""
    return expected.lines == actual.lines and (not expected.notes or expected.notes == actual.notes)


def _difference(expected: FileChange, actual: FileChange) -> str:
    missing = [line for line in expected.lines if line not in actual.lines]
    extra = [line for line in actual.lines if line not in expected.lines]
    told = [f"expected {clipped(missing[0], 120)}"] if missing else []
    told += [f"found {clipped(extra[0], 120)}"] if extra else []
    return ", ".join(told) or "the same lines in another order or number, or another kind of change"


def _read(config: Config, name: str) -> str:
    path = config.beside_spec(name)
    try:
        with open(path, encoding="utf-8") as file:
            content = file.read(MOST_PATCH + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise config.wrong(f"`file`: {path} cannot be read as text: {error}.") from None
    if len(content) > MOST_PATCH:
        raise config.wrong(f"`file`: {path} is larger than {MOST_PATCH // 1024 // 1024} MiB.")
    return content
