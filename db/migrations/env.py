"""Alembic's entry point: migrates the connection that db.migrate hands over."""

from __future__ import annotations

from alembic import context
from sqlalchemy import text

import db.service_models  # noqa: F401  its tables belong to the metadata
from db.models import Base

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    compare_type=True,
    compare_server_default=True,
    render_as_batch=connection.dialect.name == "sqlite",
    transaction_per_migration=False,
)
if connection.dialect.name == "postgresql":  # a second migrator waits for the first
    connection.execute(text("select pg_advisory_xact_lock(746152)"))
context.run_migrations()
