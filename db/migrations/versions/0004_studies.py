"""Studies: searches whose trials outside workers measure."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

import db.types

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "study",
        sa.Column("id", db.types.BigId, nullable=False),
        sa.Column("public_id", sa.String(length=36), nullable=False),
        sa.Column("idempotency_key", sa.String(length=128), nullable=True),
        sa.Column("body_hash", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("hardware", sa.String(length=200), nullable=False),
        sa.Column("space", db.types.JsonValue, nullable=False),
        sa.Column("space_key", sa.String(length=32), nullable=False),
        sa.Column("strategy", sa.String(length=32), nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("max_trials", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("created_by", sa.String(length=64), nullable=False),
        sa.Column("created_at", db.types.UtcDateTime(), nullable=False),
        sa.CheckConstraint("state in ('OPEN', 'CLOSED')", name=op.f("ck_study_state")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_study")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_study_idempotency_key")),
        sa.UniqueConstraint("public_id", name=op.f("uq_study_public_id")),
    )
    op.create_index(op.f("ix_study_space_key"), "study", ["space_key"])
    op.create_table(
        "study_trial",
        sa.Column("id", db.types.BigId, nullable=False),
        sa.Column("study_id", db.types.BigId, nullable=False),
        sa.Column("row", sa.Integer(), nullable=False),
        sa.Column("config", db.types.JsonValue, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("worker", sa.String(length=128), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("lease_until", db.types.UtcDateTime(), nullable=False),
        sa.Column("time_s", sa.Double(), nullable=True),
        sa.Column("times_s", db.types.JsonValue, nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("told_at", db.types.UtcDateTime(), nullable=True),
        sa.CheckConstraint(
            "state in ('leased', 'ok', 'failed')", name=op.f("ck_study_trial_state")
        ),
        sa.CheckConstraint(
            "(state = 'ok') = (time_s is not null)", name=op.f("ck_study_trial_time_or_not")
        ),
        sa.ForeignKeyConstraint(
            ["study_id"], ["study.id"], name=op.f("fk_study_trial_study_id_study")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_study_trial")),
        sa.UniqueConstraint("study_id", "row", name=op.f("uq_study_trial_study_id_row")),
    )


def downgrade() -> None:
    op.drop_table("study_trial")
    op.drop_table("study")
