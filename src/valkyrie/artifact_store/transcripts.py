"""What agents told of their attempts in few words: one file of their run, where a file each would cost more
than the trials themselves."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

from valkyrie.domain import Json

LONGEST = 64 << 10
"""Bytes; a longer story has a file of its own."""
Which = tuple[str, int, int]
"""A task's id, which trial of it, which attempt at that."""
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_decoder = json.JSONDecoder()


class Transcripts:
    """Lines of `[[task, k, attempt], story]`, written by executors and read by anyone meanwhile.

    Every line begins with an end of line of its own: one that a crash cut short spoils no other.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[Which, tuple[int, int]] = {}
        """Where stories begin, and how long they are."""
        self._seen = 0

    def keep(self, which: Which, story: bytes) -> None:
        """Add a story (JSON in one line), as safe from a crash of this process as any file it writes."""
        line = b"\n[%b,%b]\n" % (json.dumps(which).encode(), story)
        handle = self._opened()
        try:
            if os.write(handle, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        finally:
            os.close(handle)

    def find(self, which: Which) -> bytes | None:
        """The story of one attempt."""
        if which not in self._places:
            self._look_on()
        if (place := self._places.get(which)) is None:
            return None
        with self._path.open("rb") as file:
            file.seek(place[0])
            return file.read(place[1])

    def read(self, which: Which) -> Json | None:
        """The same as data."""
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
