"""Cost models are of a kernel and a family of devices: all CPUs, or GPUs of one architecture."""

from __future__ import annotations

import re

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

TABLE, INDEX = "model_version", "ix_model_version_active"
GPU = re.compile("((?:emulated-)?(?:sm_|gfx)[0-9a-z]+)-")


def upgrade() -> None:
    op.add_column(
        TABLE, sa.Column("family", sa.String(length=32), server_default="cpu", nullable=False)
    )
    _name_families()
    _index(["kernel", "family"])


def _name_families() -> None:
    """Give models of GPUs, which are here where this was gone back on before, their family again.

    Their schema names it (``recommender.families``).
    """
    connection = op.get_bind()
    models = sa.table(TABLE, *(sa.column(n) for n in ("id", "family", "feature_schema")))
    for number, schema in connection.execute(sa.select(models.c.id, models.c.feature_schema)).all():
        if found := GPU.match(schema):
            is_it = models.c.id == number
            connection.execute(sa.update(models).where(is_it).values(family=found[1]))


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
