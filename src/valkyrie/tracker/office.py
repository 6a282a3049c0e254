"""What verbs stand on: one store, its organisations, and the way runs reach an executor."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from valkyrie.nouns import Identity
from valkyrie.settings import database_url
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.handing import Handing, OnThisMachine, ThroughTheStore

if TYPE_CHECKING:
    from valkyrie.executor.client import Starting
    from valkyrie.organisation import Organisation
    from valkyrie.sealing import Sealer
    from valkyrie.store import Store
    from valkyrie.tracker.local import LocalTracker


class Office:
    """Opened once by a command or a server; everything in it opens when it is first needed."""

    def __init__(
        self,
        data: DataFolder,
        *,
        server: bool = False,
        allow_local: bool = True,
        starting: Starting | None = None,
    ) -> None:
        self.data = data
        self.server = server
        self.allow_local = allow_local
        """Only this machine's own people reach us: they may name services on loopback."""
        self.handing: Handing = ThroughTheStore(self) if server else OnThisMachine(data, starting)

    @cached_property
    def store(self) -> Store:
        """The database, made or migrated if need be."""
        from valkyrie.store import Store

        try:
            self.data.make()
        except OSError:
            if not database_url() and not self.data.database.exists():
                raise
            # What is there can be looked at all the same, on a disk that may not be written.
        return Store(database_url() or self.data.database)

    @cached_property
    def sealer(self) -> Sealer | None:
        """What values are encrypted at rest with; a server whose database is a file has a key of its own."""
        from valkyrie.sealing import find_sealer

        own = self.data.root / "server.key" if self.store.kind == "sqlite" else None
        return find_sealer(own)

    def organisation(
        self, identity: Identity, caller_headers: Mapping[str, str] | None = None
    ) -> Organisation:
        """The caller's organisation."""
        from valkyrie.organisation.opening import open_organisation

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
        """All verbs, as this person of this organisation; `caller_headers` tell hosted services who it is."""
        from valkyrie.tracker.local import LocalTracker

        return LocalTracker(self, identity, caller_headers)

    def close(self) -> None:
        """Let go of everything."""
        self.handing.close()
        if "store" in self.__dict__:
            self.store.close()
            del self.__dict__["store"]
