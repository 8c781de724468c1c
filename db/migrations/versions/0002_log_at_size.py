"""The log at size: facets of what people filter by, and indices that hold what is asked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
FACET = ("kernel", "hardware_id", "toolchain_id", "protocol", "status")
INDICES = {
    "log": ("measured_at", "id", "facet_id", "workload_id"),
    "times": ("time_s", "id", "facet_id", "workload_id"),
    "facet_log": ("facet_id", "measured_at", "id"),
    "facet_times": ("facet_id", "time_s", "id"),
    "workload_log": ("workload_id", "measured_at", "id", "facet_id"),
    "workload_times": ("workload_id", "facet_id", "time_s", "id", "program_id"),
}
REPLACED = {
    "ix_measurement_hardware_id_id": ("hardware_id", "id"),
    "ix_measurement_status": ("status",),
    "ix_measurement_workload_id_hardware_id_protocol_time_s": (
        "workload_id", "hardware_id", "protocol", "time_s",
    ),
}  # fmt: skip


def upgrade() -> None:
    op.create_table(
        "facet",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kernel", sa.String(length=64), nullable=False),
        sa.Column("hardware_id", sa.Integer(), nullable=False),
        sa.Column("toolchain_id", sa.Integer(), nullable=False),
        sa.Column("protocol", sa.String(length=16), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.ForeignKeyConstraint(
            ["hardware_id"], ["hardware.id"], name=op.f("fk_facet_hardware_id_hardware")
        ),
        sa.ForeignKeyConstraint(
            ["toolchain_id"], ["toolchain.id"], name=op.f("fk_facet_toolchain_id_toolchain")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_facet")),
        sa.UniqueConstraint(*FACET, name=op.f(f"uq_facet_{'_'.join(FACET)}")),
    )
    if _is_sqlite():  # in place: a copied table would lose its triggers and the rows that refer
        op.execute(
            "alter table measurement add column facet_id integer "
            "constraint fk_measurement_facet_id_facet references facet (id)"
        )
    else:
        op.add_column("measurement", sa.Column("facet_id", sa.Integer(), nullable=True))
        op.create_foreign_key(
            op.f("fk_measurement_facet_id_facet"), "measurement", "facet", ["facet_id"], ["id"]
        )
    _fill()
    for name in REPLACED:
        op.drop_index(name, "measurement")
    for name, columns in INDICES.items():
        op.create_index(f"ix_measurement_{name}", "measurement", list(columns))


def _fill() -> None:
    """Give every measurement its facet."""
    op.execute(
        "insert into facet (kernel, hardware_id, toolchain_id, protocol, status) "
        "select distinct w.kernel, m.hardware_id, m.toolchain_id, m.protocol, m.status "
        "from measurement m join workload w on w.id = m.workload_id"
    )
    if _is_sqlite():
        op.execute("drop trigger measurement_no_update")
    op.execute(
        "update measurement set facet_id = (select f.id from facet f "
        "join workload w on w.id = measurement.workload_id and w.kernel = f.kernel "
        "where f.hardware_id = measurement.hardware_id "
        "and f.toolchain_id = measurement.toolchain_id "
        "and f.protocol = measurement.protocol and f.status = measurement.status)"
    )
    if _is_sqlite():
        op.execute(
            "create trigger measurement_no_update before update on measurement "
            "begin select raise(abort, 'measurement is append-only'); end"
        )


def downgrade() -> None:
    for name in INDICES:
        op.drop_index(f"ix_measurement_{name}", "measurement")
    for name, columns in REPLACED.items():
        op.create_index(name, "measurement", list(columns))
    if _is_sqlite():
        op.execute("alter table measurement drop column facet_id")
    else:
        op.drop_constraint(op.f("fk_measurement_facet_id_facet"), "measurement")
        op.drop_column("measurement", "facet_id")
    op.drop_table("facet")


def _is_sqlite() -> bool:
    return bool(op.get_bind().dialect.name == "sqlite")
