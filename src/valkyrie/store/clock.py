"""Whose clock counts: executors on several hosts share the database's, whatever theirs say."""

from __future__ import annotations

import time

from sqlalchemy import Connection, Float, literal_column, select

CLOCK = literal_column("extract(epoch FROM clock_timestamp())::float8", Float)
"""PostgreSQL's clock, inside a statement."""
_NOW = select(CLOCK)
_MEASURED_FOR_S = 30.0
_NOISE_S = 0.1
"""What asking for the time may take: clocks nearer to each other than this are taken to agree."""
_KEY = "clock_skew"


def now(connection: Connection) -> float:
    """The store's clock: PostgreSQL's own; on SQLite, whose users share a machine, this machine's."""
    if connection.dialect.name != "postgresql":
        return time.time()
    return float(connection.execute(_NOW).scalar_one())


def skew(connection: Connection) -> float:
    """How many seconds the store's clock is ahead of this machine's; measured now and then."""
    if connection.dialect.name != "postgresql":
        return 0.0
    measured: tuple[float, float] | None = connection.info.get(_KEY)
    if measured is None or time.monotonic() - measured[0] > _MEASURED_FOR_S:
        ahead = now(connection) - time.time()
        measured = (time.monotonic(), ahead if abs(ahead) > _NOISE_S else 0.0)
        connection.info[_KEY] = measured
    return measured[1]
