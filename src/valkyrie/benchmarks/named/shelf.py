"""The benchmarks that were added: `<data>/benchmarks/<name>/source.json`, and the folder of tasks it names.

The file is what makes a benchmark exist. It is replaced in one step when the folder is whole, so a killed
`benchmark add` leaves the one before, or none.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmark_runner.archive import disk_error, new_file
from valkyrie.benchmarks.named.catalog import find, folded
from valkyrie.errors import UnknownError, UsageError, UserError
from valkyrie.settings import data_folder
from valkyrie.suggest import did_you_mean

_FILE = "source.json"


@dataclass(frozen=True, slots=True)
class Added:
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
    """Where added benchmarks are; a server's are in its own data folder."""
    return data_folder() / "benchmarks"


def added() -> list[Added]:
    """All of them, by name. One that cannot be read is left out: it can be added again."""
    folders = sorted(root().iterdir()) if root().is_dir() else []
    return [found for folder in folders if (found := read(folder.name))]


def read(name: str) -> Added | None:
    """The one of exactly this name."""
    try:
        found = Added(**json.loads((root() / name / _FILE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return found if found.name == name and found.folder.is_dir() else None


def find_added(text: str) -> Added | None:
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


def put(new: Added, tasks: Path) -> None:
    """Make `tasks` (a folder below `root()`) the benchmark's. Only under the lock."""
    home = root() / new.name
    try:
        home.mkdir(exist_ok=True)
        if not new.folder.is_dir():
            tasks.rename(new.folder)
        with new_file(home / _FILE, f"{home / _FILE} cannot be written") as file:
            file.write(json.dumps(asdict(new), indent=1).encode() + b"\n")
    except OSError as error:
        raise disk_error(f"{home} cannot be written", error) from None
    for folder in home.iterdir():
        if folder.is_dir() and folder != new.folder:
            shutil.rmtree(folder, ignore_errors=True)


def remove(text: str) -> Added:
    """Forget a benchmark that was added."""
    from valkyrie.benchmarks.catalogue import SHIPPED

    found = find_added(text)
    if found is None:
        if text in SHIPPED:
            raise UsageError(f"{text} comes with the program and cannot be removed.")
        names = [one.name for one in added()]
        known = f"; added are {', '.join(names)}" if names else "; none was"
        raise UnknownError(f"no benchmark {text!r} was added{known}.{did_you_mean(text, names)}")
    with locked() as folder:
        (folder / found.name / _FILE).unlink(missing_ok=True)
        shutil.rmtree(folder / found.name, ignore_errors=True)
    return found
