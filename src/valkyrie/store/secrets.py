"""Values kept encrypted: the secrets of organisations, and what executors are handed with a run.

Whoever reads the database alone learns names and lengths, nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlalchemy import Connection, Table, delete, select

from valkyrie.errors import UnknownError, UsageError
from valkyrie.secrets.sealed import Sealer
from valkyrie.secrets.store import check_name, check_value
from valkyrie.store.schema import handover, secret
from valkyrie.suggest import did_you_mean
from valkyrie.views import SecretView

MOST_SECRETS = 1000
_VALUE = "value"


def set_secret(
    connection: Connection, sealer: Sealer, org_id: str, name: str, value: str, person: str | None = None
) -> None:
    """Keep a value under a name, over an earlier one."""
    check_name(name)
    check_value(name, value)
    known = list_secrets(connection, org_id)
    if len(known) >= MOST_SECRETS and name not in {one.name for one in known}:
        raise UsageError(f"There are {MOST_SECRETS} secrets already; remove some first.")
    values = {
        "sealed": sealer.seal({_VALUE: value}, _about(org_id, name)),
        "created_at": time.time(),
        "created_by": person,
    }
    _put(connection, secret, {"org_id": org_id, "name": name}, values)


def get_secret(connection: Connection, sealer: Sealer, org_id: str, name: str) -> str | None:
    """The value kept under this name."""
    wanted = select(secret.c.sealed).where(secret.c.org_id == org_id, secret.c.name == name)
    sealed = connection.execute(wanted).scalar_one_or_none()
    return sealer.open(sealed, _about(org_id, name))[_VALUE] if sealed is not None else None


def list_secrets(connection: Connection, org_id: str) -> Sequence[SecretView]:
    """Names, by name."""
    columns = (secret.c.name, secret.c.created_at, secret.c.created_by)
    wanted = select(*columns).where(secret.c.org_id == org_id).order_by(secret.c.name)
    return [SecretView(row.name, row.created_at, row.created_by) for row in connection.execute(wanted)]


def remove_secret(connection: Connection, org_id: str, name: str) -> None:
    """Forget a name."""
    gone = connection.execute(delete(secret).where(secret.c.org_id == org_id, secret.c.name == name))
    if not gone.rowcount:
        known = [one.name for one in list_secrets(connection, org_id)]
        hint = did_you_mean(name, known) or f" Stored: {', '.join(known) or 'none'}."
        raise UnknownError(f"No secret is stored as {name[:80]!r}.{hint}")


def hand(connection: Connection, run_id: str, sealed: bytes) -> None:
    """What executors are handed with a run, in place of what they were handed before."""
    _put(connection, handover, {"run_id": run_id}, {"sealed": sealed})


def handed(connection: Connection, run_id: str) -> bytes | None:
    """What was handed with a run; None once it ended."""
    wanted = select(handover.c.sealed).where(handover.c.run_id == run_id)
    return connection.execute(wanted).scalar_one_or_none()


def forget_handed(connection: Connection, run_id: str) -> None:
    """The run ended: nobody needs it any more."""
    connection.execute(delete(handover).where(handover.c.run_id == run_id))


def _about(org_id: str, name: str) -> str:
    return f"secret:{org_id}:{name}"


def _put(connection: Connection, table: Table, key: dict[str, str], values: dict[str, object]) -> None:
    """Insert a row, or change the one that is there; also when another does the same at this moment."""
    from sqlalchemy.dialects import postgresql, sqlite

    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table).values(**key, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=list(key), set_=values))
