"""Where one person's verbs are carried out: their identity, their organisation, the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from valkyrie.nouns import DEFAULT_ORG, Identity
from valkyrie.store import jobs, runs
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.office import Office

if TYPE_CHECKING:
    from valkyrie.organisation import Organisation
    from valkyrie.store import Connection, Store


class Desk:
    """What all groups of verbs share. A bare folder is embedded mode on that data folder."""

    def __init__(
        self,
        office: Office | Path,
        identity: Identity | None = None,
        caller_headers: Mapping[str, str] | None = None,
    ) -> None:
        self.office = Office(DataFolder(office)) if isinstance(office, Path) else office
        self.identity = identity or Identity(person=_user())
        self._caller_headers = caller_headers
        self._owns_office = identity is None or isinstance(office, Path)

    @property
    def data(self) -> DataFolder:
        return self.office.data

    @property
    def store(self) -> Store:
        return self.office.store

    @cached_property
    def organisation(self) -> Organisation:
        return self.office.organisation(self.identity, self._caller_headers)

    @property
    def sees_machine(self) -> bool:
        """The machine is the operator's business: on a server only the default organisation sees it."""
        return not self.office.server or self.identity.org_id == DEFAULT_ORG

    @property
    def only_looks(self) -> bool:
        """Whether a plan starts no program of its own: on the caller's machine.

        A server tries once what its machine can do: its callers can not, and starts there check the same.
        """
        return not self.office.server

    @property
    def allow_local(self) -> bool:
        """Whether services on loopback may be named: by the machine's own people, or where it is configured.

        Other organisations' people come through a proxy, and what listens here is not theirs.
        """
        from valkyrie.hooks.wishes import local_allowed

        return (self.office.allow_local and self.sees_machine) or local_allowed()

    def resolve(self, connection: Connection, ref: str) -> str:
        """The id of the run of the caller's organisation that `ref` names."""
        return runs.resolve(connection, ref, self.identity.org_id, self.identity.person)

    def resolve_job(self, connection: Connection, ref: str) -> str:
        """Return the id of the job of the caller's organisation that `ref` names."""
        return jobs.resolve(connection, ref, self.identity.org_id, self.identity.person)

    def on_line(self, tell: Callable[[str | None], None]) -> None:
        """Nothing can be cut: the store is here."""

    def close(self) -> None:
        """Let go of the office, unless others use it too."""
        if self._owns_office:
            self.office.close()


def _user() -> str | None:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None
