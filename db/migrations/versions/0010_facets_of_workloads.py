"""Which facets each workload has an OK measurement of: who asks for winners need not search."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

TABLE = "workload_facet"


def upgrade() -> None:
    op.create_table(
        TABLE,
        sa.Column("workload_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("facet_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.ForeignKeyConstraint(
            ["workload_id"], ["workload.id"], name=op.f(f"fk_{TABLE}_workload_id_workload")
        ),
        sa.ForeignKeyConstraint(
            ["facet_id"], ["facet.id"], name=op.f(f"fk_{TABLE}_facet_id_facet")
        ),
        sa.PrimaryKeyConstraint("workload_id", "facet_id", name=op.f(f"pk_{TABLE}")),
        sqlite_with_rowid=False,
    )
    op.execute(
        f"insert into {TABLE} (workload_id, facet_id) "
        "select distinct workload_id, facet_id from measurement "
        "where time_s is not null and facet_id is not null order by workload_id, facet_id"
    )


def downgrade() -> None:
    op.drop_table(TABLE)
