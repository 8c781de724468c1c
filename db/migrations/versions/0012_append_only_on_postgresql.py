"""PostgreSQL keeps the log append-only as SQLite does: only compactions delete, nothing changes."""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

GUARDED = ("measurement", "measurement_sample")
CHANGES = ("update", "delete", "truncate")
FUNCTION = "refuse_change"
# Once for each statement, however many rows: what is inserted costs nothing. The schema is the
# table's, as restoring a dump sets no search_path.
BODY = f"""
create function {FUNCTION}() returns trigger language plpgsql as $$
declare
  is_compaction boolean := false;
begin
  if tg_op = 'DELETE' then
    execute format('select exists (select 1 from %I.compaction where is_open)', tg_table_schema)
      into is_compaction;
  end if;
  if not is_compaction then
    raise exception '% is append-only', tg_table_name
      using errcode = 'integrity_constraint_violation';
  end if;
  return null;
end
$$
"""


def upgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    op.execute(BODY)
    for table in GUARDED:
        for change in CHANGES:
            op.execute(
                f"create trigger {table}_no_{change} before {change} on {table} "
                f"for each statement execute function {FUNCTION}()"
            )


def downgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    for table in GUARDED:
        for change in CHANGES:
            op.execute(f"drop trigger {table}_no_{change} on {table}")
    op.execute(f"drop function {FUNCTION}()")
