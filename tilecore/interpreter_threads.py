"""The oracle for programs written per thread: one Python thread per GPU thread, real barriers.

Private tiles and variables live in the thread's own machine, everything else in the block's. Tile
operations, and stores that all threads do alike, are done by the first thread of a group while the
others wait. The group is the block; in a branch that only some threads take, by their index, it is
those threads, so roles of warps run concurrently. A wait that nothing can end is an error, as it is
a hang on a GPU.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np

from tilecore.errors import ScopeError, TileError
from tilecore.interpreter import _Machine as Machine
from tilecore.interpreter_memory import Array
from tilecore.ir import nodes
from tilecore.ir.arithmetic.alike import alike_stores
from tilecore.ir.barrier import arrival, arrive_count, deadlock, is_over
from tilecore.ir.expr import Expr, Load, Var
from tilecore.ir.lane_matrix import LANES, place_in_a, place_in_b, place_in_c
from tilecore.ir.nodes import Stmt
from tilecore.ir.plain.named_barriers import in_memory
from tilecore.ir.substitute import substitute_expr
from tilecore.ir.values.conversion import convert
from tilecore.ir.values.evaluate import Evaluator, Mask
from tilecore.ir.visitor import expressions, regions, walk, walk_expr

WARP = 32
PRIVATE = (
    nodes.Seq, nodes.Let, nodes.If, nodes.For, nodes.While, nodes.Store, nodes.Assert, nodes.Atomic,
    nodes.Print, nodes.Jump,
)  # fmt: skip
Complaint = Callable[[], TileError]


def run_threads(block: Machine, launch: nodes.KernelLaunch) -> None:
    """Run the body of ``launch`` for one block whose indices ``block`` knows.

    Raises:
        ScopeError: a barrier that not every thread reaches, or a deadlock (TC104).
        TileError: whatever a thread finds wrong.
    """
    launch = in_memory(launch)
    extents = [int(block.evaluate(e)) for e in launch.threads]
    indices = [tuple(reversed(i)) for i in itertools.product(*map(range, reversed(extents)))]
    weights = representatives(launch, np.asarray(indices))
    clock = _Clock(len(weights))
    shared = _Shared(block, clock, launch, np.asarray(indices), weights)
    machines = [_Thread(shared, number) for number in weights]
    threads = [threading.Thread(target=m.main, args=(launch.body,), daemon=True) for m in machines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if clock.errors:
        raise clock.errors[0]


def representatives(launch: nodes.KernelLaunch, indices: Array) -> dict[int, int]:
    """Return the threads to run and how many threads each stands for.

    Where the index of a thread only decides which branches it takes, all threads that take the same
    ones do the same, and one of them is enough.
    """
    everyone = dict.fromkeys(range(len(indices)), 1)
    own = {id(v) for v in launch.thread_vars}
    lets: dict[Var, Expr] = {}
    columns: list[Array] = []
    evaluate = Evaluator(dict(zip(launch.thread_vars, indices.T, strict=True)))
    for stmt in walk(launch.body):
        found = [substitute_expr(e, lets) for e in expressions(stmt)]
        parts = [p for e in found for p in walk_expr(e)]
        if isinstance(stmt, (nodes.Atomic, *nodes.EXCHANGES, nodes.Print)):
            return everyone
        if not any(id(p) in own for p in parts):
            continue
        if isinstance(stmt, nodes.Let):
            lets[stmt.var] = found[0]
        elif isinstance(stmt, nodes.If) and all(
            id(p) in own for p in parts if isinstance(p, (Var, Load))
        ):
            columns.append(np.broadcast_to(evaluate(found[0]), len(indices)))
        else:
            return everyone
    rows = np.stack([*columns, np.zeros(len(indices), np.bool_)], axis=1)
    _, first, counts = np.unique(rows, axis=0, return_index=True, return_counts=True)
    return {int(i): int(n) for i, n in sorted(zip(first, counts, strict=True))}


class _Stopped(Exception):
    """Ends a thread because another one has failed."""


class _Clock:
    """Who runs and who waits for what: only this class blocks threads, so it knows of deadlocks."""

    def __init__(self, running: int) -> None:
        self.lock = threading.RLock()
        self.running = running
        self.waiting: list[tuple[Callable[[], bool], threading.Event, Complaint]] = []
        self.errors: list[BaseException] = []

    def wait(self, is_ready: Callable[[], bool], complaint: Complaint) -> None:
        """Return once ``is_ready()``; ``complaint`` is the error if that can never be."""
        with self.lock:
            if not self.errors and is_ready():
                return
            event = threading.Event()
            self.waiting.append((is_ready, event, complaint))
            self.rest()
        event.wait()
        if self.errors:
            raise _Stopped

    def changed(self) -> None:
        """Wake the threads that need not wait any more; called with the lock held."""
        still = []
        for waiter in self.waiting:
            if waiter[0]():
                self.running += 1
                waiter[1].set()
            else:
                still.append(waiter)
        self.waiting = still

    def rest(self) -> None:
        """Count out a thread that waits or has ended; find out whether any can go on."""
        with self.lock:
            self.running -= 1
            if not self.running and self.waiting:
                found = [complaint() for _, _, complaint in self.waiting]
                self.fail(next((e for e in found if e.message.startswith("deadlock")), found[0]))

    def fail(self, error: BaseException) -> None:
        """Keep an error and end all threads."""
        with self.lock:
            self.errors.append(error)
            for _, event, _ in self.waiting:
                event.set()


class _Group:
    """Threads that do tile operations together."""

    def __init__(self, clock: _Clock, members: tuple[int, ...]) -> None:
        self.clock, self.members = clock, members
        self.here = 0
        self.turn = 0
        self.told: dict[int, Any] = {}
        self.parts: dict[tuple[int, ...], _Group] = {}

    def wait(self, stmt: Stmt) -> None:
        """Wait for all threads of the group."""
        with self.clock.lock:
            turn = self.turn
            self.here += 1
            if self.here == len(self.members):
                self.here = 0
                self.turn += 1
                self.clock.changed()

        def complaint() -> TileError:
            return ScopeError(
                message="a barrier is not reached by every thread of the block",
                hint="move it out of branches and loops that depend on the thread",
                span=stmt.span,
            )

        self.clock.wait(lambda: self.turn != turn, complaint)

    def part(self, members: tuple[int, ...]) -> _Group:
        """Return the group of some of the threads, one object for all of them."""
        with self.clock.lock:
            return self.parts.setdefault(members, _Group(self.clock, members))


class _Shared:
    """What all threads of a block know."""

    def __init__(
        self,
        block: Machine,
        clock: _Clock,
        launch: nodes.KernelLaunch,
        indices: Array,
        weights: dict[int, int],
    ) -> None:
        self.everyone = _Group(clock, tuple(weights))
        self.block, self.clock, self.launch, self.indices = block, clock, launch, indices
        self.weights = weights
        self.alike = alike_stores(launch)
        inside = [
            (s, any(is_joint(i) or id(i) in self.alike for i in walk(s))) for s in walk(launch)
        ]
        self.meeting = {id(s) for s, meets in inside if meets}


def is_joint(stmt: Stmt) -> bool:
    """Return whether the threads of a group meet at ``stmt``."""
    if isinstance(stmt, nodes.Alloc):
        return False
    if isinstance(stmt, nodes.Arrive):
        return stmt.once
    if isinstance(stmt, nodes.Wait):
        return True
    return not isinstance(stmt, PRIVATE) and not _is_local(stmt)


def _is_local(stmt: Stmt) -> bool:
    return any(r.buffer.scope == "local" for r in regions(stmt))


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

    def __init__(self, shared: _Shared, number: int) -> None:
        super().__init__(shared.block.func, None)
        self.evaluate.values.update(shared.block.evaluate.values)
        self.own: dict[int, Array] = {}
        self.memory = _Memory(shared.block.memory, self.own)
        self.shared, self.group, self.number = shared, shared.everyone, number
        self.lets: dict[Var, Expr] = {}
        for var, index in zip(shared.launch.thread_vars, shared.indices[number], strict=False):
            self.evaluate.set(var, int(index))

    def main(self, body: Stmt) -> None:
        """Run the body; the first error ends the others."""
        try:
            with np.errstate(all="ignore"):
                self.run(body)
        except _Stopped:
            pass
        except BaseException as error:  # noqa: BLE001  the border of a thread
            self.shared.clock.fail(error)
        self.shared.clock.rest()

    def run(self, stmt: Stmt, mask: Mask = True) -> None:
        """Run one statement: by this thread, or together with the others of its group."""
        clock = self.shared.clock
        match stmt:
            case nodes.Exchange():
                self.exchange(stmt)
            case nodes.LaneGemm():
                self.multiply(stmt)
            case nodes.Sync():
                self.place_of(stmt).wait(stmt)
            case nodes.Wait():
                clock.wait(
                    lambda: bool(self.evaluate(is_over(stmt))),
                    lambda: ScopeError(message=deadlock(stmt), span=stmt.span),
                )
            case nodes.Arrive(once=False):
                self.count_arrival(stmt)
            case nodes.Atomic():
                with clock.lock:
                    super().run(stmt, mask)
            case nodes.If() if id(stmt) in self.shared.meeting and self.depends(stmt.cond):
                self.branch(stmt, mask)
            case _ if self.is_private(stmt):
                if isinstance(stmt, nodes.Let):
                    self.lets[stmt.var] = substitute_expr(stmt.value, self.lets)
                super().run(stmt, mask)
            case _:
                self.together(stmt, mask)

    def together(self, stmt: Stmt, mask: Mask) -> None:
        """Run a tile operation once for the group."""
        self.group.wait(stmt)
        if self.number == self.group.members[0]:
            if isinstance(stmt, nodes.Arrive):
                self.count_arrival(stmt)
            else:
                super().run(stmt, mask)
                self.shared.block.memory.update(self.shared_arrays(stmt))
        self.group.wait(stmt)

    def count_arrival(self, stmt: nodes.Arrive) -> None:
        """Count the arrivals of the threads this one stands for; wake who waits for the last."""
        with self.shared.clock.lock:
            super().run(arrival(stmt, 1 if stmt.once else self.shared.weights[self.number]))
            count = int(self.evaluate(arrive_count(stmt.buffer, stmt.index)))
            arrived = self.array(stmt.buffer)[int(self.evaluate(stmt.index))]
            if arrived % count == 0:
                self.shared.clock.changed()

    def depends(self, cond: Expr) -> bool:
        """Return whether only the index of a thread, nothing it computed, takes it elsewhere."""
        parts = list(walk_expr(substitute_expr(cond, self.lets)))
        known = {id(v) for v in self.shared.launch.thread_vars}
        return any(id(p) in known for p in parts) and not any(isinstance(p, Load) for p in parts)

    def branch(self, stmt: nodes.If, mask: Mask) -> None:
        """Take one side of a branch with the threads of the group that take it too."""
        cond = substitute_expr(stmt.cond, self.lets)
        values = dict(self.evaluate.values)
        members = np.asarray(self.group.members)
        for var, column in zip(self.shared.launch.thread_vars, self.shared.indices.T, strict=False):
            self.evaluate.set(var, column[members])
        taken = np.broadcast_to(np.asarray(self.evaluate(cond)), members.shape)
        self.evaluate.values.clear()
        self.evaluate.values.update(values)
        mine = bool(taken[self.group.members.index(self.number)])
        body = stmt.then_body if mine else stmt.else_body
        if body is None:
            return
        outside = self.group
        self.group = outside.part(tuple(int(m) for m in members[taken == mine]))
        self.run(body, mask)
        self.group = outside

    def is_private(self, stmt: Stmt) -> bool:
        """Return whether every thread runs ``stmt`` for itself."""
        if id(stmt) in self.shared.alike:
            return False
        if isinstance(stmt, PRIVATE):
            return True
        if isinstance(stmt, nodes.Alloc):
            return stmt.buffer.scope == "local"
        return _is_local(stmt)

    def shared_arrays(self, stmt: Stmt) -> dict[int, Array]:
        """Return (and give up) the array that an allocation for the block has made."""
        if not isinstance(stmt, nodes.Alloc):
            return {}
        return {id(stmt.buffer): self.own.pop(id(stmt.buffer))}

    def place_of(self, stmt: nodes.Sync) -> _Group:
        """Return the threads that a barrier is for."""
        if stmt.scope == "block":
            return self.shared.everyone
        return self.of_lanes(WARP) if stmt.scope == "warp" else self.group

    def of_lanes(self, width: int) -> _Group:
        """Return the threads of the group that stand in the same ``width`` lanes as this one."""
        members = self.group.members
        near = tuple(m for m in members if m // width == self.number // width)
        return self.group if near == members else self.group.part(near)

    def exchange(self, stmt: nodes.Exchange) -> None:
        """Tell the group a value and keep what it says."""
        group = self.of_lanes(stmt.width) if stmt.width else self.group
        members = group.members
        group.told[self.number] = np.asarray(self.evaluate(stmt.args[0]))
        group.wait(stmt)
        told = dict(group.told)
        group.wait(stmt)
        number, width = self.number, stmt.width
        if not width:  # all that come by, wherever they stand
            number, width = members.index(number), len(members)
            told = {n: told[m] for n, m in enumerate(members)}
        start = number // width * width
        lanes = {n - start: value for n, value in told.items() if start <= n < start + width}
        if stmt.op in nodes.SHUFFLES:
            given, own = int(self.evaluate(stmt.args[1])), number - start
            source = _source(stmt.op, own, given, width)
            result = lanes[source if source in lanes else own]
        else:
            result = _combined(stmt.op, lanes)
        array = self.memory[id(stmt.dst)]
        array[(0,) * array.ndim] = convert(np.asarray(result), array.dtype)

    def multiply(self, stmt: nodes.LaneGemm) -> None:
        """Add this lane's part of the product of what all lanes of the warp hold."""
        group, lane = self.of_lanes(LANES), self.number % LANES
        group.told[self.number] = tuple(self.piece(r).copy() for r in (stmt.a, stmt.b))
        group.wait(stmt)
        told = dict(group.told)
        group.wait(stmt)
        m, n, k = stmt.shape
        exact = np.int64 if stmt.c.dtype.is_integer else np.float64
        a, b = np.zeros((m, k), exact), np.zeros((k, n), exact)
        for number, (mine, other) in told.items():
            for element, value in enumerate(mine):
                a[place_in_a(number % LANES, element, stmt.shape, stmt.a.dtype)] = value
            for element, value in enumerate(other):
                b[place_in_b(number % LANES, element, stmt.b.dtype)] = value
        sums = self.piece(stmt.c)
        for element in range(len(sums)):
            row, column = place_in_c(lane, element)
            total = exact(sums[element]) + a[row] @ b[:, column]
            sums[element] = convert(np.asarray(total), sums.dtype)

    def piece(self, region: nodes.Region) -> Array:
        """Return a view of this thread's elements of a matrix."""
        start = int(self.evaluate(region.offsets[0]))
        return self.memory[id(region.buffer)][start : start + int(self.evaluate(region.extents[0]))]


def _source(op: str, lane: int, given: int, width: int) -> int:
    if op == "shfl":
        return given % width
    source = {"shfl_xor": lane ^ given, "shfl_up": lane - given, "shfl_down": lane + given}[op]
    return source if 0 <= given < width and 0 <= source < width else lane


def _combined(op: str, lanes: Mapping[int, Any]) -> Any:
    if op == "ballot":
        return sum(int(bool(v)) << lane for lane, v in lanes.items())
    values = np.stack([lanes[lane] for lane in sorted(lanes)])
    combine: dict[str, Callable[..., Any]] = {
        "sum": np.sum, "prod": np.prod, "count": np.sum, "max": np.max, "min": np.min,
        "any": np.any, "all": np.all,
        "bitand": np.bitwise_and.reduce, "bitor": np.bitwise_or.reduce,
        "bitxor": np.bitwise_xor.reduce,
    }  # fmt: skip
    return combine[op](values, axis=0)
