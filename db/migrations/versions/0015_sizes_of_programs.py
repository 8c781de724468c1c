"""The length of a program's document stands beside it: lists need not unpack documents."""

from __future__ import annotations

import zlib

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

PROGRAM = sa.table(
    "tile_program",
    sa.column("id", sa.Integer),
    sa.column("document", sa.LargeBinary),
    sa.column("size_bytes", sa.Integer),
)


def upgrade() -> None:
    size = sa.Column("size_bytes", sa.Integer(), server_default="0", nullable=False)
    op.add_column("tile_program", size)
    connection = op.get_bind()
    for number in connection.scalars(sa.select(PROGRAM.c.id)).all():  # not all documents at once
        this = PROGRAM.c.id == number
        document = connection.scalars(sa.select(PROGRAM.c.document).where(this)).one()
        length = len(zlib.decompress(document))
        connection.execute(sa.update(PROGRAM).where(this).values(size_bytes=length))


def downgrade() -> None:
    op.drop_column("tile_program", "size_bytes")
