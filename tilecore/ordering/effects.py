"""What instructions do to memory, and barriers of threads.

Source: PTX ISA 9.0, chapters 8 (memory consistency model) and 9.7.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilecore.ordering.barriers import Meeting
from tilecore.ordering.copies import StoreGroups
from tilecore.ordering.machine import Machine
from tilecore.ordering.operands import (
    FollowsFromData,
    Operand,
    Pointer,
    Run,
    addresses,
    blocks_of,
    masks_of,
    number_of,
    numbers_of,
    pair_of,
)
from tilecore.ordering.program import Array, Env, Wait

CLUSTER = -1  # number of the barrier of a cluster


# --- threads ----------------------------------------------------------------------------------


def _meet(
    machine: Machine, env: Env, number: int, count: int, site: int, waits: bool,
    ids: Array | None = None,
) -> Wait:  # fmt: skip
    ids = env[0].ids if ids is None else ids
    over: list[Wait] = []
    for block in np.unique(machine.block_of[ids]) if number != CLUSTER else (0,):
        key = (int(block), number)
        meeting = machine.meetings.setdefault(key, Meeting(machine.clocks, machine.faults))
        some = ids if number == CLUSTER else ids[machine.block_of[ids] == block]
        over.append(meeting.arrive(some, count, site, waits=waits))
    return lambda: all(question() for question in over)


def sync_threads(site: int) -> Run:
    """All threads of the block that have not exited."""

    def run(machine: Machine, env: Env) -> Wait | None:
        block = int(machine.block_of[env[0].ids[0]])
        count = machine.program.threads - int(machine.exited[block])
        return _meet(machine, env, 0, count, site, True)

    return run


def bar(site: int, number: Operand, count: Operand, *, waits: bool) -> Run:
    """Some threads at a named barrier, each at that of its own number."""

    def run(machine: Machine, env: Env) -> Wait | None:
        ids, numbers, all_of = env[0].ids, numbers_of(number, env), number_of(count, env)
        made = [
            _meet(machine, env, int(n), all_of, site, waits, ids[numbers == n])
            for n in np.unique(numbers)
        ]
        return (lambda: all(question() for question in made)) if waits else None

    return run


def sync_warp(site: int) -> Run:
    """The lanes of a warp that run."""

    def run(machine: Machine, env: Env) -> None:
        ids = env[0].ids
        for warp in np.unique(ids // 32):
            machine.clocks.meet(ids[ids // 32 == warp])

    return run


def cluster_arrive(site: int) -> Run:
    """Half of the barrier of a cluster."""

    def run(machine: Machine, env: Env) -> None:
        over = _meet(machine, env, CLUSTER, int(machine.exists.sum()), site, False)
        for thread in env[0].ids.tolist():
            machine.arrived_at_cluster[thread] = over

    return run


def cluster_wait(site: int) -> Run:
    """The other half."""

    def run(machine: Machine, env: Env) -> Wait | None:
        ids, came = env[0].ids, machine.arrived_at_cluster
        questions = {id(came[t]): came[t] for t in ids.tolist() if t in came}
        if not questions:
            machine.faults.add("arrivals", "expected barrier.cluster.arrive before its wait", site)
            return None

        def over() -> bool:
            if not all(question() for question in questions.values()):
                return False
            told = machine.meetings[0, CLUSTER].complete
            if told is not None:
                machine.clocks.adopt(ids, told)
            return True

        return over

    return run


# --- asynchronous copies ----------------------------------------------------------------------


def cp_async(site: int, size: int, target: Pointer) -> Run:
    """Each thread copies ``size`` bytes, some time."""

    def run(machine: Machine, env: Env) -> None:
        ids = env[0].ids
        now = machine.clocks.tick()
        copies = ids + machine.clocks.threads
        machine.shared.write(ids, addresses(machine, target, env), size, site, copies)
        machine.copies.copy(ids, now, site)

    return run


def cp_async_commit(site: int) -> Run:
    """What was copied becomes a group."""
    return lambda machine, env: machine.copies.commit(env[0].ids)


def cp_async_wait(site: int, pending: int) -> Run:
    """All groups but some of the last have arrived."""

    def run(machine: Machine, env: Env) -> None:
        ids = env[0].ids
        machine.clocks.copied[ids] = machine.copies.wait(ids, pending)

    return run


def load_box(
    site: int, target: Pointer, size: int | Operand, pointer: Pointer, mask: Operand = None, *,
    in_pair: bool = False,
) -> Run:  # fmt: skip
    """An asynchronous unit writes bytes, and tells a barrier of them.

    ``in_pair``: the barrier of the first block of the pair.
    """

    def run(machine: Machine, env: Env) -> None:
        count = size if isinstance(size, int) else number_of(size, env)
        starts, places = addresses(machine, target, env), addresses(machine, pointer, env)
        given = zip(starts, places, env[0].ids, masks_of(mask, env), strict=True)
        for start, place, thread, many in given:
            told = 0
            if in_pair:
                own, first = int(machine.block_of[thread]), pair_of(machine, int(thread))[0]
                told = (first - own) * machine.program.shared_bytes
            for shift in blocks_of(machine, int(thread), many):
                at = int(place) + shift + told
                _load(machine, int(start) + shift, count, at, int(thread), site)

    return run


def _load(machine: Machine, start: int, size: int, place: int, thread: int, site: int) -> None:
    barrier = machine.barriers.get(place)
    if barrier is None:
        machine.faults.add("setup", f"no mbarrier was initialised at {place}", site)
        return
    if not barrier.is_fenced:
        machine.faults.add(
            "setup", "an asynchronous copy uses an mbarrier that no fence made visible to it",
            barrier.site, site, "fence.mbarrier_init",
        )  # fmt: skip
    machine.clocks.tick()
    granule = machine.program.granule
    at = np.arange(start // granule, -(-(start + size) // granule))
    machine.shared.write_by(barrier.agent(), thread, at, site)
    barrier.deliver(size)


def store_box(site: int, source: Pointer, size: int | Operand) -> Run:
    """An asynchronous unit reads bytes, some time."""

    def run(machine: Machine, env: Env) -> None:
        count = size if isinstance(size, int) else number_of(size, env)
        granule = machine.program.granule
        for start, thread in zip(addresses(machine, source, env), env[0].ids, strict=True):
            now, number = machine.clocks.tick(), int(thread)
            agent = machine.clocks.unit(("bulk", number), f"a bulk store of thread {number}")
            at = np.arange(int(start) // granule, -(-(int(start) + count) // granule))
            machine.shared.read_by(agent, number, at, site)
            machine.stores.setdefault(number, StoreGroups()).open.append((now, site))

    return run


def bulk_commit(site: int) -> Run:
    """The stores since the last become a group."""

    def run(machine: Machine, env: Env) -> None:
        for thread in env[0].ids.tolist():
            stores = machine.stores.get(thread)
            if stores is not None:
                stores.groups.append(stores.open)
                stores.open = []

    return run


def bulk_wait(site: int, pending: int) -> Run:
    """All groups but some of the last have read their source."""

    def run(machine: Machine, env: Env) -> None:
        for thread, stores in list(machine.stores.items()):
            if not env[0].bits[thread]:
                continue
            keep = max(0, len(stores.groups) - pending)
            done, stores.groups = stores.groups[:keep], stores.groups[keep:]
            times = [t for group in done for t, _ in group]
            if times:
                agent = machine.clocks.unit(("bulk", thread), "")
                machine.clocks.tell(np.array([thread]), agent, max(times))

    return run


# --- accesses ---------------------------------------------------------------------------------


def access(site: int, pointer: Pointer, size: int, way: str, lanes: int = 32) -> Run:
    """Threads (of each warp the first ``lanes``) read, write or update ``size`` bytes."""

    def run(machine: Machine, env: Env) -> None:
        ids = env[0].ids
        at = addresses(machine, pointer, env)
        if lanes < 32:
            some = ids % 32 < lanes
            ids, at = ids[some], at[some]
        if pointer.is_assumed and not machine.shared.has(at, size):
            raise FollowsFromData
        _touch(machine, machine.shared, ids, at, size, site, way)

    return run


def access_global(site: int, slot: int, index: Operand, size: int, way: str) -> Run:
    """Threads read, write or update ``size`` elements of a tensor."""
    assert not isinstance(index, Pointer)
    assert index is not None

    def run(machine: Machine, env: Env) -> None:
        at = index(env) if slot in machine.program.globals else None
        if at is None:
            return
        _touch(machine, machine.tensor_shadow(slot), env[0].ids, env[0].of(at), size, site, way)

    return run


def _touch(
    machine: Machine, shadow: Any, ids: Array, at: Array, size: int, site: int, way: str
) -> None:
    if not len(ids):
        return
    machine.clocks.tick()
    if way == "read":
        shadow.read(ids, at, size, site)
    elif way == "write":
        shadow.write(ids, at, size, site, ids)
    else:
        shadow.update(ids, at, size, site)


def touch(site: int, slot: int, *, writes: bool) -> Run:
    """Threads use an array in registers that products, or loads of tensor memory, use too."""

    def run(machine: Machine, env: Env) -> None:
        ids = env[0].ids
        machine.products.touch(ids, slot, site, writes=writes)
        for warp in np.unique(ids // 32).tolist() if machine.loading else ():
            loaded = machine.loading.get(warp, {}).get(slot)
            if loaded is not None:
                machine.faults.add(
                    "registers", "registers are used that a tcgen05.ld still loads", loaded, site,
                    "tcgen05.wait::ld",
                )  # fmt: skip

    return run
