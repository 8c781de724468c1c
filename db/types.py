"""Column types that mean the same on SQLite and PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Integer
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import TypeDecorator

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
