"""Runs that are paused, extended, grouped and shared; nodes of the cluster."""

from __future__ import annotations

import uuid
from typing import Any

import sqlalchemy as sa
from alembic import op

import db.types

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

OLD_STATES = "state in ('QUEUED', 'RUNNING', 'SUCCEEDED', 'FAILED', 'CANCELLED')"
NEW_STATES = (
    "state in ('QUEUED', 'RUNNING', 'PAUSED', 'WAITING_FOR_HARDWARE', 'SUCCEEDED', 'FAILED', "
    "'CANCELLED')"
)
OLD_UNIQUE = ("run_id", "config_id", "protocol")
NEW_UNIQUE = (*OLD_UNIQUE, "round")
TRIAL_COUNTS = ("round", "losses")
RUN_COLUMNS: tuple[sa.Column[Any], ...] = (
    sa.Column("group_id", sa.String(length=36), nullable=True),
    sa.Column("priority", sa.Integer(), server_default="10", nullable=False),
    sa.Column("ceiling_s", sa.Double(), nullable=True),
    sa.Column("device_s", sa.Double(), server_default="0", nullable=False),
    sa.Column("round", sa.Integer(), server_default="0", nullable=False),
    sa.Column("pause_requested", sa.Boolean(), server_default=sa.false(), nullable=False),
)


def upgrade() -> None:
    for column in RUN_COLUMNS:
        op.add_column("tuning_run", column.copy())
    for name in TRIAL_COUNTS:
        op.add_column("trial", sa.Column(name, sa.Integer(), server_default="0", nullable=False))
    _redefine(OLD_STATES, NEW_STATES, 16, 20, OLD_UNIQUE, NEW_UNIQUE)
    op.create_index("ix_tuning_run_group_id", "tuning_run", ["group_id"])
    op.create_table(
        "node",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("hardware_id", sa.Integer(), nullable=False),
        sa.Column("devices", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("joined_at", db.types.UtcDateTime(), nullable=False),
        sa.Column("seen_at", db.types.UtcDateTime(), nullable=False),
        sa.CheckConstraint(
            "state in ('active', 'draining', 'drained', 'refused', 'lost')",
            name=op.f("ck_node_state"),
        ),
        sa.ForeignKeyConstraint(
            ["hardware_id"], ["hardware.id"], name=op.f("fk_node_hardware_id_hardware")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_node")),
        sa.UniqueConstraint("key", name=op.f("uq_node_key")),
    )
    op.create_index("ix_node_hardware_id_state", "node", ["hardware_id", "state"])


def downgrade() -> None:
    op.drop_table("node")
    op.drop_index("ix_tuning_run_group_id", "tuning_run")
    op.execute(
        "update tuning_run set state = 'QUEUED' where state in ('PAUSED', 'WAITING_FOR_HARDWARE')"
    )
    _split_rounds()
    _redefine(NEW_STATES, OLD_STATES, 20, 16, NEW_UNIQUE, OLD_UNIQUE)
    for name in TRIAL_COUNTS:
        op.drop_column("trial", name)
    for column in RUN_COLUMNS:
        op.drop_column("tuning_run", column.name)


def _split_rounds() -> None:
    """Make a finished run of its own of each confirmation that an extension repeated.

    The old schema holds one confirmation of a config per run, and measurements are never dropped.
    """
    connection = op.get_bind()
    runs = sa.Table("tuning_run", sa.MetaData(), autoload_with=connection)
    trials = sa.Table("trial", sa.MetaData(), autoload_with=connection)
    confirmed = trials.c.protocol == "confirm"
    last = sa.select(trials.c.run_id, sa.func.max(trials.c.round)).where(confirmed)
    for run_id, newest in connection.execute(last.group_by(trials.c.run_id)).all():
        older = confirmed & (trials.c.run_id == run_id) & (trials.c.round < newest)
        rounds = sa.select(trials.c.round).where(older).distinct()
        for number in connection.execute(rounds).scalars().all():
            row = dict(
                connection.execute(sa.select(runs).where(runs.c.id == run_id)).one()._mapping
            )
            del row["id"]
            row |= {"public_id": str(uuid.uuid4()), "idempotency_key": None, "state": "SUCCEEDED"}
            made = connection.execute(sa.insert(runs).values(row)).inserted_primary_key
            assert made is not None
            moved = sa.update(trials).where(older & (trials.c.round == number))
            connection.execute(moved.values(run_id=made[0]))


def _redefine(
    states: str,
    new_states: str,
    length: int,
    new_length: int,
    unique: tuple[str, ...],
    new_unique: tuple[str, ...],
) -> None:
    """Change what rows of runs and trials may hold."""
    name, new_name = (f"uq_trial_{'_'.join(columns)}" for columns in (unique, new_unique))
    if op.get_bind().dialect.name == "sqlite":
        _rebuild("tuning_run", {states: new_states, f"state VARCHAR({length})":
                                f"state VARCHAR({new_length})"})  # fmt: skip
        keys = (f"{n} UNIQUE ({', '.join(c)})" for n, c in ((name, unique), (new_name, new_unique)))
        _rebuild("trial", {next(keys): next(keys)})
        return
    op.drop_constraint(op.f("ck_tuning_run_state"), "tuning_run")
    op.alter_column("tuning_run", "state", type_=sa.String(length=new_length))
    op.create_check_constraint(op.f("ck_tuning_run_state"), "tuning_run", new_states)
    op.drop_constraint(op.f(name), "trial")
    op.create_unique_constraint(op.f(new_name), "trial", list(new_unique))


def _rebuild(table: str, changes: dict[str, str]) -> None:
    """Copy an SQLite table into one whose definition differs in these pieces of text.

    SQLite cannot alter constraints. Foreign keys must be off (``db.migrate.migrating``): dropping
    the old table would take the rows along that refer to it.
    """
    connection = op.get_bind()
    found = sa.text("select sql from sqlite_master where tbl_name = :t and type = :k")
    (definition,) = connection.execute(found, {"t": table, "k": "table"}).scalars()
    indices = connection.execute(found, {"t": table, "k": "index"}).scalars().all()
    changed = str(definition)
    for old, new in changes.items():
        assert changed.count(old) == 1, f"expected {old!r} once in {changed}"
        changed = changed.replace(old, new)
    for opening in (f"CREATE TABLE {table} ", f'CREATE TABLE "{table}" '):
        changed = changed.replace(opening, f"CREATE TABLE {table}_new ")
    columns = ", ".join(c["name"] for c in sa.inspect(connection).get_columns(table))
    connection.exec_driver_sql(changed)
    connection.exec_driver_sql(f"insert into {table}_new ({columns}) select {columns} from {table}")
    op.drop_table(table)
    op.rename_table(f"{table}_new", table)
    for statement in indices:
        if statement:  # those of unique constraints have none
            connection.exec_driver_sql(statement)
