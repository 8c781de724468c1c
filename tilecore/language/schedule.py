"""T.PersistentTileScheduler: which tiles a resident block computes, one after another."""

from __future__ import annotations

import functools
from typing import Any

from tilecore.errors import ScopeError
from tilecore.frontend.builder import current
from tilecore.ir.expr import Expr, ExprLike, Load, as_expr, binary, cast, ceildiv
from tilecore.ir.nodes import Store
from tilecore.language.allocate import alloc_var
from tilecore.language.kernel import launch_of


class PersistentTileScheduler:
    """The tiles ``w, w + num_workers, ...`` of a 2-D grid of tiles, for worker ``w``.

    Use: ``sched.init(w)``, then ``while sched.valid():`` with ``sched.m_idx``, ``sched.n_idx`` and
    at the end ``sched.next_tile()``. ``sched.coord(tile)`` alone needs no state.

    Args:
        num_m_tiles: tiles along M.
        num_n_tiles: tiles along N.
        num_workers: workers that share the tiles; default: the blocks launched, or their clusters.
        swizzle_size: width of the panels along the slow axis that are swept together.
        column_major: whether m runs fastest.
        cluster_size: blocks along M that count as one worker; ``m_idx`` then counts clusters.
        stateful: whether the state variables are made.
        name: prefix of their names.
    """

    def __init__(
        self,
        num_m_tiles: ExprLike,
        num_n_tiles: ExprLike,
        num_workers: ExprLike | None = None,
        swizzle_size: int = 1,
        column_major: bool = True,
        cluster_size: int = 1,
        stateful: bool = True,
        name: str | None = None,
    ) -> None:
        rows, columns = as_expr(ceildiv(num_m_tiles, cluster_size)), as_expr(num_n_tiles)
        self.swizzle_size, self.column_major = swizzle_size, column_major
        self.fast, self.slow = (rows, columns) if column_major else (columns, rows)
        self.total = rows * columns
        if num_workers is None:
            grid = launch_of("PersistentTileScheduler").grid
            num_workers = functools.reduce(lambda a, b: a * b, grid) // cluster_size
        self.num_workers = num_workers
        self.state: dict[str, Load] = {}
        for part in ("m_idx", "n_idx", "linear_idx", "current_iter") if stateful else ():
            current().hint = f"{name}_{part}" if name else part
            self.state[part] = alloc_var("int32")

    def coord(self, tile_id: ExprLike) -> tuple[Expr, Expr]:
        """Return (m, n) of a tile number."""
        tile = as_expr(tile_id)
        strip = self.fast * self.swizzle_size
        first = tile // strip * self.swizzle_size
        width = binary("max", binary("min", self.slow - first, self.swizzle_size), 1)
        fast, slow = tile % strip // width, first + tile % strip % width
        return (fast, slow) if self.column_major else (slow, fast)

    def init(self, worker_id: ExprLike) -> None:
        """Start with the first tile of a worker."""
        self._go_to(as_expr(worker_id), as_expr(0))

    def next_tile(self) -> None:
        """Go to the worker's next tile."""
        self._go_to(self.linear_idx + self.num_workers, self.current_iter + 1)

    def valid(self) -> Expr:
        """Return whether there is a tile left."""
        return binary("lt", self.linear_idx, self.total)

    def _go_to(self, tile: Expr, iteration: Expr) -> None:
        self._set("current_iter", iteration)
        self._set("linear_idx", tile)
        m, n = self.coord(self.linear_idx)
        self._set("m_idx", m)
        self._set("n_idx", n)

    def _get(self, part: str) -> Load:
        if part not in self.state:
            raise ScopeError(
                message=f"`{part}` of a tile scheduler without state",
                hint="make it with stateful=True, or use coord(tile)",
            )
        return self.state[part]

    def _set(self, part: str, value: Any) -> None:
        builder, place = current(), self._get(part)
        builder.emit(Store(place.buffer, place.indices, cast(value, "int32"), builder.span))

    @property
    def m_idx(self) -> Load:
        """The row of the tile."""
        return self._get("m_idx")

    @property
    def n_idx(self) -> Load:
        """The column of the tile."""
        return self._get("n_idx")

    @property
    def linear_idx(self) -> Load:
        """The number of the tile."""
        return self._get("linear_idx")

    @property
    def current_iter(self) -> Load:
        """How many tiles the worker has finished."""
        return self._get("current_iter")
