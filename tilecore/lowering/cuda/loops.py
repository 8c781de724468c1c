"""Loops of a launch: their trips, the values of their variables, and their bodies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tilecore.ir.arithmetic.trips import trip_count
from tilecore.ir.expr import cast, int_value
from tilecore.ir.nodes import For, Gemm, Store
from tilecore.ir.visitor import distinct, loads, regions, walk
from tilecore.lowering.cuda.nests.nest import NestLowering
from tilecore.lowering.tir import add, maximum, mul

if TYPE_CHECKING:
    from tilecore.lowering.cuda.lower import LaunchLowering

PICKED = 64  # turns of a loop that may be written out, so that registers hold what it picks


class Loops:
    """Emits the loops of a launch."""

    def __init__(self, owner: LaunchLowering) -> None:
        self.owner = owner

    def trips(self, stmt: For) -> tuple[Any, Any, Any]:
        """Return (start, trips, step), as numbers where they are known."""
        start, step = (
            self.owner.accessor.integer(stmt.start),
            self.owner.accessor.integer(stmt.step),
        )
        known = [int_value(e) for e in (stmt.start, stmt.stop, stmt.step)]
        if all(k is not None for k in known):
            return start, len(range(*[k for k in known if k is not None])), step
        trips = self.owner.accessor.scalar(cast(trip_count(stmt), "int32"))
        return start, self.owner.builder.bind(maximum(0, trips)), step

    def emit(self, stmt: For) -> None:
        """Emit a loop that is no pipeline."""
        if stmt in self.owner.plan.nests:
            NestLowering(self.owner.accessor, self.owner.plan.nests[stmt], self.owner.inner).emit()
            return
        start, trips, step = self.trips(stmt)
        builder = self.owner.builder
        is_unrolled = stmt.kind in ("unroll", "vectorized")
        if isinstance(trips, int) and (is_unrolled or self._picks_registers(stmt, trips)):
            loop = builder.turns(trips, at_any_length=True) if trips else builder.loop(0)
        else:
            loop = builder.loop(trips)
        with loop as turn, self.owner.running.turns(stmt.body, trips):
            self.iteration(stmt, add(start, mul(turn, step)))

    def _picks_registers(self, stmt: For, trips: int) -> bool:
        """Return whether a short loop of nests says by its variable which registers they take.

        Written out it names them; else they would lie in memory.
        """
        inside = list(walk(stmt.body))
        if trips > PICKED or any(isinstance(s, (Gemm, For)) for s in inside):
            return False
        held = self.owner.plan.fragments
        places = [(load.buffer, load.indices) for s in inside for load in loads(s)]
        places += [(s.buffer, s.indices) for s in inside if isinstance(s, Store)]
        places += [(r.buffer, r.offsets) for s in inside for r in regions(s)]
        return any(
            buffer in held and any(stmt.loop_var in set(distinct(index)) for index in indices)
            for buffer, indices in places
        )

    @contextlib.contextmanager
    def named(self, stmt: For, value: Any) -> Iterator[None]:
        """Give the variable of a loop its value, and what is known of it."""
        accessor = self.owner.accessor
        low, high = accessor.known.bounds(stmt.start), accessor.known.bounds(stmt.stop)
        is_up = (int_value(stmt.step) or 0) > 0
        bounds = (low[0], max(low[0], high[1] - 1)) if is_up and low and high else None
        with accessor.bound(stmt.loop_var, value, bounds, stmt.stop if is_up else None):
            yield

    def iteration(self, stmt: For, value: Any) -> None:
        """Emit the body of a loop for one value of its variable."""
        with self.named(stmt, value):
            self.owner.child(stmt.body)
