"""Organisations, the keys of their people, who did what, and values kept encrypted."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from sqlalchemy import Connection, Row, delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from valkyrie.domain import Identity, Json, Role
from valkyrie.errors import UnknownError, UsageError
from valkyrie.secrets.delivery import Sealer
from valkyrie.secrets.sources import check_name, check_value
from valkyrie.store.schema import action, api_key, insert_or, org, secret
from valkyrie.text import did_you_mean
from valkyrie.views import SecretView

_KEY = re.compile(r"vk_(?P<id>[0-9a-f]{12})_[A-Za-z0-9_-]{43}")
_ID_BYTES, _KEY_BYTES = 6, 32
TOUCH_EVERY_S = 60.0
LONGEST_NAME = 128
LONGEST_PERSON = 320


@dataclass(frozen=True, slots=True)
class Org:
    """One organisation."""

    id: str
    name: str
    tenant: str | None
    """Whom the hosted identity service knows it as."""
    created_at: float
    settings: Json
    sealed: bytes | None = field(default=None, repr=False)
    """Its AWS credentials, encrypted."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key as it is kept; the key itself is not."""

    id: str
    org_id: str
    org: str
    name: str
    person: str
    role: Role
    created_at: float
    expires_at: float | None
    last_used_at: float | None
    revoked_at: float | None
    max_concurrency: int | None
    """How many trials of runs started with it may be in hand at once; None is no limit."""

    def state(self, now: float) -> str:
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "active"


def orgs(connection: Connection) -> Sequence[Org]:
    return [_org(row) for row in connection.execute(select(org).order_by(org.c.created_at, org.c.id))]


def org_by_id(connection: Connection, org_id: str) -> Org | None:
    row = connection.execute(select(org).where(org.c.id == org_id)).one_or_none()
    return _org(row) if row else None


def org_by_tenant(connection: Connection, tenant: str) -> Org | None:
    row = connection.execute(select(org).where(org.c.tenant == tenant)).one_or_none()
    return _org(row) if row else None


def org_by_name(connection: Connection, name: str) -> Org:
    """The organisation of that name; UnknownError says which is near."""
    row = connection.execute(select(org).where(org.c.name == name)).one_or_none()
    if row is None:
        known = [found.name for found in orgs(connection)]
        hint = did_you_mean(name, known) or " `valkyrie admin org list` shows them."
        raise UnknownError(f"No organisation is called {name[:80]!r}.{hint}")
    return _org(row)


def create_org(connection: Connection, name: str, tenant: str | None = None) -> Org:
    """A new organisation; UsageError when its name or tenant is taken."""
    name = _checked("an organisation's name", name, LONGEST_NAME)
    made = Org(secrets.token_hex(8), name, tenant, time.time(), {})
    try:
        with connection.begin_nested():
            connection.execute(insert(org).values(**asdict(made)))
    except IntegrityError:
        raise UsageError(f"There is an organisation {name!r} already.", cause="taken") from None
    return made


_KEPT: Any = object()


def set_org(
    connection: Connection, org_id: str, *, settings: Json | None = None, sealed: bytes | None = _KEPT
) -> None:
    """Replace an organisation's settings, its sealed credentials (None: forget them), or both."""
    changes: dict[str, object] = {} if settings is None else {"settings": settings}
    if sealed is not _KEPT:
        changes["sealed"] = sealed
    if changes:
        connection.execute(update(org).where(org.c.id == org_id).values(**changes))


def create_key(
    connection: Connection,
    org_id: str,
    name: str,
    person: str,
    expires_at: float | None = None,
    *,
    role: Role = Role.MEMBER,
    max_concurrency: int | None = None,
) -> tuple[str, str]:
    """A new key: its id, and the key itself, which nobody can be told again."""
    key_id = secrets.token_hex(_ID_BYTES)
    clear = f"vk_{key_id}_{secrets.token_urlsafe(_KEY_BYTES)}"
    connection.execute(
        insert(api_key).values(
            id=key_id,
            org_id=org_id,
            name=_checked("a key's name", name, LONGEST_NAME),
            person=_checked("a person", person, LONGEST_PERSON),
            role=role.value,
            hash=_hash(clear),
            created_at=time.time(),
            expires_at=expires_at,
            max_concurrency=max_concurrency,
        )
    )
    return key_id, clear


def find_key(connection: Connection, presented: str, now: float) -> Identity | None:
    """Return whose key this is; None for one that is unknown, revoked or expired."""
    match = _KEY.fullmatch(presented)
    if match is None:
        return None
    found = connection.execute(
        select(api_key, org.c.name.label("org")).join(org).where(api_key.c.id == match["id"])
    ).one_or_none()
    if found is None or not hmac.compare_digest(found.hash, _hash(presented)):
        return None
    if found.revoked_at is not None or (found.expires_at is not None and found.expires_at <= now):
        return None
    return Identity(found.org_id, found.org, found.person, found.id, found.max_concurrency, Role(found.role))


def touch_key(connection: Connection, key_id: str, now: float) -> None:
    """Remember that a key was used, unless that was written down within the last minute."""
    stale = or_(api_key.c.last_used_at.is_(None), api_key.c.last_used_at < now - TOUCH_EVERY_S)
    connection.execute(update(api_key).where(api_key.c.id == key_id, stale).values(last_used_at=now))


def list_keys(connection: Connection, org_id: str | None = None) -> Sequence[ApiKey]:
    """Keys, oldest first; of one organisation, or of all."""
    wanted = select(api_key, org.c.name.label("org")).join(org)
    if org_id is not None:
        wanted = wanted.where(api_key.c.org_id == org_id)
    rows = connection.execute(wanted.order_by(api_key.c.created_at, api_key.c.id))
    return [_api_key(row) for row in rows]


def revoke_key(connection: Connection, key_id: str, now: float) -> bool:
    """Refuse a key from now on; False when it was revoked before."""
    known = {key.id: key for key in list_keys(connection)}
    if key_id not in known:
        hint = did_you_mean(key_id, list(known)) or " `valkyrie admin key list` shows them."
        raise UnknownError(f"No key has the id {key_id[:80]!r}.{hint}")
    if known[key_id].revoked_at is not None:
        return False
    connection.execute(update(api_key).where(api_key.c.id == key_id).values(revoked_at=now))
    return True


def _hash(clear: str) -> str:
    # 256 random bits cannot be guessed, however fast one hashes: a slow hash, made for passwords, would only
    # slow every request down.
    return hashlib.sha256(clear.encode()).hexdigest()


def _checked(what: str, text: str, longest: int) -> str:
    text = text.strip()
    if not text or not text.isprintable() or len(text) > longest:
        raise UsageError(f"{text[:80]!r} cannot be {what}: 1 to {longest} printable characters.")
    return text


def _org(row: Row[Any]) -> Org:
    return Org(row.id, row.name, row.tenant, row.created_at, row.settings, row.sealed)


def _api_key(row: Row[Any]) -> ApiKey:
    values = {one.name: getattr(row, one.name) for one in fields(ApiKey)}
    return ApiKey(**{**values, "role": Role(row.role)})


# Who did what: one row for each operation that changes something, kept after its subject is gone.

MOST_ACTIONS = 1_000_000
"""The oldest are forgotten beyond so many."""
_FORGET_EVERY = 1000
ActionOutcome = Literal["done", "refused", "failed"]


@dataclass(frozen=True, slots=True)
class Action:
    """One thing somebody did, or tried to."""

    id: int
    at: float
    org: str
    person: str | None
    key_id: str | None
    """None for what was typed on the tracker's own machine."""
    name: str
    """The operation, such as `runs_start`."""
    subject: str | None
    """The run, job, agent, secret or key it was done to."""
    outcome: str | None
    """`done`, `refused`, `failed`, or None where it was interrupted."""


def record_action(
    connection: Connection,
    who: Identity,
    name: str,
    subject: str | None = None,
    outcome: ActionOutcome | None = None,
) -> int:
    """Write down that somebody begins an operation, and return the number to settle it with."""
    values = {"at": time.time(), "org_id": who.org_id, "person": who.person, "key_id": who.key_id}
    made = connection.execute(
        insert(action).values(**values, name=name, subject=subject, outcome=outcome).returning(action.c.id)
    )
    number = int(made.scalar_one())
    if number % _FORGET_EVERY == 0:
        connection.execute(delete(action).where(action.c.id <= number - MOST_ACTIONS))
    return number


def settle_action(
    connection: Connection, number: int, outcome: ActionOutcome, subject: str | None = None
) -> None:
    """Write down how an operation ended, and what it made if that was not known before."""
    changes: dict[str, object] = {"outcome": outcome}
    if subject is not None:
        changes["subject"] = subject
    connection.execute(update(action).where(action.c.id == number).values(**changes))


def list_actions(
    connection: Connection,
    *,
    org_id: str | None = None,
    person: str | None = None,
    subject: str | None = None,
    since: float | None = None,
    limit: int = 100,
) -> Sequence[Action]:
    """Return what was done, newest first; `subject` is one's beginning, as ids are often cut."""
    wanted = select(action, org.c.name.label("org")).outerjoin(org, org.c.id == action.c.org_id)
    if org_id is not None:
        wanted = wanted.where(action.c.org_id == org_id)
    if person is not None:
        wanted = wanted.where(action.c.person == person)
    if subject is not None:
        wanted = wanted.where(action.c.subject.startswith(subject, autoescape=True))
    if since is not None:
        wanted = wanted.where(action.c.at >= since)
    rows = connection.execute(wanted.order_by(action.c.id.desc()).limit(limit))
    return [
        Action(
            row.id, row.at, row.org or row.org_id, row.person, row.key_id, row.name, row.subject, row.outcome
        )
        for row in rows
    ]


# Secrets of organisations, kept encrypted.
#
# Whoever reads the database alone learns names and lengths, nothing else.

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
    new = insert_or(connection, secret).values(org_id=org_id, name=name, **values)
    connection.execute(new.on_conflict_do_update(index_elements=["org_id", "name"], set_=values))


def get_secret(connection: Connection, sealer: Sealer, org_id: str, name: str) -> str | None:
    wanted = select(secret.c.sealed).where(secret.c.org_id == org_id, secret.c.name == name)
    sealed = connection.execute(wanted).scalar_one_or_none()
    return sealer.open(sealed, _about(org_id, name))[_VALUE] if sealed is not None else None


def list_secrets(connection: Connection, org_id: str) -> Sequence[SecretView]:
    columns = (secret.c.name, secret.c.created_at, secret.c.created_by)
    wanted = select(*columns).where(secret.c.org_id == org_id).order_by(secret.c.name)
    return [SecretView(row.name, row.created_at, row.created_by) for row in connection.execute(wanted)]


def remove_secret(connection: Connection, org_id: str, name: str) -> None:
    gone = connection.execute(delete(secret).where(secret.c.org_id == org_id, secret.c.name == name))
    if not gone.rowcount:
        known = [one.name for one in list_secrets(connection, org_id)]
        hint = did_you_mean(name, known) or f" Stored: {', '.join(known) or 'none'}."
        raise UnknownError(f"No secret is stored as {name[:80]!r}.{hint}")


def _about(org_id: str, name: str) -> str:
    return f"secret:{org_id}:{name}"
