"""What each instruction does to memory and barriers, by its name in the generated code.

Source: PTX ISA 9.0, chapters 8 (memory consistency model) and 9.7.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilecore.ordering.barriers import MemoryBarrier, Meeting
from tilecore.ordering.clocks import Knowledge
from tilecore.ordering.machine import Machine, StoreGroups
from tilecore.ordering.operands import Operand, Pointer
from tilecore.ordering.program import Array, Env, Wait

Run = Callable[[Machine, Env], Wait | None]
Maker = Callable[..., Run]
CLUSTER = -1  # number of the barrier of a cluster


def _at(machine: Machine, pointer: Pointer, env: Env) -> Array:
    found = pointer.shared(machine, env)
    assert found is not None, "the reader makes no act of an address that follows from data"
    return found


def _number(value: Operand, env: Env) -> Any:
    assert not isinstance(value, Pointer)
    found = value(env) if value is not None else None
    return int(found[env[0].ids[0]]) if isinstance(found, np.ndarray) else found


# --- threads ----------------------------------------------------------------------------------


def _meet(machine: Machine, env: Env, number: int, count: int, site: int, waits: bool) -> Wait:
    ids = env[0].ids
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
    """Some threads at a named barrier."""

    def run(machine: Machine, env: Env) -> Wait | None:
        made = _meet(machine, env, _number(number, env), _number(count, env), site, waits)
        return made if waits else None

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
        total = len(machine.block_of)
        over = _meet(machine, env, CLUSTER, total, site, True)
        for thread in env[0].ids:
            machine.arrived_at_cluster[int(thread)] = over

    return run


def cluster_wait(site: int) -> Run:
    """The other half."""

    def run(machine: Machine, env: Env) -> Wait:
        over = {id(q): q for t in env[0].ids if (q := machine.arrived_at_cluster.get(int(t)))}
        return lambda: all(question() for question in over.values())

    return run


# --- barriers in shared memory ----------------------------------------------------------------


def _barriers(
    machine: Machine, pointer: Pointer, env: Env, site: int
) -> list[tuple[MemoryBarrier, Array]]:
    """Return (barrier, threads that mean it)."""
    at, ids = _at(machine, pointer, env), env[0].ids
    made = []
    for place in np.unique(at):
        some = ids[at == place]
        barrier = machine.barriers.get(int(place))
        if barrier is None:
            machine.faults.add("setup", f"no mbarrier was initialised at {int(place)}", site)
            continue
        maker, time = np.full(len(some), barrier.maker), np.full(len(some), barrier.made)
        if not machine.clocks.known(some, maker, time).all():
            machine.faults.add(
                "setup", "an mbarrier is used and nothing orders that with its initialisation",
                barrier.site, site, "a barrier of the block behind mbarrier.init",
            )  # fmt: skip
        made.append((barrier, some))
    return made


def barrier_init(site: int, pointer: Pointer, count: Operand) -> Run:
    """A new barrier."""

    def run(machine: Machine, env: Env) -> None:
        for place, thread in zip(_at(machine, pointer, env), env[0].ids, strict=True):
            machine.barriers[int(place)] = MemoryBarrier(
                machine.clocks, machine.faults, int(place), _number(count, env), int(thread), site
            )
        machine.clocks.tick()

    return run


def barrier_invalidate(site: int, pointer: Pointer) -> Run:
    """No barrier any more."""

    def run(machine: Machine, env: Env) -> None:
        for place in _at(machine, pointer, env):
            machine.barriers.pop(int(place), None)

    return run


def fence_barrier_init(site: int) -> Run:
    """Barriers that a thread has made are seen by asynchronous units."""

    def run(machine: Machine, env: Env) -> None:
        makers = set(env[0].ids.tolist())
        for barrier in machine.barriers.values():
            barrier.is_fenced |= barrier.maker in makers

    return run


def fence_async(site: int) -> Run:
    """What threads know of is seen by asynchronous units."""

    def run(machine: Machine, env: Env) -> None:
        machine.clocks.fence(env[0].ids)
        fence_barrier_init(site)(machine, env)

    return run


def arrive(site: int, pointer: Pointer, rank: Operand = None) -> Run:
    """One arrival of each thread."""
    assert not isinstance(rank, Pointer)
    there = pointer if rank is None else Pointer("shared", offset=pointer.offset, rank=rank)

    def run(machine: Machine, env: Env) -> None:
        for barrier, some in _barriers(machine, there, env, site):
            barrier.arrive(machine.clocks.published(some), len(some), site)

    return run


def expect(site: int, pointer: Pointer, size: Operand, *, arrives: bool) -> Run:
    """Bytes that a phase waits for."""

    def run(machine: Machine, env: Env) -> None:
        for barrier, some in _barriers(machine, pointer, env, site):
            barrier.bytes += _number(size, env) * len(some)
            if arrives:
                barrier.arrive(machine.clocks.published(some), len(some), site)

    return run


def barrier_wait(site: int, pointer: Pointer, parity: Operand) -> Run:
    """Wait for the last phase of a parity."""
    assert not isinstance(parity, Pointer) and parity is not None

    def run(machine: Machine, env: Env) -> Wait:
        phase = parity(env)
        asked = []
        for barrier, some in _barriers(machine, pointer, env, site):
            mine = int(phase[some[0]]) if isinstance(phase, np.ndarray) else int(phase)
            asked.append((barrier, some, mine))

        def over() -> bool:
            if not all(barrier.is_over(mine) for barrier, _, mine in asked):
                return False
            for barrier, some, _ in asked:
                if barrier.complete is not None:
                    machine.clocks.adopt(some, barrier.complete)
            asked.clear()
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
        machine.shared.write(ids, _at(machine, target, env), size, site, copies)
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


def cp_async_arrive(site: int, pointer: Pointer, *, counts: bool) -> Run:
    """An arrival of each thread when its copies have."""

    def run(machine: Machine, env: Env) -> None:
        for barrier, some in _barriers(machine, pointer, env, site):
            told = machine.clocks.published(some)
            times = machine.copies.last[some]
            told.seen[some + machine.clocks.threads] = times
            machine.copies.arrived[some] = np.maximum(machine.copies.arrived[some], times)
            barrier.pending += len(some) * counts
            barrier.arrive(told, len(some), site)

    return run


def load_box(
    site: int, target: Pointer, size: int | Operand, pointer: Pointer, mask: Operand = None
) -> Run:
    """An asynchronous unit writes bytes, and tells a barrier of them."""

    def run(machine: Machine, env: Env) -> None:
        count = size if isinstance(size, int) else _number(size, env)
        starts, places = _at(machine, target, env), _at(machine, pointer, env)
        many = _number(mask, env) if mask is not None else 0
        for start, place, thread in zip(starts, places, env[0].ids, strict=True):
            for shift in _blocks_of(machine, int(thread), many):
                _load(machine, int(start) + shift, count, int(place) + shift, int(thread), site)

    return run


def _blocks_of(machine: Machine, thread: int, mask: int) -> list[int]:
    """Return how far the shared memory of the blocks of a mask is from that of a thread."""
    own, size = int(machine.block_of[thread]), machine.program.shared_bytes
    if not mask:
        return [0]
    return [(b - own) * size for b in range(machine.program.blocks) if mask >> b & 1]


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
        count = size if isinstance(size, int) else _number(size, env)
        granule = machine.program.granule
        for start, thread in zip(_at(machine, source, env), env[0].ids, strict=True):
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
        at = _at(machine, pointer, env)
        if lanes < 32:
            some = ids % 32 < lanes
            ids, at = ids[some], at[some]
        _touch(machine, machine.shared, ids, at, size, site, way)

    return run


def access_global(site: int, slot: int, index: Operand, size: int, way: str) -> Run:
    """Threads read, write or update ``size`` elements of a tensor."""
    assert not isinstance(index, Pointer) and index is not None

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
    """Threads use an array in registers that products use, too."""
    return lambda machine, env: machine.products.touch(env[0].ids, slot, site, writes=writes)


# --- the table --------------------------------------------------------------------------------

FIXED: dict[str, tuple[Callable[[int], Run], str, bool]] = {
    "sync_threads": (sync_threads, "barrier", True),
    "sync_warp": (sync_warp, "barrier", False),
    "cluster_arrive": (cluster_arrive, "barrier", False),
    "cluster_wait": (cluster_wait, "barrier", True),
    "fence_barrier_init": (fence_barrier_init, "fence", False),
    "fence_async": (fence_async, "fence", False),
    "cp_async_commit": (cp_async_commit, "commit", False),
    "bulk_commit": (bulk_commit, "commit", False),
    "wgmma_fence": (lambda s: lambda m, e: m.products.fence(e[0].ids), "registers", False),
    "wgmma_commit": (lambda s: lambda m, e: m.products.commit(e[0].ids), "commit", False),
}
