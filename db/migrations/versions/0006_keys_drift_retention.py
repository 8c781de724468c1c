"""Drivers and authors of measurements."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

AUTHORS = ("tuning_run", "measurement")
AUTHOR_INDEX = "ix_measurement_created_by_log"


def upgrade() -> None:
    op.create_table(
        "driver",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_driver")),
        sa.UniqueConstraint("name", name=op.f("uq_driver_name")),
    )
    _add_reference("measurement", "driver_id", "driver")
    for table in AUTHORS:
        op.add_column(table, sa.Column("created_by", sa.String(length=64), nullable=True))
    op.add_column("tuning_run", sa.Column("cause", sa.String(length=8), nullable=True))
    known = sa.text("created_by is not null")
    op.create_index(
        AUTHOR_INDEX, "measurement", ["created_by", "measured_at", "id"],
        sqlite_where=known, postgresql_where=known,
    )  # fmt: skip


def downgrade() -> None:
    op.drop_index(AUTHOR_INDEX, "measurement")
    op.drop_column("tuning_run", "cause")
    for table in AUTHORS:
        op.drop_column(table, "created_by")
    _drop_reference("measurement", "driver_id", "driver")
    op.drop_table("driver")


def _is_sqlite() -> bool:
    return bool(op.get_bind().dialect.name == "sqlite")


def _add_reference(table: str, column: str, target: str) -> None:
    """Add a column that refers to a table; in place, as a copy would lose its triggers."""
    name = f"fk_{table}_{column}_{target}"
    if _is_sqlite():
        op.execute(
            f"alter table {table} add column {column} integer "
            f"constraint {name} references {target} (id)"
        )
        return
    op.add_column(table, sa.Column(column, sa.Integer(), nullable=True))
    op.create_foreign_key(op.f(name), table, target, [column], ["id"])


def _drop_reference(table: str, column: str, target: str) -> None:
    if _is_sqlite():
        op.execute(f"alter table {table} drop column {column}")
        return
    op.drop_constraint(op.f(f"fk_{table}_{column}_{target}"), table, type_="foreignkey")
    op.drop_column(table, column)
