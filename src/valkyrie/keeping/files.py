"""Logs in a folder, which several hosts may share."""

from __future__ import annotations

import codecs
import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from valkyrie.keeping.folders import Folder, disk_errors
from valkyrie.keeping.keys import check_key, stream_name
from valkyrie.keeping.protocol import LogName
from valkyrie.keeping.shipping import EVERY_S, PIECE, ShippedLogs
from valkyrie.nouns import Json

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
        """What was shipped of a log, piece by piece."""
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
        """The run's folder."""
        return str(self.folder / check_key(run_id))

    def check(self) -> None:
        """Raise unless files can be made here."""
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
