"""Schema changes, one file each in `versions/`. Imported only when a database must be migrated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from valkyrie.errors import StoreError
from valkyrie.store import REVISION
from valkyrie.store.schema import StoredText, metadata

HERE = Path(__file__).parent


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(HERE))
    config.set_main_option("path_separator", "os")
    return config


def known_revisions() -> set[str]:
    """Every schema this program can migrate from."""
    return {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}


def check_known(found: str, place: str) -> None:
    """Refuse a schema this program has never heard of."""
    if found not in known_revisions():
        raise StoreError(
            f"{place} was written by a newer Valkyrie (schema {found}; this program knows up to "
            f"{REVISION}). Upgrade Valkyrie, or point it at another database."
        )


def steps(found: str | None) -> list[tuple[str, str]]:
    """What a database at `found` has before it: (revision, what it brings), in order."""
    scripts = ScriptDirectory.from_config(_config())
    newest_first = list(scripts.iterate_revisions("head", found or "base"))
    return [(script.revision, script.doc) for script in reversed(newest_first)]


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Bring the database to `revision`, in the transaction that is open."""
    command.upgrade(_on(connection), revision)


def downgrade(connection: Connection, revision: str) -> None:
    """Take the database back to `revision`, in the transaction that is open."""
    command.downgrade(_on(connection), revision)


def differences(connection: Connection) -> list[str]:
    """In what the database differs from this program's schema, in words."""
    options = {"compare_type": True, "include_object": _is_compared}
    context = MigrationContext.configure(connection, opts=options)
    return [_in_words(one) for one in compare_metadata(context, metadata)] + _collations(connection)


def _collations(connection: Connection) -> list[str]:
    """Columns whose text has another order than this program counts on."""
    if connection.dialect.name != "postgresql":
        return []
    found = {(row.table_name, row.column_name) for row in connection.execute(_IN_ORDER_OF_CHARACTERS)}
    wanted = [
        (table.name, column.name)
        for table in metadata.sorted_tables
        for column in table.columns
        if getattr(column.type.dialect_impl(connection.dialect), "collation", None)
        or isinstance(column.type, StoredText)
    ]
    return [f"collate {table}.{column}" for table, column in wanted if (table, column) not in found]


_IN_ORDER_OF_CHARACTERS = text(
    "SELECT table_name, column_name FROM information_schema.columns"
    " WHERE table_schema = current_schema() AND collation_name = 'C'"
)


def _is_compared(_object: object, name: str | None, *_more: object) -> bool:
    return name != "alembic_version"


def _in_words(difference: Any) -> str:
    """`add_column trial.cost`: what would have to be done."""
    if isinstance(difference, list):
        return "; ".join(_in_words(one) for one in difference)
    what, *details = difference
    names = [getattr(one, "name", one) for one in details if one is not None and not isinstance(one, dict)]
    table = getattr(getattr(details[0], "table", None), "name", None)
    return f"{what} {'.'.join(str(name) for name in [table, *names] if name)}"


def _on(connection: Connection) -> Config:
    config = _config()
    config.attributes["connection"] = connection
    return config
