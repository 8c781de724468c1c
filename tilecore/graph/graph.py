"""TileGraph: what a tile program moves, computes and holds, as closed forms of its knobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilecore.graph.closed_form import free_vars, product, total
from tilecore.graph.nodes import UNITS, Access, Edge, TileOp
from tilecore.ir.expr import Expr, Var
from tilecore.ir.nodes import Buffer, PrimFunc
from tilecore.lazy import cached_property


@dataclass(frozen=True, eq=False)
class Launch:
    """One grid of blocks.

    Attributes:
        live_bytes: per scope (shared, fragment, local) the most bytes alive at once in a block.
    """

    block_vars: tuple[Var, ...]
    grid: tuple[Expr, ...]
    threads: tuple[Expr, ...]
    ops: tuple[TileOp, ...]
    tiles: tuple[Buffer, ...]
    live_bytes: dict[str, Expr]

    @cached_property
    def _made(self) -> dict[tuple[object, ...], Expr]:
        """Closed forms that were asked for, by what was asked."""
        return {}

    @cached_property
    def blocks(self) -> Expr:
        """Number of blocks in the grid."""
        return product(self.grid)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """Producer and next consumer of each tile, in program order."""
        found: list[Edge] = []
        writer: dict[Buffer, TileOp] = {}
        for op in self.ops:
            tiles = dict.fromkeys(a.buffer for a in op.reads if a.buffer.scope != "global")
            found.extend(Edge(writer[tile], op, tile) for tile in tiles if tile in writer)
            writer.update({a.buffer: op for a in op.writes})
        return tuple(found)

    def producer(self, tile: Buffer, before: TileOp) -> TileOp | None:
        """Return the last op that writes ``tile`` before ``before``, if any."""
        earlier = [
            op
            for op in self.ops[: before.index]
            if any(access.buffer is tile for access in op.writes)
        ]
        return earlier[-1] if earlier else None

    def accesses(self, *, writes: bool) -> Iterator[tuple[TileOp, Access]]:
        """Yield the reads, or the writes, of tensors."""
        for op in self.ops:
            for access in op.writes if writes else op.reads:
                if access.buffer.scope == "global":
                    yield op, access

    def block_bytes(self, *, writes: bool) -> Expr:
        """Return the bytes of tensors that one interior block moves."""
        key = "block_bytes", writes
        if key not in self._made:
            moved = self.accesses(writes=writes)
            self._made[key] = total(product((a.tile_bytes, op.trips)) for op, a in moved)
        return self._made[key]

    def tensor_bytes(self, buffer: Buffer, *, writes: bool) -> Expr:
        """Return the bytes of ``buffer`` moved by the whole grid; edges clipped, reuse not counted.

        A footprint is moved again for every block along a grid axis, and every trip of a loop, that
        its offsets do not depend on.
        """
        key = "tensor_bytes", buffer, writes
        if key not in self._made:
            self._made[key] = total(
                product((access.footprint_bytes, self.repeats(op, access)))
                for op, access in self.accesses(writes=writes)
                if access.buffer is buffer
            )
        return self._made[key]

    def repeats(self, op: TileOp, access: Access) -> Expr:
        """Return how often the whole footprint of ``access`` is moved by the grid."""
        key = "repeats", op, access
        if key not in self._made:
            axes = [size for i, size in enumerate(self.grid) if i not in access.block_axes]
            loops = [x.trip_count for x in op.loops if all(x is not y for y in access.loops)]
            self._made[key] = product((*axes, *loops))
        return self._made[key]

    def work(self, unit: str, dtype: str | None = None) -> Expr:
        """Return the work of one block on ``unit`` (all dtypes if None), padding included."""
        return total(
            product((w.amount, op.trips))
            for op in self.ops
            for w in op.work
            if w.unit == unit and dtype in (None, str(w.dtype))
        )


@dataclass(frozen=True, eq=False)
class TileGraph:
    """The fused tile graph of one program."""

    func: PrimFunc
    launches: tuple[Launch, ...]

    @property
    def read_bytes(self) -> Expr:
        """Bytes read from tensors by all launches."""
        return self._moved(writes=False)

    @property
    def write_bytes(self) -> Expr:
        """Bytes written to tensors by all launches."""
        return self._moved(writes=True)

    def _moved(self, *, writes: bool) -> Expr:
        return total(
            launch.tensor_bytes(buffer, writes=writes)
            for launch in self.launches
            for buffer in dict.fromkeys(
                access.buffer for _, access in launch.accesses(writes=writes)
            )
        )

    @cached_property
    def variables(self) -> frozenset[Var]:
        """Variables on which grids, loops, tiles and what they read and write depend."""
        found: list[Expr] = []
        for launch in self.launches:
            found += [*launch.grid, *launch.threads, *(e for t in launch.tiles for e in t.shape)]
            for op in launch.ops:
                found += [e for x in op.loops for e in (x.trip_count, x.num_stages)]
                for access in (*op.reads, *op.writes):
                    found += [*access.offsets, *access.extents, *access.buffer.shape]
        return free_vars(*found)

    def work(self, unit: str) -> Expr:
        """Return the work of all blocks on ``unit`` of UNITS, padding included."""
        assert unit in UNITS
        return total(product((launch.work(unit), launch.blocks)) for launch in self.launches)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the closed forms take for granted, in words: lengths of loops that are data."""
        loops = (x for launch in self.launches for op in launch.ops for x in op.loops)
        found = dict.fromkeys(x for x in loops if x.is_data)
        return tuple(
            f"{x.span}: how often the loop over {x.var} runs is data, expected are {x.trip_count}"
            for x in found
        )
