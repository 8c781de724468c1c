"""What instructions do to barriers in shared memory (mbarrier), and fences.

Source: PTX ISA 9.0, sections 9.7.13.15 (mbarrier) and 9.7.13.4 (fence).
"""

from __future__ import annotations

import numpy as np

from tilecore.ordering.barriers import MemoryBarrier
from tilecore.ordering.machine import Machine
from tilecore.ordering.operands import FollowsFromData, Operand, Pointer, Run, addresses, number_of
from tilecore.ordering.program import Array, Env, Wait


def barriers_at(
    machine: Machine, pointer: Pointer, env: Env, site: int
) -> list[tuple[MemoryBarrier, Array]]:
    """Return (barrier, threads that mean it)."""
    at, ids = addresses(machine, pointer, env), env[0].ids
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
        for place, thread in zip(addresses(machine, pointer, env), env[0].ids, strict=True):
            machine.barriers[int(place)] = MemoryBarrier(
                machine.clocks, machine.faults, int(place), number_of(count, env), int(thread), site
            )
        machine.clocks.tick()

    return run


def barrier_invalidate(site: int, pointer: Pointer) -> Run:
    """No barrier any more."""

    def run(machine: Machine, env: Env) -> None:
        for place in addresses(machine, pointer, env):
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
        for barrier, some in barriers_at(machine, there, env, site):
            barrier.arrive(machine.clocks.published(some), len(some), site)

    return run


def expect(
    site: int, pointer: Pointer, size: Operand, *, arrives: bool, rank: Operand = None
) -> Run:
    """Bytes that a phase waits for; ``rank``: of a barrier of another block."""
    assert not isinstance(rank, Pointer)
    there = pointer if rank is None else Pointer("shared", offset=pointer.offset, rank=rank)

    def run(machine: Machine, env: Env) -> None:
        for barrier, some in barriers_at(machine, there, env, site):
            barrier.bytes += number_of(size, env) * len(some)
            if arrives:
                barrier.arrive(machine.clocks.published(some), len(some), site)

    return run


def barrier_wait(site: int, pointer: Pointer, parity: Operand) -> Run:
    """Wait for the last phase of a parity."""
    assert not isinstance(parity, Pointer)

    def run(machine: Machine, env: Env) -> Wait:
        phase = None if parity is None else parity(env)
        if phase is None:
            raise FollowsFromData
        asked = []
        for barrier, some in barriers_at(machine, pointer, env, site):
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


def cp_async_arrive(site: int, pointer: Pointer, *, counts: bool) -> Run:
    """An arrival of each thread when its copies have."""

    def run(machine: Machine, env: Env) -> None:
        for barrier, some in barriers_at(machine, pointer, env, site):
            told = machine.clocks.published(some)
            times = machine.copies.last[some]
            told.seen[some + machine.clocks.threads] = times
            machine.copies.arrived[some] = np.maximum(machine.copies.arrived[some], times)
            barrier.pending += len(some) * counts
            barrier.arrive(told, len(some), site)

    return run
