"""From who asks to the things of their organisation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from valkyrie.errors import UnknownError
from valkyrie.nouns import Identity
from valkyrie.organisation.protocol import Organisation
from valkyrie.store.layout import DataFolder

if TYPE_CHECKING:
    from valkyrie.secrets.sealed import Sealer
    from valkyrie.store import Store


def open_organisation(
    identity: Identity,
    data: DataFolder,
    *,
    store: Store | None = None,
    sealer: Sealer | None = None,
    credentials: Mapping[str, str] | None = None,
    caller_headers: Mapping[str, str] | None = None,
) -> Organisation:
    """The organisation of `identity`: on a server (`store` given) from its row, else the user's own.

    `credentials` is what an executor was handed of the user's cloud; organisations of a server have theirs.
    `caller_headers` tell hosted benchmark services who asks.
    """
    if store is None:
        from valkyrie.organisation.embedded import EmbeddedOrganisation

        return EmbeddedOrganisation(data, identity, credentials)
    from valkyrie.organisation.server import ServerOrganisation
    from valkyrie.store import people

    with store.reading() as connection:
        row = people.org_by_id(connection, identity.org_id)
    if row is None:
        raise UnknownError(
            f"There is no organisation {identity.org_id[:80]!r}.", cause="unknown_organisation"
        )
    return ServerOrganisation(row, data, store, sealer, identity, caller_headers)
