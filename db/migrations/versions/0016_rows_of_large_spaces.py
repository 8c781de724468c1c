"""Rows of studies of large spaces are numbers of combinations, which 32 bits do not hold."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":  # SQLite's integers have 64 bits
        op.alter_column("study_trial", "row", type_=sa.BigInteger())


def downgrade() -> None:
    """Earlier versions refuse such spaces; trials whose rows they cannot hold are gone."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("delete from study_trial where row > 2147483647")
        op.alter_column("study_trial", "row", type_=sa.Integer())
