"""What an executor can open for a run: its organisation, and what was sealed for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from valkyrie.errors import StoreError
from valkyrie.nouns import Identity
from valkyrie.store import secrets
from valkyrie.store.layout import DataFolder

if TYPE_CHECKING:
    from valkyrie.organisation import Organisation
    from valkyrie.secrets.sealed import Sealer
    from valkyrie.store import Connection, Store


@dataclass(frozen=True, slots=True)
class Premises:
    """Embedded: the user's own things. Of a server: each organisation's, opened with the server's key."""

    data: DataFolder
    store: Store
    server: bool = False
    sealer: Sealer | None = None
    _unopened: set[str] = field(default_factory=set)
    """Runs whose values we could not open; said once."""

    def organisation(self, org_id: str, credentials: Mapping[str, str]) -> Organisation:
        """The things of a run's organisation; `credentials` were handed over with the run."""
        from valkyrie.organisation.opening import open_organisation

        return open_organisation(
            Identity(org_id=org_id, org=org_id),
            self.data,
            store=self.store if self.server else None,
            sealer=self.sealer,
            credentials=credentials,
        )

    def sealed(self, connection: Connection, run_id: str) -> Mapping[str, str] | None:
        """What was sealed for a run; None when nothing was, or the key it was sealed with is not here."""
        found = secrets.handed(connection, run_id) if self.sealer else None
        if not found or not self.sealer:
            return None
        try:
            return self.sealer.open(found, f"run:{run_id}")
        except StoreError as error:
            if run_id not in self._unopened:
                self._unopened.add(run_id)
                sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {error}\n")
            return None
