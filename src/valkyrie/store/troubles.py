"""What a database or disk complains of: in words a person can act on, and whether it is worth waiting for."""

from __future__ import annotations

from sqlalchemy.exc import (
    DatabaseError,
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    TimeoutError,
)

from valkyrie.errors import StoreError, UsageError, ValkyrieError
from valkyrie.store.address import Address

AWAY = "store_away"
"""The cause of a StoreError that may be gone in a moment."""

_OF_A_CALLER = (IntegrityError, DataError, ProgrammingError, NotSupportedError)
_CLASHED = ("40001", "40P01")
"""Serialisation failure, deadlock: nothing was written, and nothing is wrong."""
_PASSING = ("08", "53300", "55P03", "57014", "57P")
"""Connections that break or are too many, locks and statements that take too long, a server that restarts."""
_DISK_FULL = ("53100",)
_TOO_LARGE = "54"
"""What one row or statement may not be."""


def of_the_store(error: BaseException) -> bool:
    """Whether database or disk failed; anything else is the trouble of one caller and what it wrote."""
    if isinstance(error, DBAPIError) and not error.connection_invalidated:
        too_large = (_sqlstate(error) or "").startswith(_TOO_LARGE)
        if too_large or isinstance(error, _OF_A_CALLER):
            return False
    return isinstance(error, DatabaseError | InterfaceError | TimeoutError | OSError)


def clashed(error: BaseException) -> bool:
    """Two transactions were in each other's way, and this one gave way."""
    return _sqlstate(error) in _CLASHED


def passing(error: BaseException) -> bool:
    """Whether the same may well succeed in a while: another program holds the lock, the server restarts."""
    if isinstance(error, TimeoutError) or clashed(error):
        return True
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    if not _is_postgres(error):
        return isinstance(error, OperationalError) and "locked" in str(error.orig).lower()
    state = _sqlstate(error)
    if state is None:
        return isinstance(error, OperationalError) and not _is_refusal(error)
    return state.startswith(_PASSING)


def explain(error: BaseException, address: Address) -> ValkyrieError:
    """A driver's or disk's complaint as one a person can act on."""
    place, words = address.place, str(error).lower()
    if isinstance(error, DataError | OverflowError):
        return UsageError(f"A value is more than the store can keep: {first_line(error)}.")
    if "disk is full" in words or "no space left" in words or _sqlstate(error) in _DISK_FULL:
        return StoreError(
            f"The disk that holds {place} is full. Free some space, then try again: "
            "`valk disk` shows where the bytes are.",
            cause="disk_full",
        )
    if address.kind == "postgresql":
        return _explain_postgres(error, place)
    if "readonly" in words or "permission denied" in words or "unable to open" in words:
        return StoreError(f"Cannot write {place}: {first_line(error)}. Check its folder's permissions.")
    if "malformed" in words or "not a database" in words:
        return StoreError(
            f"{place} is damaged: {first_line(error)}. Move it away to begin anew; "
            "`sqlite3 FILE .recover` may save what is in it."
        )
    if isinstance(error, OperationalError) and "locked" in words:
        return StoreError(f"{place} stays locked by another program.", cause=AWAY)
    return StoreError(f"The database {place} failed: {first_line(error)}")


def _explain_postgres(error: BaseException, place: str) -> StoreError:
    if isinstance(error, TimeoutError):
        return StoreError(f"Too many want to speak to {place} at once; try again.", cause=AWAY)
    if clashed(error):
        return StoreError(f"Another change of {place} came first; try again.", cause=AWAY)
    if isinstance(error, OperationalError) and _is_refusal(error):
        return StoreError(f"{place} does not let us in: {first_line(error)}. Check VALKYRIE_DATABASE_URL.")
    if passing(error):
        return StoreError(
            f"{place} does not answer: {first_line(error)}. "
            "Check that PostgreSQL runs there, and VALKYRIE_DATABASE_URL.",
            cause=AWAY,
        )
    return StoreError(f"The database {place} failed: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """What the driver said, without the statement it said it of."""
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _sqlstate(error: BaseException) -> str | None:
    return getattr(getattr(error, "orig", None), "sqlstate", None)


def _is_postgres(error: DBAPIError) -> bool:
    return type(error.orig).__module__.startswith("psycopg")


def _is_refusal(error: OperationalError) -> bool:
    """A server that answers, and will answer the same again: wrong password, no such database.

    PostgreSQL's client library gives no code for what went wrong while it connected.
    """
    words = str(error.orig)
    return any(
        sign in words
        for sign in (
            "authentication failed",
            "no password supplied",
            "no pg_hba.conf entry",
            "does not exist",
            "permission denied",
        )
    )
