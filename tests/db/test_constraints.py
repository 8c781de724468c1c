"""What the databases themselves refuse, whoever writes: doubles, and rows that refer to nothing."""

import re

from sqlalchemy import Index, UniqueConstraint, func, insert, inspect, select, text
from sqlalchemy import exc as sa_exc

from db.models import Base
from tests.db import full_database
from tests.db.conftest import BOTH

pytestmark = BOTH
TABLES = Base.metadata.sorted_tables
NOWHERE = 1_000_000
CLOSED = ("protocol", "status", "state")  # they hold one of few values


def uniques(table):
    """Return the columns of which no two rows have the same values, and where that holds."""
    for one in table.constraints:
        if isinstance(one, UniqueConstraint):
            yield one.columns.keys(), None
    for one in table.indexes:
        if one.unique:
            yield one.columns.keys(), condition(one)
    keys = table.primary_key.columns.keys()
    if keys != ["id"]:
        yield keys, None


def condition(index: Index):
    found = {str(index.dialect_options[d]["where"]) for d in ("sqlite", "postgresql")}
    assert len(found) == 1  # the same on both
    return found.pop()


def is_refused(store, table, row):
    try:
        with store.database.write() as session:
            session.execute(insert(table).values(row))
    except sa_exc.IntegrityError as error:
        return str(error.orig)
    return ""


def test_doubles_are_refused_by_every_key(store):
    full_database.fill(store)
    tried = []
    for table in TABLES:
        for columns, where in uniques(table):
            held = select(table).where(*(table.c[c].is_not(None) for c in columns))
            with store.database.read() as session:
                found = session.execute(held if where is None else held.where(text(where))).first()
                assert found is not None, (table.name, columns)
                other = _with_other_keys(session, table, dict(found._mapping), set(columns))
            told = is_refused(store, table, other)
            key = re.search(r"failed: (.*)|Key \((.*?)\)", told)
            assert key, (table.name, columns, told)
            named = (key[1] or key[2]).replace(f"{table.name}.", "").replace('"', "")
            assert set(named.split(", ")) == set(columns), told
            tried.append(columns)
    assert len(tried) > 20


def _with_other_keys(session, table, row, kept):
    """Return a row that is like another one in the columns ``kept`` and in no other key."""
    for columns, where in uniques(table):
        free = [table.c[c] for c in columns if c not in kept and c not in CLOSED]
        if where is not None or not free or set(columns) <= kept:
            continue
        column = min(free, key=lambda c: bool(c.foreign_keys))
        if column.nullable:
            row[column.name] = None
        elif column.foreign_keys:
            target = next(iter(column.foreign_keys)).column
            row[column.name] = session.execute(select(func.max(target))).scalar()
        else:
            row[column.name] = NOWHERE if column.type.python_type is int else "another"
    row.pop("id", None)
    return row


def test_rows_that_refer_to_nothing_are_refused(store):
    full_database.fill(store)
    tried = []
    for table in TABLES:
        for column in (c for c in table.columns if c.foreign_keys):
            with store.database.read() as session:
                row = dict(session.execute(select(table)).first()._mapping)
                row = _with_other_keys(session, table, row, {column.name})
            told = is_refused(store, table, row | {column.name: NOWHERE})
            assert "foreign key" in told.lower(), (table.name, column.name, told)
            tried.append(column)
    assert len(tried) > 20


def test_indices_are_those_of_the_models(store):
    """Alembic compares their columns, not their conditions."""
    found = inspect(store.database.engine)
    for table in TABLES:
        there = {i["name"]: i for i in found.get_indexes(table.name)}
        for index in table.indexes:
            where = there[index.name].get("dialect_options", {})
            conditions = [str(v) for k, v in where.items() if k.endswith("_where")]
            wanted = [] if index.dialect_options["sqlite"]["where"] is None else [condition(index)]
            assert [_plain(c) for c in conditions] == [_plain(c) for c in wanted], index.name


def _plain(condition):
    """Return a condition without what PostgreSQL adds to it."""
    plain = condition.lower().replace("::character varying", "").replace("::text", "")
    return plain.replace("(", "").replace(")", "")
