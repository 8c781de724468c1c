"""API keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

import db.types

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_key",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("prefix", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=8), nullable=False),
        sa.Column("created_at", db.types.UtcDateTime(), nullable=False),
        sa.Column("expires_at", db.types.UtcDateTime(), nullable=True),
        sa.Column("revoked_at", db.types.UtcDateTime(), nullable=True),
        sa.CheckConstraint("role in ('read', 'tune', 'admin')", name=op.f("ck_api_key_role")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_key")),
        sa.UniqueConstraint("digest", name=op.f("uq_api_key_digest")),
        sa.UniqueConstraint("prefix", name=op.f("uq_api_key_prefix")),
    )


def downgrade() -> None:
    op.drop_table("api_key")
