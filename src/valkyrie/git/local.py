"""Repositories of this machine, read without obeying them.

Git obeys a repository's `config`, and a repository may have come with an archive or a clone, its author a
stranger. So git never runs on it: `link_repository` makes a repository of our own that borrows its objects
(`objects/info/alternates`) and has a copy of its references. Configuration, hooks, attributes, index, logs
and everything else of it are not looked at. Where it leads elsewhere by a link, a `.git` file or borrowed
objects, it is refused: the files there are not the author's to show.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from valkyrie.errors import UnknownError, UsageError
from valkyrie.git.command import OfflineGit

COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REF = re.compile(r"(?![-/.])[^\x00-\x20\x7f~^:?*\[\\]{1,250}")

LOOK_TIMEOUT_S = 20.0
_MOST_NOTE = 64 << 10
"""Bytes of a file that holds one line."""
_MOST_LISTED = 32 << 20
"""Bytes of a file that holds a line for each reference."""
_MOST_REFERENCES = 1_000_000
_PACKED = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64}) (refs/\S+)")
_SYMBOLIC = re.compile(r"ref:\s*(refs/\S+)\s*")
_CONFIG = """\
[core]
\trepositoryformatversion = {version}
\tbare = true
\thooksPath = /dev/null
\tfsmonitor = false
\tattributesFile = /dev/null
\talternateRefsCommand = true
\tmultiPackIndex = false
\tcommitGraph = false
[uploadpack]
\tallowFilter = true
\tallowAnySHA1InWant = true
{extensions}"""
_SHA256 = "[extensions]\n\tobjectFormat = sha256\n"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a repository keeps itself: `own` is a linked worktree's, `common` has objects and references."""

    own: Path
    common: Path


def git_dir_of(folder: Path) -> Path | None:
    """Return where the repository of a folder keeps itself, None for a folder that has none.

    Raise UsageError where it is kept in a place that does not say itself that it belongs to the folder.
    """
    place = _place_of(folder)
    return place.own if place else None


def head_of(folder: Path) -> str | None:
    """Return the commit a repository is at, read from its files; None where there is none."""
    with suppress(OSError, UsageError):
        if place := _place_of(folder):
            head = _note(place.own / "HEAD").strip()
            if not (match := _SYMBOLIC.fullmatch(head)):
                return head if COMMIT.fullmatch(head) else None
            return _reference(place.common, match[1]) or dict(_packed(place.common)).get(match[1])
    return None


def object_in(folder: Path, words: str) -> str | None:
    """Return the object that words like `HEAD~2` or `main:a.txt` name in a repository, None if none."""
    if _place_of(folder) is None:
        return None
    with tempfile.TemporaryDirectory(prefix="valkyrie-git-") as private:
        git = OfflineGit(link_repository(folder, Path(private, "git")), Path(private), LOOK_TIMEOUT_S)
        ended = git.run("rev-parse", "--verify", "--quiet", "--end-of-options", words)
    found = ended.output.decode(errors="replace").strip()
    return found if ended.code == 0 and COMMIT.fullmatch(found) else None


def commit_in(folder: Path, ref: str) -> str | None:
    """Return the commit a word means in a repository, None if none."""
    return object_in(folder, f"{ref}^{{commit}}")


def link_repository(folder: Path, target: Path) -> Path:
    """Make a bare repository `target` with the references and objects of another, and return it.

    Raise UnknownError where `folder` has no repository, UsageError where it leads elsewhere.
    """
    try:
        return _link(folder, target)
    except OSError as error:
        raise UsageError(f"{error.filename or folder} cannot be read: {error.strerror}.") from error


def _link(folder: Path, target: Path) -> Path:
    place = _place_of(folder)
    if place is None:
        raise UnknownError(f"there is no repository at {folder}.")
    _check_objects(place.common / "objects")
    if (place.common / "reftable").is_dir():
        raise UsageError(
            f"{folder} keeps its references as a reftable, which is not read; "
            f"`git -C {folder} refs migrate --ref-format=files` changes that."
        )
    references = dict(_packed(place.common)) | dict(_loose(place.common))
    head = _note(place.own / "HEAD").strip()
    symbolic = _SYMBOLIC.fullmatch(head)
    sha256 = any(len(found) == 64 for found in (*list(references.values())[:1], head if not symbolic else ""))
    for made in ("objects/info", "refs/heads"):
        (target / made).mkdir(parents=True)
    (target / "HEAD").write_text(f"{f'ref: {symbolic[1]}' if symbolic else head}\n", "utf-8")
    listed = "".join(f"{found} {name}\n" for name, found in sorted(references.items()))
    (target / "packed-refs").write_text(listed, "utf-8", "surrogateescape")
    (target / "config").write_text(_CONFIG.format(version=int(sha256), extensions=_SHA256 if sha256 else ""))
    borrowed = os.path.realpath(place.common / "objects")
    (target / "objects/info/alternates").write_bytes(os.fsencode(f"{_quoted(borrowed)}\n"))
    cut = [line for line in _lines(place.common / "shallow") if COMMIT.fullmatch(line)]
    if cut:
        (target / "shallow").write_text("".join(f"{line}\n" for line in cut))
    return target


def object_format(repository: Path) -> str:
    """Return how objects are named in what `link_repository` made: sha1 or sha256."""
    return "sha256" if _SHA256 in (repository / "config").read_text("utf-8") else "sha1"


def _place_of(folder: Path) -> _Place | None:
    inner = folder / ".git"
    if inner.is_symlink():
        raise UsageError(
            f"{inner} is a link to {os.path.realpath(inner)}, and links of repositories are not followed; "
            "name that place itself."
        )
    if inner.is_dir():
        return _Place(inner, inner) if _is_git_dir(inner) else None
    if inner.is_file():
        return _linked(folder, inner)
    return _Place(folder, folder) if _is_git_dir(folder) else None


def _is_git_dir(folder: Path) -> bool:
    if not _is_plain_file(folder / "HEAD") or not (folder / "objects").is_dir():
        return False
    if (folder / "commondir").is_file():
        raise UsageError(
            f"{folder / 'commondir'} says that the repository is kept elsewhere; name that place itself."
        )
    return True


def _linked(folder: Path, pointer: Path) -> _Place | None:
    """Return the place a `.git` file names: a linked worktree, or a submodule."""
    said = _note(pointer).strip()
    if not said.startswith("gitdir:"):
        return None
    own = Path(os.path.realpath(folder / said.removeprefix("gitdir:").strip()))
    if not _is_plain_file(own / "HEAD"):
        return None
    back = _lines(own / "gitdir")
    if back and os.path.realpath(own / back[0]) == os.path.realpath(pointer):
        common = own.parent.parent
        said_common = os.path.realpath(own / "".join(_lines(own / "commondir")[:1]))
        if own.parent.name == "worktrees" and said_common == str(common):
            return _Place(own, common)
    elif _is_module(folder, own) and _is_git_dir(own):
        return _Place(own, own)
    raise UsageError(
        f"{pointer} says that the repository is kept in {own}, which does not say that it belongs here; "
        "name that place itself."
    )


def _is_module(folder: Path, own: Path) -> bool:
    """Return whether `own` is where a repository around the folder keeps its submodules."""
    for parent in Path(os.path.realpath(folder)).parents:
        with suppress(UsageError):
            place = _place_of(parent)
            if place and own.is_relative_to(Path(os.path.realpath(place.own), "modules")):
                return True
    return False


def _check_objects(objects: Path) -> None:
    """Refuse an object store that holds more than files and folders, or borrows from another."""
    if objects.is_symlink():
        raise _leads_away(objects)
    if any(_lines(objects / "info" / "alternates")):
        raise UsageError(
            f"{objects / 'info/alternates'} borrows objects from elsewhere, which is not followed; "
            f"`git -C {objects.parent} repack -a -d && rm {objects / 'info/alternates'}` makes the "
            "repository whole."
        )
    waiting = [os.fspath(objects)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    raise _leads_away(Path(entry.path))


def _leads_away(path: Path) -> UsageError:
    what = f"a link to {os.path.realpath(path)}" if path.is_symlink() else "no plain file"
    return UsageError(
        f"{path} is {what}; of a repository only plain files are read. Clone it, and name the clone."
    )


def _packed(common: Path) -> Iterator[tuple[str, str]]:
    for line in _lines(common / "packed-refs", _MOST_LISTED):
        if (match := _PACKED.fullmatch(line)) and _is_name(match[2]):
            yield match[2], match[1]


def _loose(common: Path) -> Iterator[tuple[str, str]]:
    waiting, count = [common / "refs"], 0
    while waiting:
        folder = waiting.pop()
        if folder.is_symlink() or not folder.is_dir():
            continue
        for path in folder.iterdir():
            name = path.relative_to(common).as_posix()
            if (count := count + 1) > _MOST_REFERENCES:
                raise UsageError(f"{common} has more than {_MOST_REFERENCES:,} references.")
            if path.is_dir() and not path.is_symlink():
                waiting.append(path)
            elif _is_name(name) and (found := _reference(common, name)):
                yield name, found


def _reference(common: Path, name: str) -> str | None:
    """Return the object of a loose reference; one that names another is followed once."""
    for _ in range(2):
        if any((common / parent).is_symlink() for parent in Path(name).parents):
            return None
        said = "".join(_lines(common / name)[:1]).strip()
        if COMMIT.fullmatch(said):
            return said
        match = _SYMBOLIC.fullmatch(said)
        if match is None or not _is_name(match[1]):
            return None
        name = match[1]
    return None


def _is_name(name: str) -> bool:
    try:
        check_ref(name)
    except UsageError:
        return False
    return True


def _note(path: Path) -> str:
    """Return the text of a small plain file; raise UsageError for anything else."""
    return "\n".join(_lines(path, missing=False))


def _lines(path: Path, most: int = _MOST_NOTE, *, missing: bool = True) -> list[str]:
    """Return the lines of a plain file as git splits them; a link counts as missing."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        if missing:
            return []
        raise UsageError(f"{path} cannot be read as a plain file.") from None
    with open(opened, "rb") as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode) or info.st_size > most:
            raise UsageError(f"{path} is no plain file of at most {most:,} bytes.")
        return file.read(most).decode("utf-8", "surrogateescape").split("\n")


def _is_plain_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _quoted(path: str) -> str:
    """Return a path as git reads it in a list of alternates."""
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def check_ref(ref: str) -> str:
    """A name a branch or tag can have, or a commit; UsageError otherwise."""
    wrong = ".." in ref or "@{" in ref or "//" in ref or ref.endswith(("/", ".", ".lock")) or "/." in ref
    if not _REF.fullmatch(ref) or wrong:
        raise UsageError(f"{ref!r} is no branch, tag or commit.")
    return ref
