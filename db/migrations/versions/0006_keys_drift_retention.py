"""Drivers and authors of measurements; drifts; compaction; uploaded models; a name."""

from __future__ import annotations

import uuid
from typing import Any

import sqlalchemy as sa
from alembic import op

import db.types

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

SUBJECT = ("workload", "hardware", "program", "toolchain")
MODEL_COLUMNS: tuple[sa.Column[Any], ...] = (
    sa.Column("origin", sa.String(length=16), server_default="trained", nullable=False),
    sa.Column("created_by", sa.String(length=64), nullable=True),
    sa.Column("reason", sa.Text(), nullable=True),
)
GUARDED = ("measurement", "measurement_sample")
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
    for column in MODEL_COLUMNS:
        op.add_column("model_version", column.copy())
    _create_installation()
    _create_drift()
    _create_compaction()
    _guard(" when not exists (select 1 from compaction where is_open)")


def downgrade() -> None:
    op.drop_table("installation")
    _guard("")
    op.drop_table("compacted")
    op.drop_table("compaction")
    op.drop_table("drift")
    for column in MODEL_COLUMNS:
        op.drop_column("model_version", column.name)
    op.drop_index(AUTHOR_INDEX, "measurement")
    op.drop_column("tuning_run", "cause")
    for table in AUTHORS:
        op.drop_column(table, "created_by")
    _drop_reference("measurement", "driver_id", "driver")
    op.drop_table("driver")


def _create_drift() -> None:
    op.create_table(
        "drift",
        sa.Column("id", sa.Integer(), nullable=False),
        *(_reference("drift", name) for name in SUBJECT),
        sa.Column("since", db.types.UtcDateTime(), nullable=False),
        sa.Column("ratio", sa.Double(), nullable=False),
        sa.Column("explanation", sa.Text(), nullable=False),
        sa.Column("found_at", db.types.UtcDateTime(), nullable=False),
        sa.Column("ended_at", db.types.UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_drift")),
    )
    columns = [f"{name}_id" for name in SUBJECT]
    op.create_index("ix_drift_subject", "drift", [*columns, "since"])
    is_open = sa.text("ended_at is null")
    op.create_index(
        "ix_drift_open", "drift", columns, unique=True,
        sqlite_where=is_open, postgresql_where=is_open,
    )  # fmt: skip


def _create_installation() -> None:
    made = op.create_table(
        "installation",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_installation")),
    )
    op.bulk_insert(made, [{"id": 1, "key": uuid.uuid4().hex}])


def _create_compaction() -> None:
    op.create_table(
        "compaction",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", db.types.UtcDateTime(), nullable=False),
        sa.Column("created_by", sa.String(length=64), nullable=True),
        sa.Column("policy", db.types.JsonValue, nullable=False),
        sa.Column("removed", sa.Integer(), server_default="0", nullable=False),
        sa.Column("is_open", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_compaction")),
    )
    op.create_table(
        "compacted",
        sa.Column("id", db.types.BigId, nullable=False),
        *(_reference("compacted", name) for name in ("workload", "program", "facet")),
        sa.Column("cause", sa.String(length=200), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("first_at", db.types.UtcDateTime(), nullable=False),
        sa.Column("last_at", db.types.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_compacted")),
        sa.UniqueConstraint(
            "workload_id", "program_id", "facet_id", "cause",
            name=op.f("uq_compacted_workload_id_program_id_facet_id_cause"),
        ),
    )  # fmt: skip


def _reference(table: str, target: str) -> sa.Column[int]:
    name = op.f(f"fk_{table}_{target}_id_{target}")
    refers = sa.ForeignKey(f"{target}.id", name=name)
    return sa.Column(f"{target}_id", sa.Integer(), refers, nullable=False)


def _guard(unless: str) -> None:
    """Let the triggers of SQLite refuse to delete measurements, with this condition."""
    if not _is_sqlite():
        return
    for table in GUARDED:
        op.execute(f"drop trigger {table}_no_delete")
        op.execute(
            f"create trigger {table}_no_delete before delete on {table}{unless} "
            f"begin select raise(abort, '{table} is append-only'); end"
        )


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
