"""The index of a workload's times holds no failures: who asks for winners walks past none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

NAME = "ix_measurement_workload_times"
COLUMNS = ["workload_id", "facet_id", "time_s", "id", "program_id"]
HAS_TIME = sa.text("time_s is not null")


def upgrade() -> None:
    op.drop_index(NAME, "measurement")
    op.create_index(NAME, "measurement", COLUMNS, sqlite_where=HAS_TIME, postgresql_where=HAS_TIME)


def downgrade() -> None:
    op.drop_index(NAME, "measurement")
    op.create_index(NAME, "measurement", COLUMNS)
