"""Idempotency keys of API keys and cost models."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

import db.types

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "idempotency",
        sa.Column("what", sa.String(length=16), nullable=False),
        sa.Column("key", sa.String(length=128), nullable=False),
        sa.Column("body_hash", sa.String(length=32), nullable=False),
        sa.Column("made", sa.String(length=64), nullable=False),
        sa.Column("created_at", db.types.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("what", "key", name=op.f("pk_idempotency")),
    )


def downgrade() -> None:
    op.drop_table("idempotency")
