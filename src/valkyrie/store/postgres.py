"""The store on a PostgreSQL server: many processes on many hosts, each with a few connections."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, create_engine, event, select, text

from sandboxes.retry import Retries
from valkyrie.errors import StoreError
from valkyrie.store import REVISION, schema
from valkyrie.store.counters import CHANNEL
from valkyrie.store.database import BACKOFF, Address, Database, create, dumps

READERS, WRITERS = (5, 15), (2, 8)
"""Connections that are kept, and how many more there may be for a moment."""
CONNECTING = {
    "application_name": "valkyrie",
    "connect_timeout": "10",
    # A host that vanished without a word is given up within a minute.
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
READING = {
    "default_transaction_isolation": "repeatable read",
    "default_transaction_read_only": "on",
    "statement_timeout": "60s",
    # Results are read while they are sent on, and who takes them may be slow.
    "idle_in_transaction_session_timeout": "10min",
}
WRITING = {
    # A plan that was good for a small table would be kept while the table grows.
    "plan_cache_mode": "force_custom_plan",
    "default_transaction_isolation": "read committed",
    "statement_timeout": "60s",
    "lock_timeout": "20s",
    # A process that was suspended in the middle of a transaction must not hold up all others.
    "idle_in_transaction_session_timeout": "5s",
    "transaction_timeout": "5min",
}
ALIVE = {"tcp_keepalives_idle": "20", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}
"""That a host of ours vanished is to be noticed by the server as well: it may hold locks."""
_SINCE = {"transaction_timeout": 170000}
"""What older servers do not know."""
_WITHOUT = text("SELECT set_config(:name, '0', true) WHERE current_setting(:name, true) IS NOT NULL")
_UPGRADE_LOCK = 0x76616C6B
_TABLES = text(
    "SELECT to_regclass('alembic_version') IS NOT NULL, count(*) "
    "FROM pg_tables WHERE schemaname = current_schema()"
)
_LIVING = text(
    "SELECT host, pid FROM executor "
    "WHERE ended_at IS NULL AND expires_at > extract(epoch FROM clock_timestamp()) ORDER BY host, pid"
)
"""As it could be asked of every schema so far."""


class PostgresDatabase(Database):
    """One database of a server."""

    own_transactions = True

    def __init__(self, address: Address) -> None:
        schema.trial_held.dialect_options["postgresql"]["where"] = schema.HELD
        reader = _engine(address, {**ALIVE, **READING}, READERS)
        super().__init__(address, reader, _engine(address, {**ALIVE, **WRITING}, WRITERS))

    def revision(self) -> str | None:
        with self.reader.connect() as connection:
            return self._revision(connection)

    def _revision(self, connection: Connection) -> str | None:
        versioned, tables = connection.execute(_TABLES).one()
        if versioned:
            return connection.execute(select(schema.alembic_version.c.version_num)).scalar()
        if tables:
            raise StoreError(
                f"{self.address.place} has tables, but not Valkyrie's. Give Valkyrie a database of its own "
                "(`createdb NAME`)."
            )
        return None

    def reclaimable(self) -> int:
        return 0  # the server itself uses again what rows left

    def give_back(self) -> None:
        """Its own autovacuum does."""

    def compact(self) -> None:
        with self.explained(), self.writer.connect() as connection:
            alone = connection.execution_options(isolation_level="AUTOCOMMIT")
            alone.execute(text("SET statement_timeout = 0"))
            for table in schema.metadata.sorted_tables:
                alone.execute(text(f'VACUUM (ANALYZE) "{table.name}"'))
            alone.execute(text("RESET statement_timeout"))

    def bring_up(self, *, automatic: bool) -> list[str]:
        with self.writer.begin() as connection:
            for name in ("statement_timeout", "lock_timeout", "transaction_timeout"):
                connection.execute(_WITHOUT, {"name": name})
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_UPGRADE_LOCK})"))
            connection.execute(text("SET LOCAL lock_timeout = '60s'"))
            found = self._revision(connection)
            if found is None:
                create(connection)
                return [f"made schema {REVISION} in {self.address.place}"]
            if found == REVISION:
                return []
            return self._migrate(connection, found, automatic=automatic)

    def _migrate(self, connection: Connection, found: str, *, automatic: bool) -> list[str]:
        from valkyrie.store import migrations  # with it alembic, 100 ms, only to migrate

        migrations.check_known(found, self.address.place)
        if living := connection.execute(_LIVING).all():
            names = ", ".join(f"{row.pid} on {row.host}" for row in living[:5])
            then = "then `valkyrie db upgrade`" if automatic else "then try again"
            raise StoreError(
                f"{self.address.place} has schema {found}, this program needs {REVISION}, and "
                f"executors of the older one are at work: process {names}. Drain them (SIGTERM), {then}."
            )
        migrations.upgrade(connection)
        return [f"migrated schema {found} to {REVISION} in {self.address.place}"]

    def changes(self, interval: float, at_least_every: float) -> Iterator[None]:
        """On a connection of its own; one that breaks is made anew, and what was missed meanwhile is told."""
        retries = Retries(BACKOFF)
        while True:
            try:
                # Before the first look: what is written after it was heard of.
                with closing(self._listen()) as listening:
                    retries.reset()
                    yield
                    yield from _heard(listening, interval, at_least_every)
            except psycopg.OperationalError as error:
                yield
                retries.block(error)

    def _listen(self) -> psycopg.Connection[Any]:
        arguments, options = self.writer.dialect.create_connect_args(self.address.url)
        listening = psycopg.connect(*arguments, **{**_connecting(self.address), **options}, autocommit=True)
        try:
            listening.execute(f"LISTEN {CHANNEL}")
        except BaseException:
            listening.close()
            raise
        return listening


def _heard(listening: psycopg.Connection[Any], interval: float, at_least_every: float) -> Iterator[None]:
    """Whenever something was told, once for all that is told within `interval`."""
    told_at = time.monotonic()
    while True:
        for _ in listening.notifies(timeout=at_least_every, stop_after=1):
            pass
        time.sleep(max(0.0, told_at + interval - time.monotonic()))
        for _ in listening.notifies(timeout=0):
            pass
        told_at = time.monotonic()
        yield


def _connecting(address: Address) -> dict[str, str]:
    return {name: value for name, value in CONNECTING.items() if name not in address.url.query}


def _engine(address: Address, settings: Mapping[str, str], size: tuple[int, int]) -> Engine:
    engine = create_engine(
        address.url,
        hide_parameters=True,  # what is written may be an agent's; it has no place in our error messages
        json_serializer=dumps,
        connect_args=_connecting(address),
        pool_size=size[0],
        max_overflow=size[1],
        pool_timeout=10.0,
        pool_pre_ping=True,
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        server: int = connection.info.server_version
        known = {name: value for name, value in settings.items() if server >= _SINCE.get(name, 0)}
        names = ", ".join("set_config(%s, %s, false)" for _ in known)
        connection.autocommit = True
        connection.execute(f"SELECT {names}", [part for pair in known.items() for part in pair])
        connection.autocommit = False

    return engine
