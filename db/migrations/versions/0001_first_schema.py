"""The first schema: identities, runs, trials, measurements, events, leader, models."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

import db.types

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


APPEND_ONLY = ("measurement", "measurement_sample")


def upgrade() -> None:
    op.create_table(
        "config",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=32), nullable=False),
        sa.Column("knobs", db.types.JsonValue, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_config")),
        sa.UniqueConstraint("key", name=op.f("uq_config_key")),
    )
    op.create_table(
        "hardware",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("profile", db.types.JsonValue, nullable=False),
        sa.Column("updated_at", db.types.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hardware")),
        sa.UniqueConstraint("key", name=op.f("uq_hardware_key")),
    )
    op.create_table(
        "leader",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("until", db.types.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leader")),
    )
    op.create_table(
        "model_version",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kernel", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("feature_schema", sa.String(length=64), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("blob", sa.LargeBinary(), nullable=False),
        sa.Column("metrics", db.types.JsonValue, nullable=False),
        sa.Column("trained_on", sa.Integer(), nullable=False),
        sa.Column("created_at", db.types.UtcDateTime(), nullable=False),
        sa.CheckConstraint(
            "state in ('candidate', 'active', 'retired')", name=op.f("ck_model_version_state")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model_version")),
    )
    with op.batch_alter_table("model_version", schema=None) as batch_op:
        batch_op.create_index(
            "ix_model_version_active",
            ["kernel"],
            unique=True,
            sqlite_where=sa.text("state = 'active'"),
            postgresql_where=sa.text("state = 'active'"),
        )

    op.create_table(
        "program",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kernel", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_program")),
        sa.UniqueConstraint("kernel", "digest", name=op.f("uq_program_kernel_digest")),
    )
    op.create_table(
        "toolchain",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=32), nullable=False),
        sa.Column("versions", db.types.JsonValue, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_toolchain")),
        sa.UniqueConstraint("key", name=op.f("uq_toolchain_key")),
    )
    op.create_table(
        "workload",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=32), nullable=False),
        sa.Column("kernel", sa.String(length=64), nullable=False),
        sa.Column("dtype", sa.String(length=16), nullable=True),
        sa.Column("m", sa.Integer(), nullable=True),
        sa.Column("n", sa.Integer(), nullable=True),
        sa.Column("k", sa.Integer(), nullable=True),
        sa.Column("threads", sa.Integer(), nullable=False),
        sa.Column("problem", db.types.JsonValue, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workload")),
        sa.UniqueConstraint("key", name=op.f("uq_workload_key")),
    )
    with op.batch_alter_table("workload", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_workload_kernel_dtype_m_n_k"),
            ["kernel", "dtype", "m", "n", "k"],
            unique=False,
        )

    op.create_table(
        "tuning_run",
        sa.Column("id", db.types.BigId, nullable=False),
        sa.Column("public_id", sa.String(length=36), nullable=False),
        sa.Column("idempotency_key", sa.String(length=128), nullable=True),
        sa.Column("body_hash", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("workload_id", sa.Integer(), nullable=False),
        sa.Column("hardware_id", sa.Integer(), nullable=False),
        sa.Column("program_id", sa.Integer(), nullable=False),
        sa.Column("toolchain_id", sa.Integer(), nullable=False),
        sa.Column("spec", db.types.JsonValue, nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("planned_trials", sa.Integer(), nullable=False),
        sa.Column("active_s", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("result", db.types.JsonValue, nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", db.types.UtcDateTime(), nullable=False),
        sa.Column("started_at", db.types.UtcDateTime(), nullable=True),
        sa.Column("finished_at", db.types.UtcDateTime(), nullable=True),
        sa.CheckConstraint(
            "state in ('QUEUED', 'RUNNING', 'SUCCEEDED', 'FAILED', 'CANCELLED')",
            name=op.f("ck_tuning_run_state"),
        ),
        sa.ForeignKeyConstraint(
            ["hardware_id"], ["hardware.id"], name=op.f("fk_tuning_run_hardware_id_hardware")
        ),
        sa.ForeignKeyConstraint(
            ["program_id"], ["program.id"], name=op.f("fk_tuning_run_program_id_program")
        ),
        sa.ForeignKeyConstraint(
            ["toolchain_id"], ["toolchain.id"], name=op.f("fk_tuning_run_toolchain_id_toolchain")
        ),
        sa.ForeignKeyConstraint(
            ["workload_id"], ["workload.id"], name=op.f("fk_tuning_run_workload_id_workload")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tuning_run")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_tuning_run_idempotency_key")),
        sa.UniqueConstraint("public_id", name=op.f("uq_tuning_run_public_id")),
    )
    with op.batch_alter_table("tuning_run", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_tuning_run_state"), ["state"], unique=False)
        batch_op.create_index(
            batch_op.f("ix_tuning_run_workload_id_hardware_id"),
            ["workload_id", "hardware_id"],
            unique=False,
        )

    op.create_table(
        "event",
        sa.Column("id", db.types.BigId, nullable=False),
        sa.Column("run_id", db.types.BigId, nullable=False),
        sa.Column("at", db.types.UtcDateTime(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("payload", db.types.JsonValue, nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["tuning_run.id"], name=op.f("fk_event_run_id_tuning_run")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_event")),
    )
    with op.batch_alter_table("event", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_event_run_id_id"), ["run_id", "id"], unique=False)

    op.create_table(
        "trial",
        sa.Column("id", db.types.BigId, nullable=False),
        sa.Column("run_id", db.types.BigId, nullable=False),
        sa.Column("config_id", sa.Integer(), nullable=False),
        sa.Column("protocol", sa.String(length=16), nullable=False),
        sa.Column("purpose", sa.String(length=16), nullable=False),
        sa.Column("predicted_s", sa.Double(), nullable=True),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("lease_epoch", sa.Integer(), nullable=True),
        sa.Column("lease_until", db.types.UtcDateTime(), nullable=True),
        sa.Column("not_before", db.types.UtcDateTime(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.CheckConstraint("protocol in ('screen', 'confirm')", name=op.f("ck_trial_protocol")),
        sa.CheckConstraint(
            "state in ('pending', 'leased', 'done', 'failed', 'cancelled')",
            name=op.f("ck_trial_state"),
        ),
        sa.ForeignKeyConstraint(
            ["config_id"], ["config.id"], name=op.f("fk_trial_config_id_config")
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["tuning_run.id"], name=op.f("fk_trial_run_id_tuning_run")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trial")),
        sa.UniqueConstraint(
            "run_id", "config_id", "protocol", name=op.f("uq_trial_run_id_config_id_protocol")
        ),
        sa.UniqueConstraint("run_id", "sequence", name=op.f("uq_trial_run_id_sequence")),
    )
    with op.batch_alter_table("trial", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_trial_state_run_id_sequence"),
            ["state", "run_id", "sequence"],
            unique=False,
        )

    op.create_table(
        "measurement",
        sa.Column("id", db.types.BigId, nullable=False),
        sa.Column("trial_id", db.types.BigId, nullable=True),
        sa.Column("workload_id", sa.Integer(), nullable=False),
        sa.Column("hardware_id", sa.Integer(), nullable=False),
        sa.Column("program_id", sa.Integer(), nullable=False),
        sa.Column("toolchain_id", sa.Integer(), nullable=False),
        sa.Column("config_id", sa.Integer(), nullable=False),
        sa.Column("protocol", sa.String(length=16), nullable=False),
        sa.Column("threads", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("time_s", sa.Double(), nullable=True),
        sa.Column("reference_time_s", sa.Double(), nullable=True),
        sa.Column("compile_s", sa.Double(), nullable=True),
        sa.Column("max_error", sa.Double(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("worker", sa.String(length=200), nullable=False),
        sa.Column("metrics", db.types.JsonValue, nullable=False),
        sa.Column("measured_at", db.types.UtcDateTime(), nullable=False),
        sa.CheckConstraint(
            "(status = 'OK') = (time_s is not null)", name=op.f("ck_measurement_time_or_failure")
        ),
        sa.CheckConstraint(
            "protocol in ('screen', 'confirm')", name=op.f("ck_measurement_protocol")
        ),
        sa.CheckConstraint(
            "status in ('OK', 'INVALID_CONFIG', 'COMPILE_ERROR', 'COMPILE_TIMEOUT', 'TOOLCHAIN_MISSING', 'LAUNCH_ERROR', 'RUN_TIMEOUT', 'WRONG_RESULT', 'UNSTABLE', 'WORKER_LOST')",  # noqa: E501
            name=op.f("ck_measurement_status"),
        ),
        sa.ForeignKeyConstraint(
            ["config_id"], ["config.id"], name=op.f("fk_measurement_config_id_config")
        ),
        sa.ForeignKeyConstraint(
            ["hardware_id"], ["hardware.id"], name=op.f("fk_measurement_hardware_id_hardware")
        ),
        sa.ForeignKeyConstraint(
            ["program_id"], ["program.id"], name=op.f("fk_measurement_program_id_program")
        ),
        sa.ForeignKeyConstraint(
            ["toolchain_id"], ["toolchain.id"], name=op.f("fk_measurement_toolchain_id_toolchain")
        ),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["trial.id"], name=op.f("fk_measurement_trial_id_trial")
        ),
        sa.ForeignKeyConstraint(
            ["workload_id"], ["workload.id"], name=op.f("fk_measurement_workload_id_workload")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_measurement")),
        sa.UniqueConstraint("trial_id", name=op.f("uq_measurement_trial_id")),
    )
    with op.batch_alter_table("measurement", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_measurement_hardware_id_id"), ["hardware_id", "id"], unique=False
        )
        batch_op.create_index(batch_op.f("ix_measurement_status"), ["status"], unique=False)
        batch_op.create_index(
            batch_op.f("ix_measurement_workload_id_hardware_id_protocol_time_s"),
            ["workload_id", "hardware_id", "protocol", "time_s"],
            unique=False,
        )

    op.create_table(
        "measurement_sample",
        sa.Column("measurement_id", db.types.BigId, autoincrement=False, nullable=False),
        sa.Column("times_s", db.types.JsonValue, nullable=False),
        sa.Column("reference_times_s", db.types.JsonValue, nullable=False),
        sa.ForeignKeyConstraint(
            ["measurement_id"],
            ["measurement.id"],
            name=op.f("fk_measurement_sample_measurement_id_measurement"),
        ),
        sa.PrimaryKeyConstraint("measurement_id", name=op.f("pk_measurement_sample")),
    )
    if op.get_bind().dialect.name == "sqlite":
        _forbid_changes()


def _forbid_changes() -> None:
    for table in APPEND_ONLY:
        for change in ("update", "delete"):
            op.execute(
                f"create trigger {table}_no_{change} before {change} on {table} "
                f"begin select raise(abort, '{table} is append-only'); end"
            )


def downgrade() -> None:
    op.drop_table("measurement_sample")
    with op.batch_alter_table("measurement", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_measurement_workload_id_hardware_id_protocol_time_s"))
        batch_op.drop_index(batch_op.f("ix_measurement_status"))
        batch_op.drop_index(batch_op.f("ix_measurement_hardware_id_id"))

    op.drop_table("measurement")
    with op.batch_alter_table("trial", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_trial_state_run_id_sequence"))

    op.drop_table("trial")
    with op.batch_alter_table("event", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_event_run_id_id"))

    op.drop_table("event")
    with op.batch_alter_table("tuning_run", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_tuning_run_workload_id_hardware_id"))
        batch_op.drop_index(batch_op.f("ix_tuning_run_state"))

    op.drop_table("tuning_run")
    with op.batch_alter_table("workload", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_workload_kernel_dtype_m_n_k"))

    op.drop_table("workload")
    op.drop_table("toolchain")
    op.drop_table("program")
    with op.batch_alter_table("model_version", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_model_version_active",
            sqlite_where=sa.text("state = 'active'"),
            postgresql_where=sa.text("state = 'active'"),
        )

    op.drop_table("model_version")
    op.drop_table("leader")
    op.drop_table("hardware")
    op.drop_table("config")
