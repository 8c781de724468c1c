"""Column types that mean the same on SQLite and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    DateTime,
    Dialect,
    Integer,
    Text,
    any_,
    bindparam,
    cast,
    func,
    select,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import TypeDecorator, TypeEngine

JsonValue = JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
BigId = BigInteger().with_variant(Integer, "sqlite")  # only INTEGER autoincrements on SQLite


class UtcDateTime(TypeDecorator[datetime]):
    """A point in time; naive datetimes are refused, results carry UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Return the value as the database stores it."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"expected a datetime with a time zone, found {value!r}")
        utc = value.astimezone(UTC)
        return utc if dialect.name == "postgresql" else utc.replace(tzinfo=None)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Return the stored value with its time zone."""
        if value is None or value.tzinfo is not None:
            return value  # type: ignore[no-any-return]
        return value.replace(tzinfo=UTC)  # type: ignore[no-any-return]

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        """Return what makes points in time of stored values.

        SQLite's texts are read with their zone: ``replace`` takes eight times as long.
        """
        return _read_utc if dialect.name == "sqlite" else super().result_processor(dialect, coltype)


def _read_utc(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(f"{text}+00:00")


class Ids(TypeDecorator[Sequence[int]]):
    """Any number of ids as one value of a statement: an array, or JSON in SQLite."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type that the database knows."""
        return postgresql.ARRAY(BigInteger()) if dialect.name == "postgresql" else Text()

    def process_bind_param(self, value: Sequence[int] | None, dialect: Dialect) -> Any:
        """Return the ids as the database takes them."""
        if value is None:
            return None
        return list(value) if dialect.name == "postgresql" else json.dumps(list(value))


def is_among(column: ColumnElement[int], name: str, dialect: str) -> ColumnElement[bool]:
    """Return the condition that a column is one of the ids bound as ``name``, however many.

    A list of places would make a statement per length: PostgreSQL plans each anew, and psycopg
    keeps nothing that it made of one with more than 50 places.
    """
    ids = bindparam(name, type_=Ids())
    if dialect == "sqlite":
        return column.in_(select(func.json_each(ids).table_valued("value").c.value))
    found: ColumnElement[bool] = column == any_(ids)
    return found


def place_among(column: ColumnElement[int], name: str, dialect: str) -> ColumnElement[int]:
    """Return the place of a column among the ids bound as ``name``, counted from 0; else null."""
    ids = bindparam(name, type_=Ids())
    if dialect == "sqlite":
        each = func.json_each(ids).table_valued("key", "value").c
        return select(each.key).where(each.value == column).scalar_subquery()
    found: ColumnElement[int] = func.array_position(ids, cast(column, BigInteger)) - 1
    return found
