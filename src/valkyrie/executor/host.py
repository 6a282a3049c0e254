"""An executor's life: take the lock, recover, serve, work, leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from valkyrie import __version__, config
from valkyrie.errors import StoreError
from valkyrie.executor.address import home_mark, socket_path
from valkyrie.executor.client import ExecutorClient
from valkyrie.executor.control import ControlServer, Verb
from valkyrie.executor.worlds import RunWorlds
from valkyrie.nouns import Json
from valkyrie.schedule.host import HostRoom
from valkyrie.schedule.scheduler import Scheduler
from valkyrie.store import Store, leases, runs
from valkyrie.store.layout import DataFolder
from valkyrie.store.schema import REVISION
from valkyrie.store.writer import Writer

HEARTBEAT_S = 5.0
LEASE_S = 30.0
IDLE_EXIT_S = 10.0
KEEP_SANDBOXES_S = 8 * 3600.0
ORPHAN_AFTER_S = 3600.0
"""A run's folder is made just before its row; one without a row after so long belongs to a killed command."""


def idle_exit_s() -> float:
    """How long an executor without work stays: `VALKYRIE_EXECUTOR_IDLE_S`, if that is a number."""
    try:
        return max(0.0, float(os.environ["VALKYRIE_EXECUTOR_IDLE_S"]))
    except (KeyError, ValueError):
        return IDLE_EXIT_S


@contextlib.contextmanager
def only_one(data: DataFolder) -> Iterator[bool]:
    """Hold the data folder's executor lock. False: one of this version is at work, leave it to that one.

    One of another version, or one that is leaving, is waited for.
    """
    with data.executor_lock.open("a") as file:
        yield _lock(file, data)


def _lock(file: IO[str], data: DataFolder) -> bool:
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            found = ExecutorClient(data).status()
            if found and found["version"] == __version__ and not found["draining"]:
                return False
            time.sleep(
                0.05
            )  # the holder is starting or leaving; a lock cannot be awaited with a look at both
            continue
        return True


class ExecutorHost:
    """One executor on one data folder."""

    def __init__(self, data: DataFolder) -> None:
        self.id = str(uuid.uuid4())
        self._data = data
        self._started_at = time.time()
        self._idle_exit_s = idle_exit_s()
        self._room = HostRoom.measure(float(config.effective("cpu_overcommit").value or 1.0))

    async def serve(self, tell_ready: Callable[[], bool]) -> None:
        """Work until idle, drained or told to end.

        `tell_ready` is called when others may speak to us; False: whoever started us has gone away, so
        there is no reason to wait for work that is not there.
        """
        store = Store(self._data.database)
        self._writer = store.writer()
        self._worlds = RunWorlds(self._data, self._writer, home_mark(self._data))
        self._scheduler = Scheduler(self.id, self._writer, self._worlds, self._room)
        control = ControlServer(socket_path(self._data), self._verbs())
        try:
            await self._begin()
            await control.start()
            if not tell_ready():
                self._idle_exit_s = 0.0
            self._listen_to_signals()
            async with asyncio.TaskGroup() as group:
                beat = group.create_task(self._heartbeat(control))
                await self._work(control)
                beat.cancel()
        finally:
            await control.close()
            await self._worlds.close()
            await _end(self._writer, self.id)
            store.close()

    async def _begin(self) -> None:
        now = time.time()
        values: Json = {
            "id": self.id,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": __version__,
            "started_at": now,
            "heartbeat_at": now,
            "expires_at": now + LEASE_S,
        }
        await self._writer.call(lambda connection: runs.register_executor(connection, values))
        await self._worlds.sweep()
        await self._writer.call(lambda connection: leases.recover(connection, self.id, now, alone=True))
        known = await self._writer.call(runs.known_ids)
        await asyncio.to_thread(self._data.sweep_runs, known, now - ORPHAN_AFTER_S)
        await asyncio.to_thread(self._data.sweep_cache)

    async def _work(self, control: ControlServer) -> None:
        """Work until idle; a run that arrives while the door is being closed is still taken."""
        while True:
            await self._scheduler.run(self._idle_exit_s)
            if self._scheduler.draining:
                return
            if self._worlds.kept and time.time() - self._started_at < KEEP_SANDBOXES_S:
                self._idle_exit_s = IDLE_EXIT_S  # a pause between two looks, also if nobody waits for us
                continue
            await control.close()
            if not await self._writer.call(runs.any_ready):
                return
            await control.start()

    async def _heartbeat(self, control: ControlServer) -> None:
        lock = _identity(self._data.executor_lock)
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            if _identity(self._data.executor_lock) != lock:
                raise StoreError(f"{self._data.root} was removed while its executor was at work.")
            await control.keep_up()
            await self._writer.call(
                lambda connection: runs.heartbeat(connection, self.id, time.time(), LEASE_S)
            )

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()

        def leave() -> None:
            # The first asks for a drain, the second means now.
            if self._scheduler.draining:
                self._abandoning = loop.create_task(self._scheduler.abandon())
            else:
                self._scheduler.drain()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, leave)

    def _verbs(self) -> dict[str, Verb]:
        return {
            "status": self._status,
            "wake": self._wake,
            "secrets": self._take_secrets,
            "drain": self._drain,
            "end": self._end_now,
            "shell": self._shell,
            "forget": self._forget,
        }

    async def _status(self, _request: Json) -> Json:
        return {
            "id": self.id,
            "pid": os.getpid(),
            "version": __version__,
            "schema": REVISION,
            "started_at": self._started_at,
            "active": self._scheduler.active,
            "kept_sandboxes": self._worlds.kept,
            "waiting": sorted(self._worlds.waiting()),
            "draining": self._scheduler.draining,
            "room": {"cpus": self._room.cpus, "memory_mb": self._room.memory_mb},
        }

    async def _wake(self, request: Json) -> Json:
        self._scheduler.wake()
        return await self._status(request)

    async def _take_secrets(self, request: Json) -> Json:
        self._worlds.give_secrets(request["run_id"], request["values"])
        return await self._wake(request)

    async def _drain(self, request: Json) -> Json:
        self._scheduler.drain()
        return await self._status(request)

    async def _end_now(self, request: Json) -> Json:
        await self._scheduler.abandon()
        return await self._status(request)

    async def _shell(self, request: Json) -> Json:
        argv = await self._worlds.shell(request["run_id"], request["task_id"], request["k"])
        return {"argv": argv}

    async def _forget(self, request: Json) -> Json:
        await self._worlds.forget(request["run_id"])
        return {}


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


async def _end(writer: Writer, executor_id: str) -> None:
    if not writer.broken:
        with contextlib.suppress(StoreError):  # it broke just now; whoever comes next sees a dead executor
            await writer.call(lambda connection: runs.end_executor(connection, executor_id, time.time()))
    await writer.close()
