"""Outputs of trials written to a folder, and results of a folder packed for a tracker."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from benchmark_runner.archive import ArchiveLimits, file_entry
from valkyrie.errors import BundleError, InfrastructureError, UnknownError, UserError

MOST_BYTES = 5 * 1024**3
MOST_ENTRIES = 100_000
_MEMBER_CHUNK = 1 << 20
# Everything `tarfile` is known to raise on hostile bytes.
_FAULTS = (tarfile.TarError, zlib.error, EOFError, ValueError, OverflowError, UnicodeError)


class NotUnpackedError(Exception):
    """The archive is damaged, too large, or reaches outside its folder."""


def unpack_tar(archive: Path, root: Path) -> None:
    """Unpack into `root`, an empty folder of ours.

    Links are made after everything else, so that no file is ever written through one. Those that lead out of
    the folder are left out: they meant something in the sandbox only.
    """
    try:
        with tarfile.open(archive, "r:*") as tar:
            links = [member for member in _members(tar) if not _extract(tar, member, root)]
            for member in sorted(links, key=lambda member: member.issym()):
                _link(member, root)
    except _FAULTS as error:
        raise NotUnpackedError(f"it is damaged ({type(error).__name__}).") from error
    except NotUnpackedError:
        raise
    except OSError as error:
        if isinstance(error, FileExistsError | NotADirectoryError | IsADirectoryError):
            raise NotUnpackedError("two entries of it have the same name.") from error
        raise InfrastructureError(f"{archive} cannot be unpacked: {error.strerror or error}.") from error


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Entries one by one, while there are not too many, nor too many bytes in them."""
    total = 0
    for count, member in enumerate(tar, 1):
        total += member.size
        if count > MOST_ENTRIES:
            raise NotUnpackedError(f"it holds more than {MOST_ENTRIES:,} entries.")
        if total > MOST_BYTES:
            raise NotUnpackedError(f"it unpacks to more than {MOST_BYTES:,} bytes.")
        yield member


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> bool:
    """Write a file or folder; False for a link, which has to wait."""
    if member.issym() or member.islnk():
        return False
    path = _place(member.name, root)
    if member.isdir():
        path.mkdir(exist_ok=True)
        return True
    source = tar.extractfile(member) if member.isreg() else None
    if source is None:
        raise NotUnpackedError(f"{member.name!r} in it is a device or another special file.")
    mode = 0o755 if member.mode & stat.S_IXUSR else 0o644
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with open(handle, "wb") as sink:
        shutil.copyfileobj(source, sink, _MEMBER_CHUNK)
    os.utime(path, (member.mtime, member.mtime))
    return True


def _link(member: tarfile.TarInfo, root: Path) -> None:
    path = _place(member.name, root)
    if member.issym():
        if _leads_inside(member):
            path.symlink_to(member.linkname)
        return
    target = _place(member.linkname, root)
    if not target.is_file() or target.is_symlink():
        raise NotUnpackedError(f"{member.name!r} in it is a link to nothing.")
    os.link(target, path)


def _leads_inside(member: tarfile.TarInfo) -> bool:
    """Up only at its beginning, and not above the top: later `..` could follow another link out."""
    parts = [part for part in member.linkname.split("/") if part != "."]
    up = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    deep = len(Path(os.path.normpath(member.name)).parts) - 1
    plain = bool(member.linkname) and not member.linkname.startswith("/") and "\0" not in member.linkname
    return plain and up <= deep and ".." not in parts[up:]


def _place(name: str, root: Path) -> Path:
    """Return where an entry goes; the folders above it are made, and are no links."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name or len(name) > 4000:
        raise NotUnpackedError(f"{name[:200]!r} in it is no plain relative path.")
    above = root
    for part in parts[:-1]:
        above /= part
        if above.is_symlink():
            raise NotUnpackedError(f"{name[:200]!r} in it leads through a link.")
        above.mkdir(exist_ok=True)
    return above / parts[-1] if parts else root


# What trials left, written to a folder: names are checked, and the agent's own archive comes unpacked.
#
# Agents are hostile, and the names and archives here are theirs: nothing is written outside the folder,
# through a link, or without end.

ARCHIVE = "agent_output.tar.gz"
UNPACKED = "agent_output"
WHY_NOT = "agent_output.not-unpacked.txt"
_CHUNK = 1 << 18


class OutputsWriter:
    """Takes the files of trials one after another; each trial has a folder below `destination`."""

    def __init__(self, destination: Path) -> None:
        self._destination = destination
        self._folders: dict[Path, None] = {}

    def write(self, folder: Path, name: str, pieces: Iterable[bytes]) -> None:
        """One file of the trial whose folder (relative) this is; its name may have folders in it."""
        target = self._place(folder, name)
        self._folders[self._destination / folder] = None
        if name != ARCHIVE:
            _write(target, pieces)
            return
        packed = target.with_name(f".{ARCHIVE}.part")
        try:
            _write(packed, pieces)
            self._unpack(packed, target)
        finally:
            packed.unlink(missing_ok=True)

    def close(self) -> Sequence[Path]:
        """Return the folders that were written, in the order of the trials."""
        return list(self._folders)

    def _unpack(self, packed: Path, target: Path) -> None:
        """One bad archive keeps no other trial's outputs back: it is left packed, with the reason."""
        reason = target.with_name(WHY_NOT)
        reason.unlink(missing_ok=True)
        target.unlink(missing_ok=True)
        folder = target.with_name(UNPACKED)
        _make_room(folder)
        fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{UNPACKED}-"))
        try:
            unpack_tar(packed, fresh)
        except NotUnpackedError as error:
            shutil.rmtree(fresh, ignore_errors=True)
            packed.rename(target)
            reason.write_text(f"{ARCHIVE} was left as it is: {error}\n", encoding="utf-8")
            return
        fresh.chmod(0o755)
        fresh.rename(folder)

    def _place(self, folder: Path, name: str) -> Path:
        """Return where a file goes; the folders above it are made, and are folders, not links to some."""
        parts = [*folder.parts, *PurePosixPath(name).parts]
        plain = all(part not in ("..", ".", "/") and "\0" not in part for part in parts)
        if not plain or folder.is_absolute() or not folder.parts or len(parts) == len(folder.parts):
            raise UserError(f"{name!r} is no name a trial's file may have; nothing was written for it.")
        above = self._destination
        above.mkdir(parents=True, exist_ok=True)
        for part in parts[:-1]:
            above /= part
            if above.is_symlink():
                raise UserError(f"{above} is a link; outputs are not written through links. Remove it.")
            above.mkdir(exist_ok=True)
        return above / parts[-1]


def write_outputs(archive: Path, destination: Path) -> Sequence[Path]:
    """Write a tracker's tar of trials' files, `<task>/[<k>/]…`, below a folder; each trial's folder."""
    writer = OutputsWriter(destination)
    try:
        with tarfile.open(archive, "r:") as tar:
            for member in tar:
                source = tar.extractfile(member) if member.isreg() else None
                if source is not None:
                    writer.write(*_split(member.name), _pieces(source))
    except tarfile.TarError as error:
        raise InfrastructureError(f"What the tracker sent is damaged ({error}); ask again.") from error
    return writer.close()


def _split(name: str) -> tuple[Path, str]:
    """A trial's folder, and the rest: repetitions of a task have a folder with their number."""
    first, _, rest = name.partition("/")
    number, _, inner = rest.partition("/")
    return (Path(first, number), inner) if inner and number.isdigit() else (Path(first), rest)


def _pieces(source: IO[bytes]) -> Iterator[bytes]:
    while piece := source.read(_CHUNK):
        yield piece


def _make_room(folder: Path) -> None:
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)
    else:
        folder.unlink(missing_ok=True)


def _write(target: Path, pieces: Iterable[bytes]) -> None:
    try:
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
        with open(handle, "wb") as file:
            for piece in pieces:
                file.write(piece)
    except OSError as error:
        raise InfrastructureError(f"{target} cannot be written: {error.strerror or error}.") from error


# What of a folder is results: found by name, and packed for a tracker with the files they speak of.

DEEPEST = 4
"""So many folders below the named one results are looked for, such as <timestamp>/<variant>/results.jsonl."""
RESULTS = "results.jsonl"
CONFIG = "run_config.json"
TOP = "ingest"
"""The archive's one top folder."""
_NAMED = ("sessionLog", "artifactDir", "patch", "log")
"""Where a record speaks of files."""
_OF_A_TASK = ("generation.json", "eval.json")
_LOGS = "agent_logs"


@dataclass(frozen=True, slots=True)
class ResultSource:
    """One file that says what came about."""

    kind: Literal["eval", "runner"]
    file: Path
    """results.jsonl of evals, or run_config.json of a benchmark runner's run."""

    @property
    def folder(self) -> Path:
        return self.file.parent

    @property
    def name(self) -> str:
        return CONFIG if self.kind == "runner" else RESULTS


def find_sources(folder: Path) -> list[ResultSource]:
    """Everything to ingest in or below a folder, or the file itself."""
    if folder.is_file():
        return [ResultSource("runner" if folder.name == CONFIG else "eval", folder)]
    if not folder.is_dir():
        raise UnknownError(f"No folder {folder}; name one with a {RESULTS} or {CONFIG} in or below it.")
    found = list(_search(folder, folder.resolve(), 0, of_an_eval=False))
    if not found:
        raise UserError(
            f"{folder} has no {RESULTS} and no {CONFIG}, nor has any folder below it: nothing to ingest.",
            cause="no_results",
        )
    return found


def _search(folder: Path, top: Path, depth: int, *, of_an_eval: bool) -> Iterator[ResultSource]:
    """Yield the results below a folder. What agents left behind is not searched: a runner's folders not at
    all, those of evals only for more records. No link leads out of the folder that was named."""
    results, config = folder / RESULTS, folder / CONFIG
    is_eval = results.is_file()
    if not is_eval and not of_an_eval and os.path.lexists(config):
        yield ResultSource("runner", config)
        return
    if is_eval:
        if not results.resolve().is_relative_to(top):
            raise UserError(
                f"{results} is a link out of {top.name}. Whoever made that folder chose what it leads to; "
                "name the file itself to have it read.",
                cause="link",
            )
        yield ResultSource("eval", results)
    if depth < DEEPEST:
        for inner in sorted(folder.iterdir()):
            readable = inner.is_dir() and os.access(inner, os.R_OK | os.X_OK)
            if readable and inner.resolve().is_relative_to(top):
                yield from _search(inner, top, depth + 1, of_an_eval=of_an_eval or is_eval)


def pack_sources(sources: Sequence[ResultSource], target: Path) -> dict[str, str]:
    """Write the archive of these; by the name each file of results has in it, its name here."""
    limits = ArchiveLimits.from_environment()
    names: dict[str, str] = {}
    written: set[str] = set()
    size = 0
    with zipfile.ZipFile(target, "w") as archive:
        for source in sources:
            prefix = _free(_prefix(source.folder), names, source.name)
            names[f"{prefix}/{source.name}"] = str(source.file)
            for name, file in _files(source):
                entry = f"{TOP}/{prefix}/{name}"
                if entry in written:
                    continue
                written.add(entry)
                size += file.stat().st_size
                if len(written) > limits.entries:
                    raise BundleError(f"{source.folder} holds too many files; {limits.entries_hint}")
                if size > limits.expanded_bytes:
                    raise BundleError(f"{source.folder} holds too much; {limits.expanded_hint}")
                _add(archive, entry, file)
    return names


def _add(archive: zipfile.ZipFile, name: str, file: Path) -> None:
    """A file, with its time: trials that do not say when they were are as old as what was written."""
    entry = file_entry(name, executable=False)
    moment = time.gmtime(min(max(file.stat().st_mtime, 315532800.0), 4354819198.0))
    entry.date_time = moment[:6]
    with file.open("rb") as source, archive.open(entry, "w") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)


def _prefix(folder: Path) -> str:
    """Return the folder as it was named, where that can be a path in an archive; else its last parts."""
    parts = [part for part in folder.parts if part != "."]
    if not parts or ".." in parts or folder.is_absolute():
        parts = list(folder.absolute().resolve().parts[1:][-2:])
    parts = [part for part in parts if part.isprintable() and "\\" not in part]
    return "/".join(parts[-8:]) or "results"


def _free(prefix: str, taken: dict[str, str], file: str) -> str:
    count, free = 1, prefix
    while f"{free}/{file}" in taken:
        count += 1
        free = f"{prefix}-{count}"
    return free


def _files(source: ResultSource) -> Iterator[tuple[str, Path]]:
    """Yield the file itself, and what it speaks of below its folder; never anything else that lies there."""
    if source.kind == "runner":
        yield from _of_runner(source.folder)
        return
    yield RESULTS, source.file
    home = source.folder.absolute().resolve()
    for named in sorted(_named(source.file)):
        found = (home / named).resolve()
        if found == home or not found.is_relative_to(home):
            continue
        if found.is_file():
            yield found.relative_to(home).as_posix(), found
        elif found.is_dir():
            yield from ((file.relative_to(home).as_posix(), file) for file in _plain_below(found))


def _named(file: Path) -> set[str]:
    """Return every path the records name; a line that is no record is the reader's to refuse."""
    found: set[str] = set()
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not any(f'"{key}"' in line for key in _NAMED):
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                found.update(record[key] for key in _NAMED if isinstance(record.get(key), str))
    return {name for name in found if "\0" not in name}


def _of_runner(folder: Path) -> Iterator[tuple[str, Path]]:
    for name in (CONFIG, "final_score.json"):
        if (file := folder / name).is_file() and not file.is_symlink():
            yield name, file
    for task in sorted(folder.iterdir()):
        if task.is_symlink() or not task.is_dir():
            continue
        for name in _OF_A_TASK:
            if (file := task / name).is_file() and not file.is_symlink():
                yield f"{task.name}/{name}", file
        for file in _plain_below(task / _LOGS):
            yield file.relative_to(folder).as_posix(), file


def _plain_below(folder: Path) -> Iterator[Path]:
    """Plain files below a folder that is no link; links and the like are left."""
    if folder.is_symlink():
        return
    for parent, _folders, names in os.walk(folder):
        for name in sorted(names):
            file = Path(parent, name)
            if stat.S_ISREG(file.lstat().st_mode) and name.isprintable() and "\\" not in name:
                yield file
