"""Programs that came as data: stored once, found by digest."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import update

from db.errors import UnknownProgram
from db.service_models import TileProgramRow
from tests.db.conftest import BOTH

pytestmark = BOTH
DIGEST = "0123456789abcdef" * 2


def test_a_program_is_kept_as_it_came_first(store, second_store):
    found, is_new = store.programs.add(DIGEST, "matmul", b'{"a":1}', "alice")
    assert is_new
    again, is_new = second_store.programs.add(DIGEST, "other", b'{"a":2}', "bob")
    assert (again, is_new) == (found, False)
    assert second_store.programs.get(DIGEST) == found
    assert (found.document, found.created_by) == (b'{"a":1}', "alice")
    with pytest.raises(UnknownProgram, match="0000"):
        store.programs.get("0" * 32)


def test_programs_are_listed_newest_first(store):
    made = [store.programs.add(f"{n:032x}", "p", b"{}" * n, "a")[0] for n in range(1, 4)]
    listed = store.programs.list()
    assert [(p.id, p.size_bytes) for p in listed] == [(made[n].id, 2 * n + 2) for n in (2, 1, 0)]
    assert store.programs.list(limit=1, before=made[2].id) == [listed[1]]


def test_a_list_of_programs_loads_no_documents(store):
    """200 documents of a megabyte each were unpacked to tell how long they are."""
    made, _ = store.programs.add(DIGEST, "matmul", b"{}" * 50_000, "alice")
    with store.database.write() as session:
        session.execute(update(TileProgramRow).values(document=b"no longer readable"))
    (listed,) = store.programs.list()
    assert (listed.id, listed.size_bytes) == (made.id, made.size_bytes) == (made.id, 100_000)


def test_many_send_the_same_program_at_once(store, second_store):
    with ThreadPoolExecutor(6) as pool:
        stores = [store, second_store] * 6
        found = list(pool.map(lambda s: s.programs.add(DIGEST, "matmul", b"{}", "x"), stores))
    assert sum(is_new for _, is_new in found) == 1
    assert len({record.id for record, _ in found}) == 1
    assert len(store.programs.list()) == 1
