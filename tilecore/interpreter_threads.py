"""The oracle for programs written per thread: one Python thread per GPU thread, real barriers.

Private tiles and variables live in the thread's own machine, everything else in the block's. Tile
operations are done by the first thread while the others wait. A barrier that not all threads reach
is an error, as it is a hang on a GPU.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import numpy as np

from tilecore.errors import ScopeError
from tilecore.interpreter import Array
from tilecore.interpreter import _Machine as Machine
from tilecore.ir import nodes
from tilecore.ir.evaluate import Mask, convert
from tilecore.ir.nodes import Stmt
from tilecore.ir.visitor import regions

BARRIER_TIMEOUT_S = 60.0
PRIVATE = (
    nodes.Seq, nodes.Let, nodes.If, nodes.For, nodes.While, nodes.Store, nodes.Assert, nodes.Atomic,
    nodes.Print,
)  # fmt: skip


def run_threads(block: Machine, launch: nodes.KernelLaunch) -> None:
    """Run the body of ``launch`` for one block whose indices ``block`` knows.

    Raises:
        ScopeError: a barrier that not every thread reaches (TC104).
        TileError: whatever a thread finds wrong.
    """
    extents = [int(block.evaluate(e)) for e in launch.threads]
    group = _Group(int(np.prod(extents)))
    indices = itertools.product(*(range(n) for n in reversed(extents)))
    machines = []
    for number, reversed_index in enumerate(indices):
        machine = _Thread(block, group, number)
        for var, value in zip(launch.thread_vars, reversed(reversed_index), strict=True):
            machine.evaluate.set(var, value)
        machines.append(machine)
    threads = [threading.Thread(target=m.main, args=(launch.body,), daemon=True) for m in machines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if group.errors:
        raise group.errors[0]


class _Group:
    """What the threads of a block share."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.barrier = threading.Barrier(count)
        self.lock = threading.Lock()
        self.told: list[Any] = [None] * count
        self.errors: list[BaseException] = []

    def wait(self) -> None:
        """Wait for all threads of the block."""
        try:
            self.barrier.wait(BARRIER_TIMEOUT_S)
        except threading.BrokenBarrierError:
            raise ScopeError(
                message="a barrier is not reached by every thread of the block",
                hint="move it out of branches and loops that depend on the thread",
            ) from None


class _Memory(MutableMapping[int, Array]):
    """Private arrays before those of the block."""

    def __init__(self, shared: MutableMapping[int, Array], own: dict[int, Array]) -> None:
        self.shared, self.own = shared, own

    def __getitem__(self, key: int) -> Array:
        return self.own[key] if key in self.own else self.shared[key]

    def __setitem__(self, key: int, value: Array) -> None:
        self.own[key] = value

    def __delitem__(self, key: int) -> None:
        del self.own[key]

    def __iter__(self) -> Iterator[int]:
        return iter({**self.shared, **self.own})

    def __len__(self) -> int:
        return len({**self.shared, **self.own})


class _Thread(Machine):
    """The machine of one thread."""

    def __init__(self, block: Machine, group: _Group, number: int) -> None:
        super().__init__(block.func, None)
        self.evaluate.values.update(block.evaluate.values)
        self.own: dict[int, Array] = {}
        self.memory = _Memory(block.memory, self.own)
        self.block, self.group, self.number = block, group, number

    def main(self, body: Stmt) -> None:
        """Run the body; the first error ends the others at their next barrier."""
        try:
            with np.errstate(all="ignore"):
                self.run(body)
        except BaseException as error:  # noqa: BLE001  the border of a thread
            self.group.errors.append(error)
            self.group.barrier.abort()

    def run(self, stmt: Stmt, mask: Mask = True) -> None:
        """Run one statement: by this thread, or together with the others."""
        if isinstance(stmt, nodes.Exchange):
            self.exchange(stmt)
        elif isinstance(stmt, nodes.Sync):
            self.group.wait()
        elif isinstance(stmt, nodes.Atomic):
            with self.group.lock:
                super().run(stmt, mask)
        elif self.is_private(stmt):
            super().run(stmt, mask)
        else:
            self.group.wait()
            if self.number == 0:
                super().run(stmt, mask)
                self.block.memory.update(self.shared_arrays(stmt))
            self.group.wait()

    def is_private(self, stmt: Stmt) -> bool:
        """Return whether every thread runs ``stmt`` for itself."""
        if isinstance(stmt, PRIVATE):
            return True
        if isinstance(stmt, nodes.Alloc):
            return stmt.buffer.scope == "local"
        return any(r.buffer.scope == "local" for r in regions(stmt))

    def shared_arrays(self, stmt: Stmt) -> dict[int, Array]:
        """Return (and give up) the array that an allocation for the block has made."""
        if not isinstance(stmt, nodes.Alloc):
            return {}
        return {id(stmt.buffer): self.own.pop(id(stmt.buffer))}

    def exchange(self, stmt: nodes.Exchange) -> None:
        """Tell the group a value and keep what it says."""
        value = np.asarray(self.evaluate(stmt.args[0]))
        self.group.told[self.number] = value
        self.group.wait()
        told = list(self.group.told)
        self.group.wait()
        width = stmt.width or self.group.count
        start = self.number // width * width
        lanes = told[start : start + width]
        lane = self.number - start
        if stmt.op in nodes.SHUFFLES:
            given = int(self.evaluate(stmt.args[1]))
            result = lanes[_source(stmt.op, lane, given, width)]
        else:
            result = _combined(stmt.op, lanes)
        array = self.memory[id(stmt.dst)]
        array[(0,) * array.ndim] = convert(np.asarray(result), array.dtype)


def _source(op: str, lane: int, given: int, width: int) -> int:
    if op == "shfl":
        return given % width
    source = {"shfl_xor": lane ^ given, "shfl_up": lane - given, "shfl_down": lane + given}[op]
    return source if 0 <= source < width else lane


def _combined(op: str, lanes: list[Any]) -> Any:
    values = np.stack(lanes)
    if op == "ballot":
        return sum(int(bool(v)) << i for i, v in enumerate(values))
    combine: dict[str, Callable[..., Any]] = {
        "sum": np.sum, "count": np.sum, "max": np.max, "min": np.min, "any": np.any, "all": np.all,
        "bitand": np.bitwise_and.reduce, "bitor": np.bitwise_or.reduce,
        "bitxor": np.bitwise_xor.reduce,
    }  # fmt: skip
    return combine[op](values, axis=0)
