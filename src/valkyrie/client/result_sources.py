"""What of a folder is results: found by name, and packed for a tracker with the files they speak of."""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmark_runner.archive import ArchiveLimits, file_entry
from valkyrie.errors import BundleError, UnknownError, UserError

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
        """Return what the file is called where it is looked for."""
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
    """Every path the records name; a line that is no record is the reader's to refuse."""
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
