"""What products in shared and tensor memory do (wgmma, tcgen05).

Source: PTX ISA 9.0, sections 9.7.15 (wgmma) and 9.7.16 (tcgen05).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilecore.ordering.clocks import Knowledge
from tilecore.ordering.machine import TENSOR_CELLS, Machine
from tilecore.ordering.operands import (
    CHUNK,
    Descriptor,
    Operand,
    Pointer,
    Run,
    addresses,
    blocks_of,
    chunks_of,
    masks_of,
    number_of,
    pair_of,
)
from tilecore.ordering.products import WARPGROUP, Issued
from tilecore.ordering.program import Array, Env
from tilecore.ordering.shadow import Shadow

QUARTERS = 4  # of the 128 lanes of tensor memory, one per warp
FOLDED_ROWS = 128  # of two blocks, whose sums take half the columns of twice the lanes
LANES = 32  # of a quarter
COPIED_BYTES, COPIED_COLUMNS = 512, 4  # of a copy of words


def descriptor(pointer: Pointer, swizzle: int, leading: int, stride: int) -> Any:
    """Return the expression of a matrix descriptor."""
    return lambda env: Descriptor(pointer.offset(env), swizzle, leading, stride)


def _granules(machine: Machine, thread: int, given: Any, extent: int, itemsize: int,
              across_k: bool, block: int | None = None) -> Array:  # fmt: skip
    """Return the pieces of shared memory that an operand lies in: of a block, or the thread's."""
    assert isinstance(given, Descriptor)
    start = given.start[thread] if isinstance(given.start, np.ndarray) else given.start
    owner = int(machine.block_of[thread]) if block is None else block
    at = chunks_of(
        int(start) + owner * machine.program.shared_bytes, given.swizzle, given.leading,
        given.stride, extent, itemsize, across_k,
    )  # fmt: skip
    each = CHUNK // machine.program.granule
    return at if each == 1 else (at[:, None] * each + np.arange(each)).ravel()


def wgmma(site: int, n: int, itemsize: int, majors: str, d: Pointer, a: Operand, b: Operand) -> Run:
    """A product of 64 rows by each warpgroup that runs."""
    assert not isinstance(b, Pointer)
    assert b is not None
    in_registers = isinstance(a, Pointer)

    def run(machine: Machine, env: Env) -> None:
        right = b(env)
        left = None if isinstance(a, Pointer) or a is None else a(env)
        for number, _ in machine.products.warpgroups(env[0].ids):
            thread, now = number * WARPGROUP, machine.clocks.tick()
            agent = machine.products.agent(number)
            machine.products.issue(
                number, Issued(now, site, d.slot, a.slot if isinstance(a, Pointer) else None)
            )
            if not in_registers:
                at = _granules(machine, thread, left, 64, itemsize, majors[0] != "k")
                machine.shared.read_by(agent, thread, at, site)
            at = _granules(machine, thread, right, n, itemsize, majors[1] != "k")
            machine.shared.read_by(agent, thread, at, site)

    return run


# --- tensor memory ----------------------------------------------------------------------------


def _cells(block: int, address: int, columns: int, quarters: Array) -> Array:
    first = (address & 0xFFFF) + np.arange(columns)
    cells: Array = (block * TENSOR_CELLS + first[:, None] * QUARTERS + quarters).ravel()
    return cells


def _unit(machine: Machine, thread: int) -> int:
    block = int(machine.block_of[thread])
    return machine.clocks.unit(("tcgen05", block), f"tcgen05.mma of block {block}", of_tensor=True)


def tensor_allocate(site: int, pointer: Pointer) -> Run:
    """A warp writes the address of columns, which is 0 here, to shared memory."""

    def run(machine: Machine, env: Env) -> None:
        at, ids = addresses(machine, pointer, env)[:1], env[0].ids[:1]
        machine.clocks.tick()
        machine.shared.write(ids, at, 4, site, ids)
        machine.words[int(at[0])] = 0

    return run


def tensor_mma(
    site: int, m: int, n: int, itemsize: int, majors: str, d: Operand, a: Operand, b: Operand,
    accumulates: Operand, *, a_in_tensor: bool, in_pair: bool, factors: Sequence[Operand] = (),
) -> Run:  # fmt: skip
    """A product by the thread that runs; products of a block follow each other.

    ``in_pair``: of two blocks, each of which has half of A, of B and of the sums. ``factors``:
    where in tensor memory those of A and of B lie, a column for 32 rows.
    """
    assert not isinstance(a, Pointer)
    assert not isinstance(b, Pointer)
    assert a is not None
    assert b is not None
    all_lanes, share = np.arange(QUARTERS), 2 if in_pair else 1
    columns = n // 2 if in_pair and m == FOLDED_ROWS else n

    def run(machine: Machine, env: Env) -> None:
        for thread in env[0].ids.tolist():
            machine.clocks.tick()
            agent, memory = _unit(machine, thread), machine.tensor_memory()
            machine.own_products.setdefault(agent, []).append(machine.clocks.now)
            own = (int(machine.block_of[thread]),)
            for block in pair_of(machine, thread) if in_pair else own:
                if a_in_tensor:
                    at = _cells(block, number_of(a, env), 8, all_lanes)
                    _own(memory, machine, agent, thread, at, site, writes=False)
                else:
                    across = majors[0] != "k"
                    at = _granules(machine, thread, a(env), m // share, itemsize, across, block)
                    machine.shared.read_by(agent, thread, at, site, behind=True)
                across = majors[1] != "k"
                at = _granules(machine, thread, b(env), n // share, itemsize, across, block)
                machine.shared.read_by(agent, thread, at, site, behind=True)
                for place, extent in zip(factors, (m // share, n), strict=False):
                    at = _cells(block, number_of(place, env), -(-extent // LANES), all_lanes)
                    _own(memory, machine, agent, thread, at, site, writes=False)
                at = _cells(block, number_of(d, env), columns, all_lanes)
                _own(memory, machine, agent, thread, at, site, writes=True)

    return run


def tensor_copy(site: int, d: Operand, source: Operand, *, in_pair: bool) -> Run:
    """A copy of words to tensor memory by the unit of products, which runs it among these.

    ``in_pair``: in each of two blocks.
    """
    assert not isinstance(source, Pointer)
    assert source is not None

    def run(machine: Machine, env: Env) -> None:
        given = source(env)
        assert isinstance(given, Descriptor)
        for thread in env[0].ids.tolist():
            machine.clocks.tick()
            agent, memory = _unit(machine, thread), machine.tensor_memory()
            machine.own_products.setdefault(agent, []).append(machine.clocks.now)
            start = given.start[thread] if isinstance(given.start, np.ndarray) else given.start
            own = (int(machine.block_of[thread]),)
            granule = machine.program.granule
            for block in pair_of(machine, thread) if in_pair else own:
                first = (int(start) + block * machine.program.shared_bytes) // granule
                at = first + np.arange(COPIED_BYTES // granule)
                machine.shared.read_by(agent, thread, at, site, behind=True)
                cells = _cells(block, number_of(d, env), COPIED_COLUMNS, np.arange(QUARTERS))
                _own(memory, machine, agent, thread, cells, site, writes=True)

    return run


def _own(
    memory: Shadow, machine: Machine, agent: int, thread: int, at: Array, site: int, *, writes: bool
) -> None:
    """Let the unit of products access tensor memory; its own accesses are in order."""
    ids = np.array([thread])
    before = machine.clocks.bases[machine.clocks.base[thread]]
    machine.clocks.tell_own(ids, agent, machine.clocks.now)
    if writes:
        memory.write_by(agent, thread, at, site)
    else:
        memory.read_by(agent, thread, at, site)
    machine.clocks.set(ids, before)


def tensor_commit(site: int, pointer: Pointer, mask: Operand) -> Run:
    """An arrival when the products so far are complete."""

    def run(machine: Machine, env: Env) -> None:
        places = addresses(machine, pointer, env)
        masks = masks_of(mask, env)
        for place, thread, many in zip(places, env[0].ids.tolist(), masks, strict=True):
            told = machine.clocks.published(np.array([thread]))
            agent = _unit(machine, thread)
            seen, tensor = told.seen.copy(), told.tensor.copy()
            seen[agent] = tensor[agent] = max(machine.own_products.get(agent, [0]))
            for shift in blocks_of(machine, thread, many):
                barrier = machine.barriers.get(int(place) + shift)
                if barrier is None:
                    machine.faults.add("setup", f"no mbarrier at {int(place) + shift}", site)
                else:
                    barrier.arrive(Knowledge(seen, told.fenced, tensor, told.after), 1, site)

    return run


def tensor_move(
    site: int, columns: int, address: Operand, registers: int | None, *, stores: bool
) -> Run:
    """Warps load (to an array of each thread) or store columns of their lanes, some time."""
    assert not isinstance(address, Pointer)
    assert address is not None

    def run(machine: Machine, env: Env) -> None:
        given, ids = address(env), env[0].ids
        if given is None:
            return
        machine.clocks.tick()
        memory, word = machine.tensor_memory(), "store" if stores else "load"
        for warp in np.unique(ids // 32).tolist():
            thread = warp * 32
            name = f"tcgen05 {word} of warp {warp}"
            agent = machine.clocks.unit((word, warp), name, of_tensor=True)
            if registers is not None:
                machine.loading.setdefault(warp, {})[registers] = site
            machine.moves.setdefault((stores, warp), []).append(machine.clocks.now)
            where = (
                int(given[ids[ids // 32 == warp][0]]) if isinstance(given, np.ndarray) else given
            )
            quarter = warp % QUARTERS
            block = int(machine.block_of[thread])
            at = _cells(block, int(where), columns, np.array([quarter]))
            (memory.write_by if stores else memory.read_by)(agent, thread, at, site)

    return run


def tensor_wait(site: int, *, stores: bool) -> Run:
    """Wait for the loads or stores of each warp that runs."""

    def run(machine: Machine, env: Env) -> None:
        ids = env[0].ids
        for warp in np.unique(ids // 32).tolist():
            times = machine.moves.pop((stores, warp), [])
            if not stores:
                machine.loading.pop(warp, None)
            if times:
                agent = machine.clocks.unit(("store" if stores else "load", warp), "")
                machine.clocks.tell_own(ids[ids // 32 == warp], agent, max(times))

    return run


def tensor_fence(site: int, *, before: bool) -> Run:
    """Orders accesses of tensor memory with a barrier that follows, or came before."""
    return lambda machine, env: machine.clocks.fence_tensor(env[0].ids, before=before)
