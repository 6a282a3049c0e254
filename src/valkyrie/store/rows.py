"""One statement for many rows, on either database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Table,
    bindparam,
    column,
    func,
    insert,
    select,
)
from sqlalchemy.types import TypeEngine

Given = Mapping[str, ColumnElement[Any]]
"""What a row brings, by name."""
Types = Mapping[str, TypeEngine[Any]]


class ForEach:
    """A statement for each of many rows: one after the other on SQLite, all in one on PostgreSQL.

    There a chain of statements would leave the server waiting for the next, with every lock held, when this
    process is suspended in the middle of it, and none of the server's timeouts would end that.
    """

    def __init__(self, types: Types, made: Callable[[Given], Any], each: Any = None) -> None:
        self._types = types
        self._made = made
        if each is None:
            each = made({name: bindparam(name, type_=type_) for name, type_ in types.items()})
        self._each = each

    @classmethod
    def insert(cls, table: Table, *columns: Column[Any]) -> ForEach:
        """An insert of rows with these columns."""
        types = {one.name: one.type for one in columns}
        return cls(
            types,
            lambda given: insert(table).from_select(list(types), select(*given.values())),
            insert(table),
        )

    @cached_property
    def _all(self) -> Any:
        return self._made(_unnested(self._types))

    def execute(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> int:
        """Do it; how many rows it found."""
        if connection.dialect.name != "postgresql":
            return connection.execute(self._each, list(rows)).rowcount
        arrays = {name: [row[name] for row in rows] for name in self._types}
        return connection.execute(self._all, arrays).rowcount


def _unnested(types: Types) -> Given:
    """A row's values as columns of a table that is made of arrays."""
    from sqlalchemy.dialects.postgresql import ARRAY

    arrays = [bindparam(name, type_=ARRAY(type_, dimensions=1)) for name, type_ in types.items()]
    columns = [column(name, type_) for name, type_ in types.items()]
    given = func.unnest(*arrays).table_valued(*columns).render_derived(name="given")
    return {name: given.c[name] for name in types}
