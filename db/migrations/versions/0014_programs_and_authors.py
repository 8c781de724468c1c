"""The log in order within each program and each author: both are what users filter it by."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

TABLE = "measurement"
OLD = "ix_measurement_created_by_log"
BY_TIME = ["workload_id", "facet_id", "time_s", "id", "program_id"]
REST = ["id", "facet_id", "workload_id"]
AUTHOR, TIME = "created_by is not null", "time_s is not null"


def upgrade() -> None:
    op.drop_index(OLD, TABLE)
    _of_workloads([*BY_TIME, "created_by"])
    _create("program_log", ["program_id", "measured_at"], "")
    _create("program_times", ["program_id", "time_s"], TIME)
    _create("created_by_log", ["created_by", "measured_at"], AUTHOR)
    _create("created_by_times", ["created_by", "time_s"], f"{AUTHOR} and {TIME}")


def downgrade() -> None:
    for name in ("program_log", "program_times", "created_by_log", "created_by_times"):
        op.drop_index(f"ix_measurement_{name}", TABLE)
    _of_workloads(BY_TIME)
    where = sa.text(AUTHOR)
    op.create_index(
        OLD, TABLE, ["created_by", "measured_at", "id"], sqlite_where=where, postgresql_where=where
    )


def _of_workloads(columns: list[str]) -> None:
    op.drop_index("ix_measurement_workload_times", TABLE)
    where = sa.text(TIME)
    op.create_index(
        "ix_measurement_workload_times", TABLE, columns, sqlite_where=where, postgresql_where=where
    )


def _create(name: str, columns: list[str], where: str) -> None:
    condition = sa.text(where) if where else None
    op.create_index(
        f"ix_measurement_{name}", TABLE, columns + REST,
        sqlite_where=condition, postgresql_where=condition,
    )  # fmt: skip
