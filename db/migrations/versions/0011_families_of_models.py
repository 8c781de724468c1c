"""Cost models are of a kernel and a family of devices: all CPUs, or GPUs of one architecture."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

TABLE, INDEX = "model_version", "ix_model_version_active"


def upgrade() -> None:
    op.add_column(
        TABLE, sa.Column("family", sa.String(length=32), server_default="cpu", nullable=False)
    )
    _index(["kernel", "family"])


def downgrade() -> None:
    """Retire the models of GPUs: earlier versions know one of each kernel."""
    op.execute(f"update {TABLE} set state = 'retired' where family <> 'cpu' and state = 'active'")
    _index(["kernel"])
    op.drop_column(TABLE, "family")


def _index(columns: list[str]) -> None:
    is_active = sa.text("state = 'active'")
    op.drop_index(INDEX, table_name=TABLE)
    op.create_index(
        INDEX, TABLE, columns, unique=True, sqlite_where=is_active, postgresql_where=is_active
    )
