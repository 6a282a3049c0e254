"""One statement for many rows, on either database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Table,
    Update,
    bindparam,
    column,
    func,
    insert,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import TypeEngine

Given = Mapping[str, ColumnElement[Any]]
"""What a row brings, by name."""
Types = Mapping[str, TypeEngine[Any]]


class ForEach:
    """A statement for each of many rows: one after the other on SQLite, all in one on PostgreSQL.

    There a chain of statements would leave the server waiting for the next, with every lock held, when this
    process is suspended in the middle of it, and none of the server's timeouts would end that.
    """

    def __init__(self, types: Types, update: Callable[[Given], Update]) -> None:
        self._names = list(types)
        self._each: Any = update({name: bindparam(name, type_=type_) for name, type_ in types.items()})
        self._all: Any = update(_unnested(types))

    @classmethod
    def insert(cls, table: Table, *columns: Column[Any]) -> ForEach:
        """An insert of rows with these columns."""
        made = cls.__new__(cls)
        types = {one.name: one.type for one in columns}
        made._names = list(types)
        made._each = insert(table)
        made._all = insert(table).from_select(made._names, select(*_unnested(types).values()))
        return made

    def execute(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> int:
        """Do it; how many rows it found."""
        if connection.dialect.name != "postgresql":
            return connection.execute(self._each, list(rows)).rowcount
        arrays = {name: [row[name] for row in rows] for name in self._names}
        return connection.execute(self._all, arrays).rowcount


def _unnested(types: Types) -> Given:
    """A row's values as columns of a table that is made of arrays."""
    arrays = [bindparam(name, type_=ARRAY(type_, dimensions=1)) for name, type_ in types.items()]
    columns = [column(name, type_) for name, type_ in types.items()]
    given = func.unnest(*arrays).table_valued(*columns).render_derived(name="given")
    return {name: given.c[name] for name in types}
