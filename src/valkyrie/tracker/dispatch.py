"""Waiting for something to grow, as long as anyone wants it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol, TypeVar

from valkyrie.domain import Json
from valkyrie.errors import InfrastructureError, UserError
from valkyrie.executor.client import ExecutorClient, StartingExecutor

if TYPE_CHECKING:
    from valkyrie.store import Connection
    from valkyrie.store.layout import DataFolder
    from valkyrie.tracker.app import TrackerApp


T = TypeVar("T")
_gone: ContextVar[threading.Event | None] = ContextVar("gone", default=None)


class NobodyWaitsError(Exception):
    """Whoever followed has gone; nothing more need be looked for."""


def pause(seconds: float) -> None:
    """Sleep before another look; NobodyWaitsError as soon as whoever follows has gone."""
    gone = _gone.get()
    if gone is None:
        time.sleep(seconds)
    elif gone.wait(seconds):
        raise NobodyWaitsError


def until_gone(gone: threading.Event, work: Callable[[], T]) -> T:
    """Do work whose pauses end when `gone` is set: a server's, for a client that may leave."""
    token = _gone.set(gone)
    try:
        return work()
    finally:
        _gone.reset(token)


# Dispatch of a run and its secret values to an executor: over a socket here, sealed through a database.

MOST_DELIVERIES = 3
"""So many executors may leave, one after the other, while a run is handed over."""


class Dispatch(Protocol):
    """The way to executors."""

    def seal(self, connection: Connection, run_id: str, values: Mapping[str, str]) -> None:
        """Store the values, encrypted, in the transaction that opens a run."""
        ...

    def deliver(self, run_id: str, values: Mapping[str, str]) -> Sequence[str]:
        """After the commit, see that an executor takes the run up; return what the user should know."""
        ...

    def wake(self, *, needed: bool = False) -> None:
        """Something changed; `needed`: an executor must see it, so one is started if none lives."""
        ...

    def alive(self) -> bool:
        """Return whether an executor is at work on this store."""
        ...

    def status(self) -> Json | None:
        """Return what the executor of this machine says of itself."""
        ...

    def forget(self, run_id: str) -> None:
        """The run is gone."""
        ...

    def shell(self, run_id: str, task_id: str, k: int) -> Sequence[str] | None:
        """Return the command that opens a shell in a kept sandbox."""
        ...

    def close(self) -> None: ...


class SocketDispatch:
    """One executor per data folder, started when it is needed; values go over its control socket."""

    def __init__(self, data: DataFolder, starting: StartingExecutor | None = None) -> None:
        self._executor = ExecutorClient(data)
        self._starting = starting

    def seal(self, connection: Connection, run_id: str, values: Mapping[str, str]) -> None:
        """Nothing of it is stored."""

    def deliver(self, run_id: str, values: Mapping[str, str]) -> Sequence[str]:
        if not values:
            self._ensure()
            return []
        if not self._send(run_id, values)["draining"]:
            return []
        return [
            "An executor that is leaving finishes its trials first, and takes what it knows with it; when "
            f"the run then waits for its secrets, `valk run resume {run_id[:8]}` supplies them."
        ]

    def _send(self, run_id: str, values: Mapping[str, str]) -> Json:
        """Return the answer of the executor that has the run; another follows one that leaves meanwhile."""
        for _ in range(MOST_DELIVERIES):
            self._ensure()
            if answer := self._executor.ask("secrets", run_id=run_id, values=dict(values)):
                return answer
        raise InfrastructureError(
            f"The executor went away before run {run_id[:8]} could be handed over; "
            f"`valk run resume {run_id[:8]}` goes on."
        )

    def _ensure(self) -> None:
        starting, self._starting = self._starting, None
        self._executor.ensure(starting)

    def wake(self, *, needed: bool = False) -> None:
        if needed:
            self._executor.ensure()
        else:
            self._executor.ask("wake")

    def alive(self) -> bool:
        return self._executor.lives()

    def status(self) -> Json | None:
        return self._executor.status()

    def forget(self, run_id: str) -> None:
        self._executor.ask("forget", run_id=run_id)

    def shell(self, run_id: str, task_id: str, k: int) -> Sequence[str] | None:
        answer = self._executor.ask("shell", run_id=run_id, task_id=task_id, k=k)
        argv: Sequence[str] | None = answer["argv"] if answer else None
        return argv

    def close(self) -> None:
        if self._starting:
            self._starting.leave()
            self._starting = None


class StoreDispatch:
    """Executors anywhere: they see the run in the database, and open what was sealed for it with the key."""

    def __init__(self, app: TrackerApp) -> None:
        self._app = app
        self._nearby = ExecutorClient(app.data)

    def seal(self, connection: Connection, run_id: str, values: Mapping[str, str]) -> None:
        from valkyrie.store import tenants

        if not values:
            return
        if self._app.sealer is None:
            raise UserError(
                "This tracker has no key to encrypt what the run must be handed: set VALKYRIE_SECRET_KEY "
                "where it and its executors run (`valkyrie admin secret-key` makes one).",
                cause="sealed",
            )
        tenants.hand(connection, run_id, self._app.sealer.seal(values, f"run:{run_id}"))

    def deliver(self, run_id: str, values: Mapping[str, str]) -> Sequence[str]:  # noqa: ARG002
        self._nearby.ask("wake")
        if self.alive():
            return []
        return [
            "No executor is at work on this tracker now; the run waits for one (`valkyrie executor`, or "
            "`valkyrie serve` without --no-executor)."
        ]

    def wake(self, *, needed: bool = False) -> None:  # noqa: ARG002
        self._nearby.ask("wake")

    def alive(self) -> bool:
        from valkyrie.store import executors

        with self._app.store.reading() as connection:
            return bool(executors.living(connection))

    def status(self) -> Json | None:
        return self._nearby.status()

    def forget(self, run_id: str) -> None:
        self._nearby.ask("forget", run_id=run_id)

    def shell(self, run_id: str, task_id: str, k: int) -> Sequence[str] | None:
        answer = self._nearby.ask("shell", run_id=run_id, task_id=task_id, k=k)
        argv: Sequence[str] | None = answer["argv"] if answer else None
        return argv

    def close(self) -> None:
        """Nothing is held."""
