"""Studies and programs name their author as runs do: by the name of the key, not its prefix."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

TABLES = ("study", "tile_program")


def upgrade() -> None:
    for table in TABLES:
        is_key = f"api_key.prefix = {table}.created_by"
        op.execute(
            sa.text(
                f"update {table} set created_by = (select name from api_key where {is_key}) "
                f"where exists (select 1 from api_key where {is_key})"
            )
        )


def downgrade() -> None:
    """Leave the names: several keys may bear one, and earlier versions show what they find."""
