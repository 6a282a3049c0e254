"""One executor per data folder: who comes second leaves, or waits until it may take the first one's place."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from typing import IO

from valkyrie import __version__
from valkyrie.executor.client import ExecutorClient
from valkyrie.store.layout import DataFolder

PARENT_PIPE = "VALKYRIE_PARENT_PIPE"
"""File descriptor of a pipe whose other end the server holds that started us."""
_LOOK_EVERY_S = 0.05
_STAND_BY_S = 0.5
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def only_one(data: DataFolder, *, server: bool = False) -> Iterator[bool]:
    """Hold the data folder's executor lock. False: one of this version is at work, leave it to that one.

    One of another version, or one that is leaving, is waited for; an executor of a `server` also asks such
    a one to leave, and one that is none of a server, which could not open what is sealed. The child of a
    server stands by until whoever is at work has left: its own server counts on it.
    """
    with data.executor_lock.open("a") as file:
        yield _stand_by(file, data) if server and PARENT_PIPE in os.environ else _lock(file, data, server)


def _lock(file: IO[str], data: DataFolder, server: bool) -> bool:
    while not _locked(file):
        if _is_good(ExecutorClient(data), server):
            return False
        time.sleep(_LOOK_EVERY_S)  # a lock cannot be awaited with a look at who holds it
    return True


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_good(holder: ExecutorClient, server: bool) -> bool:
    """Whether the holder of the lock can do all we could; if not, a server's tells it to leave."""
    found = holder.status()
    if not found or found["draining"]:
        return False  # it is starting or leaving
    if found["version"] == __version__ and found.get("server", False) >= server:
        return True
    if server:
        holder.ask("drain")
    return False


def _stand_by(file: IO[str], data: DataFolder) -> bool:
    """Wait for the executor of a killed server; False when our own server is gone too, or tells us to leave.

    What our server tells us meanwhile is for the one that works: the first signal lets it finish its trials,
    the second makes it give them back.
    """
    holder, server_gone, told = ExecutorClient(data), int(os.environ[PARENT_PIPE]), list[int]()
    before = {number: signal.signal(number, lambda got, _: told.append(got)) for number in _SIGNALS}
    passed_on, said = 0, False
    try:
        while not _locked(file):
            if _is_good(holder, server=True) and not said:
                said = True
                sys.stderr.write(f"An executor is at work on {data.root} already; this one stands by.\n")
            if passed_on < len(told):
                passed_on = len(told)
                holder.ask("drain" if passed_on == 1 else "end")
            if select.select([server_gone], [], [], _STAND_BY_S if said else _LOOK_EVERY_S)[0]:
                return False
        return not told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
