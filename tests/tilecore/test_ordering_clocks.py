"""What the shadow of a memory keeps of reads, and what clocks tell of groups of threads."""

import numpy as np
import pytest

from tilecore.ordering.clocks import Clocks, Knowledge
from tilecore.ordering.shadow import Reads

READERS, WRITER, SITE = np.arange(32), np.array([40]), 7
PLACES = {"one for all": np.zeros(32, int), "one for four": np.arange(32) // 4}


def knowing(clocks, *agents):
    """Return what whoever knows the last event of some agents knows."""
    seen = clocks.nothing.copy()
    seen[list(agents)] = clocks.now
    return Knowledge(seen, clocks.nothing, clocks.nothing, clocks.nothing)


@pytest.mark.parametrize("places", PLACES)
def test_of_lanes_that_read_the_same_each_counts(places):
    clocks, at = Clocks(64), PLACES[places]
    clocks.tick()
    reads = Reads(clocks, int(at.max()) + 1)
    reads.note(READERS, at, SITE)
    for lane in READERS:
        clocks.set(WRITER, knowing(clocks, *np.delete(READERS, lane)))
        assert reads.unordered(WRITER, at[[lane]]) == (0, lane, SITE)
    clocks.set(WRITER, knowing(clocks, *READERS))
    assert reads.unordered(np.repeat(WRITER, 32), at) is None


def test_what_a_warp_knows_of_is_forgotten_and_what_it_does_not_is_kept():
    clocks = Clocks(64)
    reads = Reads(clocks, 1)
    clocks.tick()
    reads.note(READERS[:16], np.zeros(16, int), SITE)
    clocks.tick()
    reads.note(READERS[16:], np.zeros(16, int), SITE)  # without having met
    clocks.set(WRITER, knowing(clocks, *READERS[16:]))
    assert reads.unordered(WRITER, np.zeros(1, int)) == (0, 0, SITE)
    clocks.meet(READERS)
    reads.note(READERS[16:], np.zeros(16, int), SITE)  # the others are known of now
    clocks.set(WRITER, knowing(clocks, *READERS[16:]))
    assert reads.unordered(WRITER, np.zeros(1, int)) is None


@pytest.mark.parametrize("agents", [np.array([1, 2, 3, 2]), np.array([1, 130, 130, 2])])
def test_each_thread_knows_what_its_group_knows(agents):
    clocks = Clocks(64)
    clocks.tick()
    for thread, known in ((32, (1, 130)), (33, (2,)), (34, (3, 130))):
        clocks.set(np.array([thread]), knowing(clocks, *known))
    ids, times = np.array([32, 33, 34, 33]), np.full(4, clocks.now)
    expected = [a in {32: (1, 130), 33: (2,), 34: (3, 130)}[i]
                for i, a in zip(ids.tolist(), agents.tolist(), strict=True)]  # fmt: skip
    assert clocks.known(ids, agents, times).tolist() == expected
    clocks.set(ids, knowing(clocks, *range(64)))
    clocks.set(np.array([35]), knowing(clocks, *range(63)))
    everybody = np.array([32, 33, 35, 35])
    assert clocks.known(everybody, np.array([1, 2, 3, 63]), times).tolist() == [True] * 3 + [False]


def test_threads_that_meet_keep_what_each_of_them_took_up_of_tensor_memory():
    clocks = Clocks(64)
    unit, now = np.array([clocks.unit("products", "products", of_tensor=True)]), clocks.tick()
    clocks.tell_own(READERS[:1], int(unit[0]), now)
    clocks.meet(READERS)
    both = READERS[:2]
    assert clocks.known(both, unit.repeat(2), np.full(2, now)).tolist() == [True, True]
    known = clocks.known(both, unit.repeat(2), np.full(2, now), in_tensor=True)
    assert known.tolist() == [True, False]
