"""The public benchmarks that `catalog.toml` describes, and those that were added on this machine."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from benchmark_runner.archive import disk_error, new_file
from valkyrie.config.values import data_folder
from valkyrie.errors import UnknownError, UsageError, UserError
from valkyrie.text import did_you_mean

if TYPE_CHECKING:
    from valkyrie.benchmarks.named.conversion import Converter


SHIPPED = ("quickstart",)
"""Benchmarks that come with the program."""
_CATALOG_FILE = Path(__file__).with_name("catalog.toml")


@dataclass(frozen=True, slots=True)
class KnownBad:
    """Tasks whose grade says little about an agent."""

    ids: Sequence[str]
    """The data set's own ids, or globs."""
    why: str


@dataclass(frozen=True, slots=True)
class PublicBenchmark:
    """One public benchmark."""

    name: str
    title: str
    what: str
    kind: str
    """`converter`: records become tasks. `tasks`: a repository of task directories."""
    tasks: int
    """How many there are when all of it is brought."""
    metric: str
    published: Sequence[str]
    """Where, in words."""
    bring: str
    """What `--from` takes."""
    licence: str
    image: str
    network: str
    """What it is needed for; `no` when it is not."""
    oracle: bool
    """Whether the data has a gold answer."""
    aliases: Sequence[str] = ()
    converter: str = ""
    """`module.function` of this package, which converts."""
    variant: str = ""
    git: str = ""
    """Address of the repository, for those that are one."""
    commit: str = ""
    """What is fetched of it unless told otherwise."""
    notes: Sequence[str] = ()
    known_bad: Sequence[KnownBad] = ()

    @property
    def fetches(self) -> bool:
        """Whether it can be added without `--from`."""
        return bool(self.git and self.commit)

    def why_bad(self, *ids: str) -> str | None:
        """Return why the task of one of these ids is known to be bad; None when it is not."""
        for bad in self.known_bad:
            for pattern in bad.ids:
                if any(fnmatchcase(one.lower(), pattern.lower()) for one in ids):
                    return bad.why
        return None


@cache
def catalog() -> tuple[PublicBenchmark, ...]:
    """Return every public benchmark that is known, by name."""
    tables = tomllib.loads(_CATALOG_FILE.read_text(encoding="utf-8"))["benchmark"]
    return tuple(sorted(map(_entry, tables), key=lambda entry: entry.name))


def _entry(table: dict[str, Any]) -> PublicBenchmark:
    unknown = set(table) - {field.name for field in fields(PublicBenchmark)}
    assert not unknown, f"catalog.toml: {table['name']} has unknown keys {unknown}"
    known_bad = tuple(KnownBad(tuple(bad["ids"]), bad["why"]) for bad in table.pop("known_bad", ()))
    return PublicBenchmark(**table, known_bad=known_bad)


def find(text: str) -> PublicBenchmark | None:
    """The benchmark people mean by `text`, however they write it."""
    return _by_word().get(folded(text)) if text.strip() else None


def folded(text: str) -> str:
    """Letters and digits only, none of them large."""
    return "".join(char for char in text.casefold() if char.isalnum())


@cache
def _by_word() -> dict[str, PublicBenchmark]:
    found: dict[str, PublicBenchmark] = {}
    for entry in catalog():
        for word in (entry.name, entry.title, *entry.aliases):
            other = found.setdefault(folded(word), entry)
            assert other is entry, f"catalog.toml: {word!r} means both {other.name} and {entry.name}"
    return found


def names() -> list[str]:
    return [entry.name for entry in catalog()]


def suggestion(text: str) -> str:
    """` Did you mean …?`, or nothing."""
    return did_you_mean(text.casefold(), names())


def converter_of(entry: PublicBenchmark) -> Converter:
    """Return the function that converts this benchmark's records."""
    module, _, function = entry.converter.partition(".")
    return cast("Converter", getattr(importlib.import_module(f"{__package__}.{module}"), function))


# The benchmarks that were added: `<data>/benchmarks/<name>/source.json`, and the folder of tasks it names.
#
# The file is what makes a benchmark exist. It is replaced in one step when the folder is whole, so a killed
# `benchmark add` leaves the one before, or none.

_SOURCE_FILE = "source.json"


@dataclass(frozen=True, slots=True)
class AddedBenchmark:
    """A benchmark that was added, and where from."""

    name: str
    description: str
    tasks: int
    origin: str
    """What it was made from: a file's name, or a repository's address and commit."""
    revision: str
    """Commit, or sha256 of the file or folder."""
    asked: str
    """Digest of what was asked for: the same again changes nothing."""
    content: str
    """Digest of the tasks, and name of their folder."""
    added_at: float
    notices: Sequence[str] = ()

    @property
    def folder(self) -> Path:
        return root() / self.name / self.content


def root() -> Path:
    """Return where added benchmarks are; a server's are in its own data folder."""
    return data_folder() / "benchmarks"


def added() -> list[AddedBenchmark]:
    """Return all of them, by name. One that cannot be read is left out: it can be added again."""
    folders = sorted(root().iterdir()) if root().is_dir() else []
    return [found for folder in folders if (found := read(folder.name))]


def read(name: str) -> AddedBenchmark | None:
    """The one of exactly this name."""
    try:
        found = AddedBenchmark(**json.loads((root() / name / _SOURCE_FILE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return found if found.name == name and found.folder.is_dir() else None


def find_added(text: str) -> AddedBenchmark | None:
    """The one people mean: its name, or any other that the catalogue knows for it."""
    if not text or not folded(text):
        return None
    entry = find(text)
    if entry is not None and (found := read(entry.name)):
        return found
    return next((one for one in added() if folded(one.name) == folded(text)), None)


@contextlib.contextmanager
def locked() -> Iterator[Path]:
    """The folder of all, for one writer at a time; what killed ones left in it is cleared away."""
    folder = root()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise disk_error(f"{folder} cannot be written", error) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                "a benchmark is being added or removed already; try again when that is done."
            ) from None
        for left in folder.glob(".new-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield folder


def put(new: AddedBenchmark, tasks: Path) -> None:
    """Make `tasks` (a folder below `root()`) the benchmark's. Only under the lock."""
    home = root() / new.name
    try:
        home.mkdir(exist_ok=True)
        if not new.folder.is_dir():
            tasks.rename(new.folder)
        with new_file(home / _SOURCE_FILE, f"{home / _SOURCE_FILE} cannot be written") as file:
            file.write(json.dumps(asdict(new), indent=1).encode() + b"\n")
    except OSError as error:
        raise disk_error(f"{home} cannot be written", error) from None
    for folder in home.iterdir():
        if folder.is_dir() and folder != new.folder:
            shutil.rmtree(folder, ignore_errors=True)


def remove(text: str) -> AddedBenchmark:
    """Forget a benchmark that was added."""
    found = find_added(text)
    if found is None:
        if text in SHIPPED:
            raise UsageError(f"{text} comes with the program and cannot be removed.")
        names = [one.name for one in added()]
        known = f"; added are {', '.join(names)}" if names else "; none was"
        raise UnknownError(f"no benchmark {text!r} was added{known}.{did_you_mean(text, names)}")
    with locked() as folder:
        (folder / found.name / _SOURCE_FILE).unlink(missing_ok=True)
        shutil.rmtree(folder / found.name, ignore_errors=True)
    return found
