"""What the verbs share: the store, its organisations, the way runs reach an executor, and who asks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from valkyrie.config.values import database_url
from valkyrie.domain import DEFAULT_ORG, Identity
from valkyrie.store import Store, jobs, runs
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.dispatch import Dispatch, SocketDispatch, StoreDispatch

if TYPE_CHECKING:
    from valkyrie.benchmarks.protocol import Benchmark
    from valkyrie.executor.client import StartingExecutor
    from valkyrie.secrets.delivery import Sealer
    from valkyrie.store import Connection
    from valkyrie.tenants import Organisation
    from valkyrie.tracker.local import LocalTracker
    from valkyrie.tracker.prepare import PreparedRun
    from valkyrie.views import RunRequest, TasksRequest


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
        """Return the caller's organisation."""
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
        """Let go of everything."""
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
        """Return the id of the run of the caller's organisation that `ref` names."""
        return runs.resolve(connection, ref, self.identity.org_id, self.identity.person)

    def resolve_job(self, connection: Connection, ref: str) -> str:
        """Return the id of the job of the caller's organisation that `ref` names."""
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
