"""Programs that came as data."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

import db.types

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tile_program",
        sa.Column("id", db.types.BigId, nullable=False),
        sa.Column("digest", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("created_by", sa.String(length=64), nullable=False),
        sa.Column("created_at", db.types.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tile_program")),
        sa.UniqueConstraint("digest", name=op.f("uq_tile_program_digest")),
    )


def downgrade() -> None:
    op.drop_table("tile_program")
