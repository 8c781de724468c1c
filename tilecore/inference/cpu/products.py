"""How the products of a launch are computed: by which instruction, with how many sums at once.

It is chosen before any tile has its place: in what form an operand lies follows from what reads it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilecore.errors import InvalidConfig
from tilecore.inference.cpu import computed, dots, few_rows
from tilecore.inference.cpu.options import CpuOptions
from tilecore.inference.cpu.plan import TileSource
from tilecore.inference.cpu.regions import gemm_extents
from tilecore.inference.uses import Use
from tilecore.ir.gemm_shape import accumulator_dtype
from tilecore.ir.nodes import Buffer, Gemm, KernelLaunch
from tilecore.ir.visitor import walk
from tilecore.target import Target

LATENCY_BOUND_SUMS = 8  # 4 cycles of FMA latency x 2 ports (Intel optimization manual)


class Products:
    """What is chosen for the gemms of a launch.

    Raises:
        InvalidConfig: the register tile asked for does not fit a gemm or the target (TC303).

    Attributes:
        gemms: all of them, in program order.
        operands: what they read.
        forms: of those of few rows, how their second operand is read where it lies.
        dots: the instruction that sums up several products, of those that use one.
        computed: the nest that computes the second operand in registers, of those that have one.
        most_rows: how many rows of each can be real.
        register_tiles: rows, and vectors (rows of b for dots of rows), of sums at once.
        notes: the choices in words.
    """

    def __init__(
        self, launch: KernelLaunch, by_buffer: Mapping[Buffer, list[Use]],
        sources: Mapping[Buffer, TileSource], target: Target, options: CpuOptions,
    ) -> None:  # fmt: skip
        self.target, self.options = target, options
        self.gemms = [s for s in walk(launch) if isinstance(s, Gemm)]
        self.operands = {region.buffer for g in self.gemms for region in (g.a, g.b)}
        chosen = few_rows.choose(self.gemms, by_buffer, sources, launch, target, options)
        self.forms = {g: form for g, form in chosen.items() if not _is_kept(g, sources, options)}
        packed = [g for g in self.gemms if g not in self.forms]
        self.dots, notes = dots.choose(packed, by_buffer, target)
        self.notes = list(notes)
        self.dots |= few_rows.instructions(self.forms, by_buffer, target)
        self.most_rows = {g: few_rows.most_rows(g, sources) for g in self.gemms}
        self.computed = computed.choose(
            {g: self.dots[g] for g in packed if g in self.dots},
            by_buffer, self.most_rows, launch, target, options,
        )  # fmt: skip
        self.register_tiles = {g: self._register_tile(g) for g in self.gemms}

    def tile(self, gemm: Gemm) -> tuple[int, int] | None:
        """Return the rows and groups of the tiles that a gemm works on; None: on vectors."""
        dot = self.dots.get(gemm)
        return dots.tile_of(gemm, dot) if dot is not None and dot.is_tiled else None

    def group(self, gemm: Gemm) -> int:
        """Return how many products the instruction of a gemm sums up."""
        return self.dots[gemm].group if gemm in self.dots else 1

    def _register_tile(self, gemm: Gemm) -> tuple[int, int]:
        """Return how many rows and vectors of sums registers hold at once, and note why."""
        form, most_rows = self.forms.get(gemm), self.most_rows[gemm]
        if form is not None:
            size = few_rows.register_tile(gemm, form, most_rows, self.target, self.options)
            dot = self.dots.get(gemm)
            self.notes.append(few_rows.describe(gemm, form, most_rows, size, dot))
            return size
        (m, n), lanes = gemm_extents(gemm.c), self.target.lanes(accumulator_dtype(gemm))
        vectors, tile = math.ceil(n / lanes), self.tile(gemm)
        if tile is not None:
            name, (rows_, groups) = self.dots[gemm].name, tile
            self.notes.append(
                f"{gemm.span}: gemm {m}x{n}: 2 x 2 tiles of {rows_} rows x {lanes} columns, "
                f"{groups} groups deep (micro_m and micro_n have no effect); {name}"
            )
            return min(2 * rows_, m), min(2, vectors)
        if gemm in self.computed:
            size = computed.register_tile(gemm, most_rows, self.target)
            self.notes.append(
                f"{gemm.span}: gemm {m}x{n}: register tile {size[0]} rows x {size[1]} vectors of "
                f"{lanes} lanes (micro_m and micro_n have no effect); lanes run along N; "
                f"{self.dots[gemm].name}; b is computed in registers"
            )
            return size
        most = max(2, LATENCY_BOUND_SUMS // m)  # of few rows each has several vectors in flight
        micro_n = min(self.options.micro_n or most, vectors)
        budget = self.target.vector_registers - micro_n - 1
        micro_m = min(self.options.micro_m or max(1, budget // micro_n), m)
        is_one = m == 1 and not self.options.micro_n  # its vectors of b are used from memory
        if not is_one and not self.target.micro_tile_fits(micro_m, micro_n):
            raise InvalidConfig(
                knob="micro_m",
                value=micro_m,
                expected=f"a register tile of at most {self.target.vector_registers} registers "
                f"({micro_m} x {micro_n} vectors needs {micro_m * micro_n + micro_n + 1})",
                span=gemm.span,
            )
        self.notes.append(
            f"{gemm.span}: gemm {m}x{n}: register tile {micro_m} rows x {micro_n} vectors of "
            f"{lanes} lanes ({'given' if self.options.micro_m else 'inferred'}); lanes run along N"
            f"{f'; {self.dots[gemm].name}' if gemm in self.dots else ''}"
        )
        return micro_m, micro_n


def _is_kept(gemm: Gemm, sources: Mapping[Buffer, TileSource], options: CpuOptions) -> bool:
    """Return whether the caller keeps the second operand packed."""
    source = sources.get(gemm.b.buffer)
    return source is not None and source.is_of(options.keep)
