"""What a run kept: in this machine's data folder, or where its artifacts and logs were put."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from valkyrie.artifact_store.logs import Transcripts, Which
from valkyrie.artifact_store.protocol import ArtifactStore, LogName, attempt_prefix
from valkyrie.domain import Json
from valkyrie.errors import UnknownError
from valkyrie.store.layout import RunFolder, encode_task_id
from valkyrie.tracker.dispatch import pause

if TYPE_CHECKING:
    from valkyrie.tenants import Organisation

FOLLOW_EVERY_S = 0.2
LOG = "attempt.log"
STORY = "agent/transcript.json"
RECORD = "work.json"
"""What was packed of the agent's work: of use to who grades it again (`trial.kept_work`), not to people."""
PIECE = 1 << 16


class Kept:
    """One run's logs and files. Without an organisation only this machine's folder is looked at."""

    def __init__(
        self, folder: RunFolder, organisation: Organisation | None = None, place: Json | None = None
    ) -> None:
        self._folder = folder
        self._organisation = organisation
        self._place = place or {}
        self._run_id = folder.root.name
        self._stories = Transcripts(folder.stories)

    @cached_property
    def _artifacts(self) -> ArtifactStore | None:
        place = self._place.get("artifacts")
        return self._organisation.artifacts(place) if self._organisation and place else None

    @property
    def is_elsewhere(self) -> bool:
        """Return whether logs or files were put away anywhere but in this machine's data folder."""
        return bool(self._place)

    def log_path(self, task_id: str, k: int, number: int) -> str | None:
        """Return where the log is on this machine, if it is."""
        return _if_there(self._folder.log(task_id, k, number))

    def folder_path(self, task_id: str, k: int, number: int) -> str | None:
        """Return where the files are on this machine, if they are."""
        return _if_there(self._folder.attempt(task_id, k, number))

    def files(self, task_id: str, k: int, number: int) -> Iterator[tuple[str, Iterator[bytes], int]]:
        """Yield every file of an attempt, its log as `attempt.log`: relative name, bytes, their number."""
        folder, log = self._folder.attempt(task_id, k, number), self._folder.log(task_id, k, number)
        if folder.exists() or log.exists() or not self._artifacts:
            yield from self._here(folder, log)
            yield from self._story((task_id, k, number), folder)
            return
        prefix = attempt_prefix(self._run_id, encode_task_id(task_id), k, number)
        for found in self._artifacts.list(prefix):
            if found.key == prefix + RECORD:
                continue
            yield found.key.removeprefix(prefix), self._artifacts.read(found.key), found.size

    def _here(self, folder: Path, log: Path) -> Iterator[tuple[str, Iterator[bytes], int]]:
        if log.exists():
            yield LOG, _read(log), log.stat().st_size
        for path in sorted(folder.rglob("*")) if folder.exists() else ():
            if path.is_file() and not path.is_symlink() and path != folder / RECORD:
                yield path.relative_to(folder).as_posix(), _read(path), path.stat().st_size

    def _story(self, which: Which, folder: Path) -> Iterator[tuple[str, Iterator[bytes], int]]:
        """Yield the agent's transcript as a file of its own; it is kept with those of other attempts."""
        story = self._stories.find(which)
        if story is not None and not (folder / STORY).exists():
            yield STORY, iter((story,)), len(story)

    def log(
        self, task_id: str, k: int, number: int, started_at: float, ended: Callable[[], bool]
    ) -> Iterator[str]:
        """A log piece by piece, until its attempt has ended."""
        path = self._folder.log(task_id, k, number)
        if path.exists() or not self._place:
            return read_log(path, ended)
        return self._log_elsewhere(LogName(self._run_id, task_id, k, number, started_at), path, ended)

    def _log_elsewhere(self, name: LogName, path: Path, ended: Callable[[], bool]) -> Iterator[str]:
        """An executor of another machine has the file; what it put away is read."""
        key = attempt_prefix(name.run_id, encode_task_id(name.task_id), name.k, name.attempt) + LOG
        place = self._place.get("logs")
        keeper = self._organisation.logs(place) if self._organisation and place else None
        shown = 0
        while True:
            last = ended()
            if path.exists():
                yield from read_log(path, ended)
                return
            try:
                if last and self._artifacts:
                    text = b"".join(self._artifacts.read(key)).decode("utf-8", "replace")
                    yield text[shown:]
                    return
            except UnknownError:
                pass  # it printed nothing, or its executor could not put it away
            if keeper:
                text = "".join(keeper.read(name))
                if len(text) > shown:
                    yield text[shown:]
                    shown = len(text)
            if last:
                return
            pause(5 * FOLLOW_EVERY_S)  # it grows on another machine


def read_log(path: Path, ended: Callable[[], bool]) -> Iterator[str]:
    """A log file piece by piece, until its attempt has ended."""
    position = 0
    while True:
        last = ended()  # asked before reading, so that nothing written in between is missed
        if path.exists():
            with path.open(encoding="utf-8", errors="replace") as file:
                file.seek(position)
                while piece := file.read(65536):
                    yield piece
                position = file.tell()
        if last:
            return
        pause(FOLLOW_EVERY_S)  # the file grows in another process


def _if_there(path: Path) -> str | None:
    return str(path) if path.exists() else None


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece
