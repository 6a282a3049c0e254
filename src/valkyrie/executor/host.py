"""An executor's life: take the lock, recover, serve its control socket, work, leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxes.local.root_filesystem import SYSTEM_TREES
from valkyrie import __version__
from valkyrie.config import values
from valkyrie.config import values as config
from valkyrie.config.values import config_path, database_url
from valkyrie.domain import Json
from valkyrie.errors import StoreError, UserError, ValkyrieError
from valkyrie.executor.client import PARENT_PIPE, home_mark, only_one, socket_path
from valkyrie.executor.open_runs import OpenRuns, TenantAccess
from valkyrie.notifications.messages import local_allowed
from valkyrie.notifications.outbox import NotificationRunner, Sender
from valkyrie.schedule.scheduler import HostRoom, Scheduler
from valkyrie.secrets.delivery import find_sealer
from valkyrie.store import REVISION, Store, executors, notifications, runs
from valkyrie.store.journal import Finish, Writer, log
from valkyrie.store.layout import DataFolder
from valkyrie.store.leases import Leased

if TYPE_CHECKING:
    from valkyrie.executor.conclusions import RunContent, StopRules
    from valkyrie.store import Connection
    from valkyrie.tenants import Organisation


Verb = Callable[[Json], Awaitable[Json]]
LONGEST_REQUEST = 4 * 1024 * 1024


class ControlServer:
    """Answers the verbs it was given, to processes of the same user only."""

    def __init__(self, path: Path, verbs: Mapping[str, Verb]) -> None:
        self._path = path
        self._verbs = verbs
        self._server: asyncio.Server | None = None
        self._ours = -1

    async def start(self) -> None:
        """Listen; a socket left by a dead executor is replaced (the caller holds the lock)."""
        self._path.unlink(missing_ok=True)
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.bind(str(self._path))
            self._path.chmod(0o600)  # before anyone can connect: nobody listens yet
            self._ours = self._path.stat().st_ino
            self._server = await asyncio.start_unix_server(self._serve, sock=link, limit=LONGEST_REQUEST)
        except BaseException:
            link.close()
            raise

    async def keep_up(self) -> None:
        """Listen anew when the socket's file is gone, as after a cleaning of /tmp."""
        if self._server and not self._path.exists():
            self._server.close()
            await self.start()

    async def close(self) -> None:
        """Listen no more. A socket that is not ours by now belongs to our successor."""
        if self._server:
            self._server.close()
            with contextlib.suppress(FileNotFoundError):
                if self._path.stat().st_ino == self._ours:
                    self._path.unlink()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(30):
                if _peer_uid(writer) not in (os.getuid(), 0):
                    return
                answer = await self._answer(await reader.readline())
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (OSError, TimeoutError, ValueError):
            pass  # The caller went away, or sent more than a request; nobody is left to tell.
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> Json:
        try:
            request = json.loads(line)
            verb = self._verbs[request.pop("verb")]
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            return {"error": "not a request this executor knows"}
        try:
            return await verb(request)
        except Exception as error:  # noqa: BLE001 - the edge: whoever asks is answered, and we go on
            # The kind alone: what was sent may be a secret.
            return {"error": f"{type(error).__name__} while it was carried out"}


def _peer_uid(writer: asyncio.StreamWriter) -> int:
    link = writer.get_extra_info("socket")
    if not hasattr(socket, "SO_PEERCRED"):
        return os.getuid()  # Where the kernel cannot say, the socket's mode is the guard.
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


# Whether agents would see what is ours: local sandboxes show the system's folders as the host has them.


def refuse_exposed(data: DataFolder) -> None:
    """UserError when data, config (with the secrets beside it) or artifacts lie where agents can read.

    An executor that is root shows its sandboxes the system's folders as root sees them: no mode hides a file.
    """
    artifacts = values.effective("artifacts_folder").value
    ours = {
        "the data folder (VALKYRIE_HOME)": data.root,
        "the config file (VALKYRIE_CONFIG_PATH)": config_path(),
        **({"artifacts_folder": Path(str(artifacts)).expanduser()} if artifacts else {}),
    }
    trees = [Path("/", name).resolve() for name in SYSTEM_TREES]
    for what, path in ours.items():
        if tree := next((tree for tree in trees if path.resolve().is_relative_to(tree)), None):
            raise UserError(
                f"{path} is {what}, and local sandboxes show {tree} to their agents. Move it to a place of "
                "its own: below /var/lib or /etc, for instance.",
                cause="exposed",
            )


# What messages to the outside find in an executor: the run's values, organisation, results and links.


@dataclass(frozen=True, slots=True)
class RunNotificationContext:
    """An executor's side of its hooks (valkyrie.notifications.outbox.NotificationContext)."""

    _store: Store
    _writer: Writer
    _open_runs: OpenRuns

    async def values(self, run_id: str) -> Mapping[str, str] | None:
        return await self._open_runs.handed(run_id)

    async def organisation(self, org_id: str, run_id: str) -> Organisation:
        values = await self._open_runs.handed(run_id) or {}
        return await asyncio.to_thread(self._open_runs.organisation, org_id, values)

    async def results(self, run_id: str) -> Json:
        return await asyncio.to_thread(self._content.results, run_id)

    async def arguments(self, run_id: str) -> Json:
        return await asyncio.to_thread(self._content.arguments, run_id)

    async def links(self, run_id: str) -> Mapping[str, str]:
        return await asyncio.to_thread(self._content.links, run_id)

    @property
    def _content(self) -> RunContent:
        from valkyrie.executor.conclusions import RunContent  # with it reports and comparisons

        return RunContent(self._store)

    async def settled(self, run_id: str) -> None:
        def forget(connection: Connection) -> bool:
            # It may have been resumed just now, with other values.
            ended = notifications.settled(connection, run_id)
            if ended:
                runs.forget_handed(connection, run_id)
            return ended

        if await self._writer.call(forget):
            self._open_runs.settled(run_id)


# An executor's life: take the lock, recover, serve, work, leave nothing behind.

LEASE_S, SHORTEST_LEASE_S = 30.0, 3.0
HEARTBEATS = 6
"""So many times within its lease an executor says that it lives."""
IDLE_EXIT_S = 10.0
KEEP_SANDBOXES_S = 8 * 3600.0
LAST_MESSAGES_S = 30.0
"""How long messages under way are waited for at the end; whoever comes next sends the others."""
ORPHAN_AFTER_S = 3600.0
"""A run's folder is made just before its row; one without a row after so long belongs to a killed command."""


def idle_exit_s() -> float:
    """Return how long an executor without work stays: `VALKYRIE_EXECUTOR_IDLE_S`, if that is a number."""
    try:
        return max(0.0, float(os.environ["VALKYRIE_EXECUTOR_IDLE_S"]))
    except (KeyError, ValueError):
        return IDLE_EXIT_S


def lease_s() -> float:
    """Return how long an executor counts as alive that is not heard of: `VALKYRIE_LEASE_S`, if that is a
    number."""
    try:
        return max(SHORTEST_LEASE_S, float(os.environ["VALKYRIE_LEASE_S"]))
    except (KeyError, ValueError):
        return LEASE_S


class ExecutorHost:
    """One executor on one data folder."""

    def __init__(self, data: DataFolder, *, server: bool = False) -> None:
        self.id = str(uuid.uuid4())
        self._data = data
        self._server = server
        self._home = home_mark(data)
        self._started_at = time.time()
        self._lease_s = lease_s()
        self._room = HostRoom.measure(float(config.effective("cpu_overcommit").value or 1.0))

    async def serve(self, tell_ready: Callable[[], bool]) -> None:
        """Work until idle, drained or told to end.

        `tell_ready` is called when others may speak to us; False: whoever started us has gone away, so
        there is no reason to wait for work that is not there.
        """
        refuse_exposed(self._data)
        store = Store(database_url() or self._data.database)
        self._writer = store.writer()
        self._open_runs = OpenRuns(self._tenant_access(store), self._writer, self._home)
        telling = RunNotificationContext(store, self._writer, self._open_runs)
        networks = config.tracker_networks if self._server else None
        sender = Sender(local_allowed, networks=networks)
        self._hooks = NotificationRunner(self.id, self._writer, telling, sender, self._home)
        self._open_runs.on_ended = self._hooks.wake
        self._scheduler = Scheduler(self.id, self._writer, self._open_runs, self._room)
        self._scheduler.decide = self._decide
        control = ControlServer(socket_path(self._data), self._verbs())
        try:
            await self._begin()
            await control.start()
            self._scheduler.idle_exit_s = None if self._server else idle_exit_s()
            if not tell_ready() and not self._server:
                self._scheduler.idle_exit_s = 0.0
            self._listen_to_signals()
            async with asyncio.TaskGroup() as group:
                messages = group.create_task(self._hooks.run())
                beside = [
                    group.create_task(self._heartbeat(control)),
                    group.create_task(self._listen(store)),
                ]
                await self._work(control)
                self._hooks.drain()
                await asyncio.wait([messages], timeout=LAST_MESSAGES_S)
                for task in (messages, *beside):
                    task.cancel()
        finally:
            await control.close()
            await self._open_runs.close()
            await end_executor(self._writer, self.id)
            store.close()

    def _tenant_access(self, store: Store) -> TenantAccess:
        if not self._server:
            return TenantAccess(self._data, store)
        own = self._data.root / "server.key" if store.kind == "sqlite" else None
        return TenantAccess(self._data, store, server=True, sealer=find_sealer(own))

    def _decide(self, connection: Connection, job_ids: Collection[str], now: float) -> bool:
        return self._stop_rules.apply(connection, job_ids, now)

    @cached_property
    def _stop_rules(self) -> StopRules:
        from valkyrie.executor.conclusions import StopRules  # with it reports and comparisons

        return StopRules()

    async def _begin(self) -> None:
        now = time.time()
        values = registration(self.id, self._home, self._lease_s)
        await self._writer.call(lambda connection: executors.register_executor(connection, values))
        await self._open_runs.sweep()
        await self._writer.call(self._recover)
        known = await self._writer.call(runs.known_ids)
        bound = await self._writer.call(executors.bound_runs)
        await asyncio.to_thread(self._data.sweep_runs, known, now - ORPHAN_AFTER_S, bound)
        await asyncio.to_thread(self._data.sweep_cache)

    def _recover(self, connection: Connection) -> int:
        return executors.recover(connection, self.id, home=self._home)

    async def _work(self, control: ControlServer) -> None:
        """Work until idle; a run that arrives while the door is being closed is still taken."""
        while True:
            await self._scheduler.run()
            if self._scheduler.draining:
                return
            needed = self._open_runs.kept and time.time() - self._started_at < KEEP_SANDBOXES_S
            if needed or self._hooks.busy:
                # A pause between two looks, also if nobody waits for us.
                self._scheduler.idle_exit_s = IDLE_EXIT_S
                continue
            await control.close()
            if not await self._writer.call(runs.any_ready):
                return
            await control.start()

    async def _heartbeat(self, control: ControlServer) -> None:
        lock = _identity(self._data.executor_lock)
        while True:
            await asyncio.sleep(self._lease_s / HEARTBEATS)
            if _identity(self._data.executor_lock) != lock:
                raise StoreError(f"{self._data.root} was removed while its executor was at work.")
            await control.keep_up()
            await self._writer.call(
                lambda connection: executors.heartbeat(connection, self.id, self._lease_s)
            )
            if await self._writer.call(self._recover):
                self._scheduler.wake()

    async def _listen(self, store: Store) -> None:
        """Look for work as soon as another process has written; SQLite's are looked for by the scheduler."""
        if store.kind == "sqlite":
            return
        loop = asyncio.get_running_loop()
        ended = threading.Event()

        def listen() -> None:
            for _ in store.changes():
                if ended.is_set():
                    return
                loop.call_soon_threadsafe(self._scheduler.wake)

        thread = threading.Thread(target=listen, name="store-changes", daemon=True)
        thread.start()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()

        def leave() -> None:
            # The first asks for a drain, the second means now.
            if self._scheduler.draining:
                self._abandoning = loop.create_task(self._scheduler.abandon())
            else:
                self._scheduler.drain()
                if count := self._scheduler.active:
                    trials = f"{count} trial{'s' if count > 1 else ''} under way"
                    log(f"told to end: waits for {trials}; told again, it gives back what is left")

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, leave)
        if pipe := os.environ.pop(PARENT_PIPE, None):
            # Its server is gone: work goes on, but nobody is waited for.
            def orphaned() -> None:
                loop.remove_reader(int(pipe))
                self._scheduler.idle_exit_s = IDLE_EXIT_S
                self._scheduler.wake()

            loop.add_reader(int(pipe), orphaned)

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
            "kept_sandboxes": self._open_runs.kept,
            "waiting": sorted(self._open_runs.waiting()),
            "draining": self._scheduler.draining,
            "server": self._server,
            "room": {"cpus": self._room.cpus, "memory_mb": self._room.memory_mb},
        }

    async def _wake(self, request: Json) -> Json:
        self._scheduler.wake()
        return await self._status(request)

    async def _take_secrets(self, request: Json) -> Json:
        self._open_runs.give_secrets(request["run_id"], request["values"])
        await self._hooks.supplied(request["run_id"])
        return await self._wake(request)

    async def _drain(self, request: Json) -> Json:
        self._scheduler.drain()
        return await self._status(request)

    async def _end_now(self, request: Json) -> Json:
        await self._scheduler.abandon()
        return await self._status(request)

    async def _shell(self, request: Json) -> Json:
        argv = await self._open_runs.shell(request["run_id"], request["task_id"], request["k"])
        return {"argv": argv}

    async def _forget(self, request: Json) -> Json:
        await self._open_runs.forget(request["run_id"])
        return {}


def serve(folder: str, announce: Callable[[], None]) -> None:
    """Be an executor of a server in this process; `announce` is called once it is at work."""

    def ready() -> bool:
        announce()
        return True

    if failures := work_on(folder, ready, server=True):
        raise failures[0]


def work_on(folder: str, ready: Callable[[], bool], *, server: bool) -> list[BaseException]:
    """Be the executor of a data folder; return why it ended, if not because it was done."""
    data = DataFolder(Path(folder)).make()
    failures: list[BaseException] = []
    with only_one(data, server=server) as ours:
        if not ours:
            if server and PARENT_PIPE not in os.environ:
                sys.stderr.write(f"An executor is at work on {folder} already; it goes on.\n")
            elif not server:
                ready()
            return []
        try:
            asyncio.run(ExecutorHost(data, server=server).serve(ready))
        except* ValkyrieError as group:
            failures = _leaves(group)
    return failures


def _leaves(error: BaseException) -> list[BaseException]:
    """The errors themselves, out of whatever groups they came in."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for part in error.exceptions for leaf in _leaves(part)]


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def registration(executor_id: str, home: str, lease: float) -> Json:
    """Return what an executor tells of itself when it begins."""
    now = time.time()
    return {
        "id": executor_id,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "version": __version__,
        "started_at": now,
        "heartbeat_at": now,
        "expires_at": now + lease,
        "home": home,
    }


async def end_executor(writer: Writer, executor_id: str) -> None:
    """Say that it has left, and close its writer."""
    if not writer.broken:
        with contextlib.suppress(StoreError):  # it broke just now; whoever comes next sees a dead executor
            await writer.call(lambda connection: executors.end_executor(connection, executor_id))
    await writer.close()


# An executor that works in the process that started its runs, on those runs alone, until they ended.


@contextlib.contextmanager
def alone(data: DataFolder, word: str) -> Iterator[None]:
    """Whoever holds this is the only executor that says `word`; what one before it left is nobody's."""
    folder = data.root / "bound"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{word}.lock"
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError("Another process is at work on it; wait for that one, or end it first.") from None
        yield
        path.unlink(missing_ok=True)


class BoundExecutor:
    """Made inside `alone`; `word` is what its runs are bound to."""

    def __init__(self, data: DataFolder, store: Store, word: str) -> None:
        self.id = str(uuid.uuid4())
        self._data = data
        self._store = store
        self._word = word
        self._lease_s = lease_s()
        self._room = HostRoom.measure(float(config.effective("cpu_overcommit").value or 1.0))
        self._scheduler: Scheduler | None = None

    async def work(
        self,
        values: Mapping[str, Mapping[str, str]],
        on_ended: Callable[[Leased, Finish], None],
        on_install: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Work until nothing of its runs is left to do.

        `values`: what each run is handed; `on_install` is told of agents that are installed first.
        """
        async with self._opened(values.keys()) as (writer, open_runs):
            open_runs.layers.on_install = on_install
            for run_id, handed in values.items():
                open_runs.give_secrets(run_id, handed)
            scheduler = Scheduler(self.id, writer, open_runs, self._room, bound=self._word)
            scheduler.idle_exit_s = 0.0
            scheduler.on_ended = on_ended
            scheduler.say = lambda _text: None
            self._scheduler = scheduler
            alive = asyncio.create_task(self._heartbeat(writer))
            working = asyncio.create_task(scheduler.run())
            try:
                # A heart that stops has an error of its own to tell.
                await asyncio.wait((alive, working), return_when=asyncio.FIRST_COMPLETED)
                await (working if working.done() else alive)
            finally:
                for task in (alive, working):
                    task.cancel()
                await asyncio.gather(alive, working, return_exceptions=True)

    def wake(self) -> None:
        if self._scheduler:
            self._scheduler.wake()

    @contextlib.asynccontextmanager
    async def _opened(self, run_ids: Collection[str]) -> AsyncIterator[tuple[Writer, OpenRuns]]:
        writer = self._store.writer()
        open_runs = OpenRuns(TenantAccess(self._data, self._store), writer, self._word)
        try:
            begun = registration(self.id, self._word, self._lease_s)
            await writer.call(lambda connection: executors.register_executor(connection, begun))
            await open_runs.sweep()
            await writer.call(lambda connection: executors.recover(connection, self.id, home=self._word))
            for run_id in run_ids:
                drafts = self._data.run(run_id).drafts
                if drafts.exists():
                    await asyncio.to_thread(shutil.rmtree, drafts, ignore_errors=True)
            yield writer, open_runs
        finally:
            await open_runs.close()
            await end_executor(writer, self.id)

    async def _heartbeat(self, writer: Writer) -> None:
        while True:
            await asyncio.sleep(self._lease_s / HEARTBEATS)
            await writer.call(lambda connection: executors.heartbeat(connection, self.id, self._lease_s))
