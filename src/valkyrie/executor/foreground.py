"""An executor that works in the process that started its runs, on those runs alone, until they ended."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import shutil
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping

from valkyrie.config import values as config
from valkyrie.errors import UserError
from valkyrie.executor.artifacts import TenantAccess
from valkyrie.executor.host import HEARTBEATS, end_executor, lease_s, registration
from valkyrie.executor.open_runs import OpenRuns
from valkyrie.schedule.scheduler import HostRoom, Scheduler
from valkyrie.store import Store, executors, leases
from valkyrie.store.journal import Finish, Writer
from valkyrie.store.layout import DataFolder
from valkyrie.store.leases import Leased


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
        async with self._opened(values.keys()) as (writer, worlds):
            worlds.layers.on_install = on_install
            for run_id, handed in values.items():
                worlds.give_secrets(run_id, handed)
            scheduler = Scheduler(self.id, writer, worlds, self._room, bound=self._word)
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
        """Something of its runs was changed."""
        if self._scheduler:
            self._scheduler.wake()

    @contextlib.asynccontextmanager
    async def _opened(self, run_ids: Collection[str]) -> AsyncIterator[tuple[Writer, OpenRuns]]:
        writer = self._store.writer()
        worlds = OpenRuns(TenantAccess(self._data, self._store), writer, self._word)
        try:
            begun = registration(self.id, self._word, self._lease_s)
            await writer.call(lambda connection: executors.register_executor(connection, begun))
            await worlds.sweep()
            await writer.call(lambda connection: leases.recover(connection, self.id, home=self._word))
            for run_id in run_ids:
                drafts = self._data.run(run_id).drafts
                if drafts.exists():
                    await asyncio.to_thread(shutil.rmtree, drafts, ignore_errors=True)
            yield writer, worlds
        finally:
            await worlds.close()
            await end_executor(writer, self.id)

    async def _heartbeat(self, writer: Writer) -> None:
        while True:
            await asyncio.sleep(self._lease_s / HEARTBEATS)
            await writer.call(lambda connection: executors.heartbeat(connection, self.id, self._lease_s))
