"""What the verbs share: the store, organisations, who asks, and the way runs reach an executor."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeVar

from valkyrie.config.values import database_url
from valkyrie.domain import DEFAULT_ORG, Identity, Json
from valkyrie.errors import InfrastructureError, UserError
from valkyrie.executor.client import ExecutorClient, StartingExecutor
from valkyrie.store import Store, executors, jobs, runs
from valkyrie.store.layout import DataFolder

if TYPE_CHECKING:
    from valkyrie.benchmarks.protocol import Benchmark
    from valkyrie.secrets.delivery import Sealer
    from valkyrie.store import Connection
    from valkyrie.tenants import Organisation
    from valkyrie.tracker.local import LocalTracker
    from valkyrie.tracker.prepare import PreparedRun
    from valkyrie.views import RunRequest, TasksRequest


# Waiting for something to grow, as long as anyone wants it.


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

        if not values:
            return
        if self._app.sealer is None:
            raise UserError(
                "This tracker has no key to encrypt what the run must be handed: set VALKYRIE_SECRET_KEY "
                "where it and its executors run (`valkyrie admin secret-key` makes one).",
                cause="sealed",
            )
        runs.hand(connection, run_id, self._app.sealer.seal(values, f"run:{run_id}"))

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


class TrackerApp:
    """Open once per command or server; everything in it opens when it is first needed."""

    def __init__(
        self,
        data: DataFolder,
        *,
        server: bool = False,
        allow_local: bool = True,
        starting: StartingExecutor | None = None,
    ) -> None:
        self.data = data
        self.server = server
        self.allow_local = allow_local
        """Only this machine's own people reach us: they may name services on loopback."""
        self.dispatch: Dispatch = StoreDispatch(self) if server else SocketDispatch(data, starting)

    @cached_property
    def store(self) -> Store:
        """Return the database, made or migrated if need be."""
        try:
            self.data.make()
        except OSError:
            if not database_url() and not self.data.database.exists():
                raise
            # What is there can be looked at all the same, on a disk that may not be written.
        return Store(database_url() or self.data.database)

    @cached_property
    def sealer(self) -> Sealer | None:
        """Return what encrypts values at rest; a server whose database is a file has a key of its own."""
        from valkyrie.secrets.delivery import find_sealer

        own = self.data.root / "server.key" if self.store.kind == "sqlite" else None
        return find_sealer(own)

    def organisation(
        self, identity: Identity, caller_headers: Mapping[str, str] | None = None
    ) -> Organisation:
        from valkyrie.tenants.organisation import open_organisation

        return open_organisation(
            identity,
            self.data,
            store=self.store if self.server else None,
            sealer=self._sealer_if_server(),
            caller_headers=caller_headers,
        )

    def _sealer_if_server(self) -> Sealer | None:
        return self.sealer if self.server else None

    def tracker(self, identity: Identity, caller_headers: Mapping[str, str] | None = None) -> LocalTracker:
        """Return all verbs, as this person of this organisation; `caller_headers` tell hosted services who it
        is."""
        from valkyrie.tracker.local import LocalTracker

        return LocalTracker(self, identity, caller_headers)

    def close(self) -> None:
        self.dispatch.close()
        if "store" in self.__dict__:
            self.store.close()
            del self.__dict__["store"]


class CallerContext:
    """Who asks, and what their verbs work on: one person, their organisation, the store."""

    def __init__(
        self, app: TrackerApp, identity: Identity, caller_headers: Mapping[str, str] | None = None
    ) -> None:
        self.app = app
        self.identity = identity
        self._caller_headers = caller_headers

    @property
    def data(self) -> DataFolder:
        return self.app.data

    @property
    def dispatch(self) -> Dispatch:
        return self.app.dispatch

    @property
    def store(self) -> Store:
        return self.app.store

    @cached_property
    def organisation(self) -> Organisation:
        return self.app.organisation(self.identity, self._caller_headers)

    @property
    def sees_machine(self) -> bool:
        """The machine is the operator's business: on a server only the default organisation sees it."""
        return not self.app.server or self.identity.org_id == DEFAULT_ORG

    @property
    def only_looks(self) -> bool:
        """Return whether a plan starts no program of its own: on the caller's machine.

        A server tries once what its machine can do: its callers can not, and starts there check the same.
        """
        return not self.app.server

    @property
    def allow_local(self) -> bool:
        """Return whether the caller may name services on loopback: on their own machine, or if configured.

        Other organisations' people come through a proxy, and what listens here is not theirs.
        """
        from valkyrie.notifications.messages import local_allowed

        return (self.app.allow_local and self.sees_machine) or local_allowed()

    def resolve(self, connection: Connection, ref: str) -> str:
        return runs.resolve(connection, ref, self.identity.org_id, self.identity.person)

    def resolve_job(self, connection: Connection, ref: str) -> str:
        return jobs.resolve(connection, ref, self.identity.org_id, self.identity.person)

    def prepare(self, request: RunRequest, *, only_look: bool = False) -> PreparedRun:
        """Resolve and check a request as far as the caller may ask for it; see `tracker.prepare`."""
        from valkyrie.tracker.prepare import prepare

        return prepare(
            request, self.organisation, self.data, allow_local=self.allow_local, only_look=only_look
        )

    def open_benchmark(
        self, request: RunRequest | TasksRequest, variables: Mapping[str, str] | None = None
    ) -> Benchmark:
        """Open the benchmark a request names, as far as the caller may name it."""
        from valkyrie.tracker.prepare import open_requested

        return open_requested(request, self.organisation, self.data, variables, allow_local=self.allow_local)
