"""Copy log files to where they are kept while they are written, and read kept transcripts."""

from __future__ import annotations

import codecs
import contextlib
import errno
import hashlib
import json
import os
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from sandboxes.retry import Backoff
from valkyrie.artifact_store.disk import Folder, disk_errors
from valkyrie.artifact_store.protocol import LogName, check_key, stream_name
from valkyrie.domain import Json
from valkyrie.errors import InfrastructureError, ValkyrieError

PIECE = 1 << 20
PIECES_A_TURN = 8
"""Of one file, before the others have theirs."""
EVERY_S = 2.0
BACKOFF = Backoff(first_s=0.5, longest_s=30.0)
REFUSED_PAUSE_S = 60.0


@dataclass(slots=True, eq=False)
class _Followed:
    """One file on its way."""

    name: LogName
    file: Path
    offset: int | None = None
    """How much of it is kept; None until asked."""
    unfinished: int = 0
    """Length of the line that had no end when we last looked."""
    ended: bool = False
    not_before: float = 0.0


class ShippedLogs(ABC):
    """The half of a log keeper that all have: a thread that reads on in every followed file.

    Pieces are whole lines where lines are not too long, and whole characters always. An outage stops the
    shipping of all logs until it is over; what is refused for one log concerns that one.
    """

    def __init__(self, every: float = EVERY_S) -> None:
        self.problem: str | None = None
        """Why logs wait, while they do."""
        self._every = every
        self._lock = threading.Lock()
        self._followed: dict[LogName, _Followed] = {}
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._until: float | None = None
        """When to give up, once it is closed."""
        self._failures = 0

    @abstractmethod
    def _begin(self, name: LogName) -> int:
        """Make the log's place; how many of its bytes are there already."""

    @abstractmethod
    def _ship(self, name: LogName, data: bytes) -> int:
        """Keep the beginning of these bytes; how many were taken."""

    @abstractmethod
    def _finish(self, name: LogName) -> None:
        """The log is whole."""

    def follow(self, name: LogName, file: Path) -> None:
        """An attempt begins; its log will be this file."""
        with self._lock:
            if self._until is not None or name in self._followed:
                return
            self._followed[name] = _Followed(name, file)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="logs", daemon=True)
                self._thread.start()

    def ended(self, name: LogName) -> None:
        """The attempt ended: what is left of the file is shipped soon."""
        with self._lock:
            if one := self._followed.get(name):
                one.ended = True
        self._wake.set()

    def close(self, timeout: float = 10.0) -> None:
        """Ship what is left, for at most so long."""
        with self._lock:
            self._until, thread = time.monotonic() + timeout, self._thread
        self._closed.set()
        self._wake.set()
        if thread:
            thread.join(timeout + 0.5)

    def _work(self) -> None:
        pause = 0.0
        while True:
            # In an outage, logs that end are no reason to ask again sooner.
            (self._closed if self._failures and not self._closed.is_set() else self._wake).wait(pause)
            self._wake.clear()
            with self._lock:
                until, waiting = self._until, list(self._followed.values())
            if until is not None and (not waiting or time.monotonic() > until):
                return
            pause = self._turn(waiting, closing=until is not None)

    def _turn(self, waiting: list[_Followed], *, closing: bool) -> float:
        """Give every file its turn; seconds until the next one."""
        behind, problem = False, None
        for one in waiting:
            if one.not_before > time.monotonic() and not closing:
                continue
            try:
                behind |= self._ship_some(one, last=one.ended or closing)
            except InfrastructureError as error:
                self.problem = str(error)
                self._failures += 1
                return BACKOFF.first_s if closing else BACKOFF.delay(self._failures)
            except ValkyrieError as error:
                problem = str(error)
                one.not_before = time.monotonic() + REFUSED_PAUSE_S
                if closing:
                    self._drop(one)
        self._failures, self.problem = 0, problem
        return 0.0 if behind or closing else self._every

    def _ship_some(self, one: _Followed, *, last: bool) -> bool:
        """Ship a few pieces of a file; whether there is more. `last`: nothing more will be written."""
        for _ in range(PIECES_A_TURN):
            data = self._next_piece(one, last)
            if not data:
                if last:
                    if one.offset is not None:
                        self._finish(one.name)
                    self._drop(one)
                return False
            if one.offset is None:
                one.offset = self._begin(one.name)
                continue
            one.offset += self._ship(one.name, data)
        return True

    def _next_piece(self, one: _Followed, last: bool) -> bytes:
        try:
            with one.file.open("rb") as source:
                source.seek(one.offset or 0)
                data = source.read(PIECE)
        except OSError:
            return b""
        if len(data) < PIECE and last:
            return data
        whole = data.rfind(b"\n") + 1
        unfinished, before = len(data) - whole, one.unfinished
        one.unfinished = unfinished
        if whole or not data:
            return data[:whole]
        # A line that has grown too long, or has not grown since we last looked.
        return data[: whole_characters(data)] if len(data) == PIECE or unfinished == before else b""

    def _drop(self, one: _Followed) -> None:
        with self._lock, contextlib.suppress(KeyError):
            del self._followed[one.name]


def whole_characters(data: bytes) -> int:
    """Return how much of this UTF-8 text is there without the character it breaks off in."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if length > back else len(data)
    return len(data)


# Logs in a folder, which several hosts may share.

_LONGEST_NAME = 200


class FileLogs(ShippedLogs):
    """A folder per run, a file per attempt."""

    def __init__(self, folder: Path, *, every: float = EVERY_S) -> None:
        super().__init__(every)
        self.folder = folder.expanduser().absolute()

    def __repr__(self) -> str:
        return f"FileLogs({str(self.folder)!r})"

    @property
    def place(self) -> Json:
        return {"kind": "files", "folder": str(self.folder)}

    def read(self, name: LogName) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with disk_errors(f"read the log of {name.task_id}", "logs"):
            try:
                with Folder.open(self.folder, check_key(name.run_id)) as run:
                    handle = run.open_file(_file_name(name), os.O_RDONLY)
            except (FileNotFoundError, NotADirectoryError):
                return
            with open(handle, "rb") as source:
                while piece := source.read(PIECE):
                    yield decoder.decode(piece)
        if rest := decoder.decode(b"", final=True):
            yield rest

    def url(self, run_id: str) -> str | None:
        return str(self.folder / check_key(run_id))

    def check(self) -> None:
        name = f".check-{uuid.uuid4().hex}"
        with disk_errors(f"write logs to {self.folder}", "logs"), Folder.make(self.folder, "") as folder:
            os.close(folder.open_file(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            folder.unlink(name)

    def _begin(self, name: LogName) -> int:
        with self._opened(name) as handle:
            return os.fstat(handle).st_size

    def _ship(self, name: LogName, data: bytes) -> int:
        with self._opened(name) as handle:
            return os.write(handle, data)

    def _finish(self, name: LogName) -> None:
        """Nothing is held open."""

    @contextmanager
    def _opened(self, name: LogName) -> Iterator[int]:
        with disk_errors(f"write the log of {name.task_id}", "logs"):
            with Folder.make(self.folder, check_key(name.run_id)) as run:
                handle = run.open_file(_file_name(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                yield handle
            finally:
                os.close(handle)


def _file_name(name: LogName) -> str:
    stream = stream_name(name)
    encoded = quote(stream, safe=" +,=@()[]")
    if len(encoded) > _LONGEST_NAME:
        encoded = f"{encoded[:140]}-{hashlib.sha256(stream.encode()).hexdigest()[:24]}"
    return f"{encoded}.log"


# What agents told of their attempts in few words: one file of their run, where a file each would cost more
# than the trials themselves.

LONGEST = 64 << 10
"""Bytes; a longer transcript has a file of its own."""
Which = tuple[str, int, int]
"""A task's id, which trial of it, which attempt at that."""
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_decoder = json.JSONDecoder()


class Transcripts:
    """Lines of `[[task, k, attempt], transcript]`, written by executors and read by anyone meanwhile.

    Every line begins with an end of line of its own: one that a crash cut short spoils no other.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[Which, tuple[int, int]] = {}
        """Where transcripts begin, and how long they are."""
        self._seen = 0

    def keep(self, which: Which, transcript: bytes) -> None:
        """Add a transcript (JSON in one line), as safe from a crash of this process as any file it writes."""
        line = b"\n[%b,%b]\n" % (json.dumps(which).encode(), transcript)
        handle = self._opened()
        try:
            if os.write(handle, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        finally:
            os.close(handle)

    def find(self, which: Which) -> bytes | None:
        if which not in self._places:
            self._look_on()
        if (place := self._places.get(which)) is None:
            return None
        with self._path.open("rb") as file:
            file.seek(place[0])
            return file.read(place[1])

    def read(self, which: Which) -> Json | None:
        found = self.find(which)
        try:
            return None if found is None else json.loads(found)
        except ValueError:
            return None  # cut short by a crash; its attempt never ended

    def _opened(self) -> int:
        try:
            return os.open(self._path, _APPEND, 0o666)
        except FileNotFoundError:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self._path, _APPEND, 0o666)

    def _look_on(self) -> None:
        """Take in what was added since; the last line may still be under way."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._seen)
                for line in file:
                    if not line.endswith(b"\n"):
                        return
                    self._take_in(line)
                    self._seen += len(line)
        except FileNotFoundError:
            return

    def _take_in(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        if not text.endswith("]\n"):
            return
        try:
            (task_id, k, attempt), end = _decoder.raw_decode(text, 1)
        except ValueError:
            return
        before = len(text[: end + 1].encode())
        self._places[task_id, k, attempt] = self._seen + before, len(line) - before - len("]\n")
