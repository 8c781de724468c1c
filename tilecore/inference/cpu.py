"""Tile inference for CPUs: which lanes, which register tile, where each tile lives.

The input is a verified program after the passes; the result is a ``LaunchPlan`` per kernel launch
that the lowering follows without deciding anything itself:

- every gemm gets a register tile (rows x vectors) and the valid extents of its operands;
- the vector operand (b) of a gemm is kept in panels, the broadcast operand (a) in padded rows;
- a tile that is always a box of a global tensor may be read in place (a), or packed once per call
  before the grid (b) where its box does not depend on every block index;
- an accumulator whose only fate is to be copied out is accumulated in the output itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilecore.errors import InvalidConfig
from tilecore.inference import ahead, computed, dots, few_rows, gemm_order, layouts, masks
from tilecore.inference.fusion import fuse
from tilecore.inference.in_place import is_read_in_place
from tilecore.inference.options import CpuOptions
from tilecore.inference.outputs import Output, Outputs
from tilecore.inference.plan import (
    PANELS,
    CpuPlan,
    FusedNest,
    GemmPlan,
    LaunchPlan,
    Mask,
    TilePlan,
    TileSource,
)
from tilecore.inference.regions import distinct, gemm_extents, is_contiguous, least
from tilecore.inference.sources import Sources
from tilecore.inference.storage import UNPACKED, Storage, panels, rows, tile_rows
from tilecore.inference.streams import streamed_tensors
from tilecore.inference.uses import WRITES, Context, Use, grouped, limit_of, uses
from tilecore.ir.analysis import covers_whole, kept_axes, pads
from tilecore.ir.bounds import variables
from tilecore.ir.dims import value_ranges
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Const, Expr, Var
from tilecore.ir.gemm_shape import accumulator_dtype
from tilecore.ir.nodes import (
    Alloc,
    Buffer,
    Gemm,
    KernelLaunch,
    PrimFunc,
    Region,
    Stmt,
)
from tilecore.ir.versions import Ranges, launches
from tilecore.ir.visitor import walk
from tilecore.target import Target

LATENCY_BOUND_SUMS = 8  # 4 cycles of FMA latency x 2 ports (Intel optimization manual)
HOIST_LIMIT_BYTES = 512 << 20  # largest packed copy of an operand held for one call


def infer(func: PrimFunc, target: Target, options: CpuOptions) -> CpuPlan:
    """Return the plan of every kernel launch of ``func``.

    Raises:
        UnsupportedOnTarget: a tile has a symbolic shape (TC302).
        InvalidConfig: the register tile asked for does not fit the gemm or the target (TC303).
        LayoutConflict: a layout annotation cannot be honoured (TC301).
    """
    known = value_ranges(func)
    plans: dict[KernelLaunch, LaunchPlan] = {}
    for launch, ranges in launches(func.body, known):
        plan = _Inference(launch, target, options, Context(ranges=dict(ranges))).run()
        where = _words(ranges, known)
        plans[launch] = replace(plan, notes=tuple(f"{where}{note}" for note in plan.notes))
    tiles = [tile for plan in plans.values() for tile in plan.tiles.values()]
    if options.keep and not any(tile.is_kept for tile in tiles):
        raise InvalidConfig(
            knob="keep", value=options.keep,
            expected="a tensor that whole tiles are copied from for products that read them as "
            "their second operand, of known shape and nothing else",
        )  # fmt: skip
    summed = {t.output.region.buffer for t in tiles if t.output and t.placement == "output"}
    return CpuPlan(plans, streamed_tensors(func) - summed)


def _words(ranges: Ranges, known: Ranges) -> str:
    """Return where a version of a launch runs, in words; "" for the only one."""
    changed = [(var, bounds) for var, bounds in ranges.items() if bounds != known[var]]
    said = [
        f"{var.name} <= {high}" if high < known[var][1] else f"{var.name} > {low - 1}"
        for var, (low, high) in changed
    ]
    return f"{' and '.join(said)}: " if said else ""


class _Inference:
    def __init__(
        self, launch: KernelLaunch, target: Target, options: CpuOptions, context: Context
    ) -> None:
        self.launch, self.target, self.options = launch, target, options
        self.notes: list[str] = []
        self.uses = list(uses(launch, context))
        self.order = {id(use): position for position, use in enumerate(self.uses)}
        self.by_buffer = grouped(self.uses)
        self.declared = [s.buffer for s in walk(launch) if isinstance(s, Alloc)]
        self.viewed = {b.base for b in self.by_buffer if b.base is not None}
        self.tiles = {
            b: tile_rows(b, target, is_dense=b in self.viewed)
            for b in self.declared
            if b.scope != "global" and b.base is None
        }

    def run(self) -> LaunchPlan:
        layouts.check(self.launch)
        self.outputs = Outputs(self.launch, self.by_buffer, self.order)
        gemms = [s for s in walk(self.launch) if isinstance(s, Gemm)]
        self.operands = {region.buffer for g in gemms for region in (g.a, g.b)}
        known = Sources(self.by_buffer, self.order, frozenset(pads(self.launch)))
        self.sources = {
            b: s
            for b in self.tiles
            if (s := known.of(b)) is not None and self._has_place(s.copy.src.buffer, b)
        }
        self.forms = few_rows.choose(
            gemms, self.by_buffer, self.sources, self.launch, self.target, self.options
        )
        kept = [g for g in self.forms if self._is_kept(self.sources.get(g.b.buffer))]
        self.forms = {g: form for g, form in self.forms.items() if g not in kept}
        packed = [g for g in gemms if g not in self.forms]
        self.dots, notes = dots.choose(packed, self.by_buffer, self.target)
        self.notes += notes
        self.dots |= few_rows.instructions(self.forms, self.by_buffer, self.target)
        rows = {g: few_rows.most_rows(g, self.sources) for g in gemms}
        self.computed = computed.choose(
            {g: self.dots[g] for g in packed if g in self.dots},
            self.by_buffer, rows, self.launch, self.target, self.options,
        )  # fmt: skip
        self.contexts = {u.stmt: u.context for u in self.uses if isinstance(u.stmt, Gemm)}
        skips = self.options.skips_masked
        self.masked = masks.find(self.launch.body, self.contexts, self.viewed, skips_masked=skips)
        micro = {g: self._micro_tile(g, rows[g]) for g in gemms}
        plans: dict[Buffer, TilePlan] = {}
        for buffer in self.tiles:
            plans[buffer] = self._place(buffer, self.sources.get(buffer), micro)
        planned = {g: self._gemm(g, size, plans) for g, size in micro.items()}
        elided: set[Stmt] = {*self.computed.values()}
        for plan in plans.values():
            if plan.placement in ("in_place", "staged", "grid") and plan.source is not None:
                elided.add(plan.source.copy)
            if plan.placement in ("output", "late"):
                elided.update(u.stmt for u in self.by_buffer[plan.buffer] if u.role == "copy-src")
        storages = {buffer: plan.storage for buffer, plan in plans.items()}
        nests = fuse(self.launch, elided, storages)
        nests = ahead.fetching(nests, self.launch, plans, self.by_buffer)
        self.notes += [_fusion_note(nest) for nest in nests]
        fused = {member: nest for nest in nests for member in nest.members}
        return LaunchPlan(self.launch, plans, planned, frozenset(elided), fused, tuple(self.notes))

    # --- register tile ------------------------------------------------------------------------

    def _micro_tile(self, gemm: Gemm, most_rows: int) -> tuple[int, int]:
        form = self.forms.get(gemm)
        if form is not None:
            size = few_rows.register_tile(gemm, form, most_rows, self.target, self.options)
            dot = self.dots.get(gemm)
            self.notes.append(few_rows.describe(gemm, form, most_rows, size, dot))
            return size
        (m, n), lanes = gemm_extents(gemm.c), self.target.lanes(accumulator_dtype(gemm))
        vectors, tile = math.ceil(n / lanes), self._tile(gemm)
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

    # --- placement ----------------------------------------------------------------------------

    def _place(
        self, buffer: Buffer, source: TileSource | None, micro: Mapping[Gemm, tuple[int, int]]
    ) -> TilePlan:
        found = self.by_buffer.get(buffer, [])
        readers = [u for u in found if u.role not in WRITES]
        if buffer in self.viewed:
            self._note(buffer, f"{self.tiles[buffer].describe()}: it has views")
            return TilePlan(buffer, self.tiles[buffer])
        sums = [u.stmt for u in found if u.role == "gemm-c"]
        is_tiled = any(isinstance(g, Gemm) and self._tile(g) is not None for g in sums)
        is_plain = any(g in self.forms for g in sums if isinstance(g, Gemm))
        output = self.outputs.of(buffer, is_tiled, is_plain)
        has_place = output is not None and self._has_place(output.region.buffer, buffer)
        if output is not None and has_place and self._ends_alike(output, sums):
            is_late, storage = output.last is not None, self.tiles[buffer]
            late = f"{storage.describe()}, copied to the output by its last step"
            self._note(buffer, late if is_late else "accumulated in the output itself")
            return TilePlan(buffer, storage, "late" if is_late else "output", None, (), output)
        is_operand = readers and all(u.role == "gemm-b" for u in readers)
        if is_operand and not sums and len(buffer.shape) == 2:
            return self._place_vector_operand(buffer, source, readers, micro)
        if readers and all(u.role == "gemm-a" for u in readers):
            return self._place_broadcast_operand(buffer, source, readers, micro)
        storage = self.tiles[buffer]
        if source is not None and is_read_in_place(source, readers, self.operands):
            self._note(buffer, f"read in place from {source.copy.src.buffer.name}")
            return TilePlan(buffer, storage, "in_place", source)
        self._note(buffer, storage.describe())
        return TilePlan(buffer, storage, "block", source)

    def _ends_alike(self, output: Output, sums: Sequence[Stmt]) -> bool:
        """Return whether an output ends where the operands do that its sums come from.

        Sums beyond an operand's end are 0 where a gemm clears, and it computes none there.
        """
        for gemm in sums:
            if not isinstance(gemm, Gemm):
                continue
            if isinstance(gemm.clear_accum, Const) and not gemm.clear_accum.value:
                continue
            row_a, _ = self._limits(gemm.a, gemm.transpose_a)
            _, col_b = self._limits(gemm.b, gemm.transpose_b)
            ends = self._ends(output, gemm)
            for end, own in zip((row_a, col_b), ends, strict=True):
                if end is not None and (own is None or len(distinct(end, own)) > 1):
                    return False
        return True

    def _has_place(self, tensor: Buffer, tile: Buffer) -> bool:
        """Return whether it is known where a tensor lies when a tile is first used."""
        if tensor not in self.declared:
            return True
        order = list(walk(self.launch))
        begin = next(i for i, s in enumerate(order) if isinstance(s, Alloc) and s.buffer is tensor)
        later = {id(s) for s in order[begin:]}
        return all(id(use.stmt) in later for use in self.by_buffer.get(tile, ()))

    def _place_vector_operand(
        self,
        buffer: Buffer,
        source: TileSource | None,
        readers: Sequence[Use],
        micro: Mapping[Gemm, tuple[int, int]],
    ) -> TilePlan:
        gemms = [u.stmt for u in readers if isinstance(u.stmt, Gemm)]
        axes = {0 if g.transpose_b else 1 for g in gemms}
        whole = all(u.region is not None and covers_whole(u.region) for u in readers)
        if len(axes) != 1 or not whole:
            self._note(buffer, "rows: its gemms want lanes along different axes or parts of it")
            return TilePlan(buffer, self.tiles[buffer], "block", source)
        gemm = gemms[0]
        is_stored = source is None and gemm.transpose_b
        flushes = is_stored and all(dots.flushes(g, self.dots) for g in gemms)
        if gemm in self.forms and source is None:
            self._note(buffer, self.tiles[buffer].describe())
            return TilePlan(buffer, self.tiles[buffer], flushes=flushes)
        if gemm in self.forms:
            assert source is not None
            self._note(buffer, f"read in place from {source.copy.src.buffer.name}")
            return TilePlan(buffer, self.tiles[buffer], "in_place", source)
        width = micro[gemm][1] * self.target.lanes(accumulator_dtype(gemm))
        shape = buffer.static_shape
        assert shape is not None
        dtype = self._kept_dtype(buffer, gemms)
        storage = panels(shape, dtype, axes.pop(), width, self._group(gemm))
        if gemm in self.computed:
            line = self.computed[gemm].span.line
            self._note(buffer, f"not stored, line {line} computes it in the registers of its gemm")
            return TilePlan(buffer, storage, "computed")
        hoisted, is_kept = self._hoist(buffer, source, storage), self._is_kept(source)
        if hoisted is not None and (is_kept or self.options.pack_b in ("auto", "grid")):
            count = math.prod(c for _, _, c in hoisted)
            when = "and kept by the caller" if is_kept else "before the grid"
            self._note(buffer, f"{storage.describe()}, {count} tiles packed once {when}")
            return TilePlan(buffer, storage, "grid", source, hoisted, is_kept=is_kept)
        self._note(buffer, f"{storage.describe()}, packed in every block")
        return TilePlan(buffer, storage, "block", source, flushes=flushes)

    def _is_kept(self, source: TileSource | None) -> bool:
        """Return whether the caller keeps what a tile is copied from packed."""
        return source is not None and source.copy.src.buffer.name == self.options.keep

    def _hoist(
        self, buffer: Buffer, source: TileSource | None, storage: Storage
    ) -> tuple[tuple[Var, int, int], ...] | None:
        """Return the variables that the tile's box depends on, where packing once pays."""
        if source is None or not is_contiguous(source.copy.src):
            return None
        if source.copy.src.buffer in self.declared:  # it has no address before the grid runs
            return None
        if None in source.axes:  # panels are packed from boxes of two axes
            return None
        used = set().union(*(variables(o) for o in source.copy.src.offsets))
        ranges = source.context.ranges
        known = {*self.launch.block_vars, *(loop.loop_var for loop in source.context.loops)}
        if any(v not in known or v not in ranges for v in used):
            return None
        outer = [v for v in self.launch.block_vars if v in ranges]
        reuse = math.prod(ranges[v][1] + 1 for v in outer if v not in used)
        ordered = [v for v in outer if v in used]
        ordered += [l.loop_var for l in source.context.loops if l.loop_var in used]  # noqa: E741
        spans = tuple((v, ranges[v][0], ranges[v][1] - ranges[v][0] + 1) for v in ordered)
        size = math.prod(c for _, _, c in spans) * storage.size * DType(storage.dtype).itemsize
        is_for_all = not source.context.conditional
        pays = reuse > 1 and size <= HOIST_LIMIT_BYTES and is_for_all
        return spans if pays or self._is_kept(source) else None

    def _place_broadcast_operand(
        self,
        buffer: Buffer,
        source: TileSource | None,
        readers: Sequence[Use],
        micro: Mapping[Gemm, tuple[int, int]],
    ) -> TilePlan:
        gemms = [u.stmt for u in readers if isinstance(u.stmt, Gemm)]
        whole = all(u.region is not None and covers_whole(u.region) for u in readers)
        group = max(self._group(g) for g in gemms)
        if source is not None and whole and self.options.pack_a == "none":
            two_axes = all(axis is not None for axis in source.axes) and len(source.axes) == 2
            kept = {g: self.dots[g] for g in gemms if g in self.dots}
            if two_axes and dots.lies_in_groups(source.copy.src, source.limits, kept):
                self._note(buffer, f"read in place from {source.copy.src.buffer.name}")
                return TilePlan(buffer, self.tiles[buffer], "in_place", source)
        if source is not None and whole and self._is_staged(source, gemms, micro):
            name = source.copy.src.buffer.name
            self._note(buffer, f"read from {name}, by groups of rows copied right before")
            return TilePlan(buffer, self.tiles[buffer], "staged", source)
        dtype = DType(self._kept_dtype(buffer, gemms))
        shape = buffer.static_shape
        assert shape is not None
        if group > 1 and gemms[0].transpose_a:
            lanes = self.target.lanes(accumulator_dtype(gemms[0]))
            width = math.ceil(shape[1] / lanes) * lanes
            storage = panels(shape, dtype, 1, width, group)
        else:
            storage = rows(shape, dtype, dtype.itemsize, self.target.lanes(dtype))
        flushes = storage.kind == "rows" and all(dots.flushes(g, self.dots) for g in gemms)
        rounding = ", rounded by vcvtneps2bf16" if flushes else ""
        self._note(buffer, storage.describe() + rounding)
        skips = source is not None and whole and all(g in self.forms for g in gemms)
        return TilePlan(buffer, storage, "block", source, flushes=flushes, skips_absent=skips)

    def _is_staged(
        self, source: TileSource, gemms: Sequence[Gemm], micro: Mapping[Gemm, tuple[int, int]]
    ) -> bool:
        """Return whether groups of rows are copied right before the one gemm that uses them."""
        gemm = gemms[0]
        dot = self.dots.get(gemm)
        by_words = dot is not None and not dot.is_tiled and not dot.stored
        if len(gemms) > 1 or gemm in self.forms or by_words:
            return False
        lanes = self.target.lanes(accumulator_dtype(gemm))
        is_open = self.options.pack_a == "auto" and (dot is None or bool(dot.stored))
        as_often = len(self.contexts[gemm].loops) == len(source.context.loops)
        pays = is_open and as_often and gemm_order.pays_staging(gemm, micro[gemm], lanes)
        return gemm_order.can_stage(gemm, source) and (pays or self.options.pack_a == "rows")

    def _tile(self, gemm: Gemm) -> tuple[int, int] | None:
        dot = self.dots.get(gemm)
        return dots.tile_of(gemm, dot) if dot is not None and dot.is_tiled else None

    def _group(self, gemm: Gemm) -> int:
        return self.dots[gemm].group if gemm in self.dots else 1

    def _kept_dtype(self, buffer: Buffer, gemms: Sequence[Gemm]) -> str:
        """Return the dtype an operand is stored in: narrow types are widened when they are packed.

        The value of a float16 or bfloat16 element is exact in float32, that of a byte in the
        integers of 16 bits that ``vpmaddwd`` multiplies, so results do not change.
        """
        accum = accumulator_dtype(gemms[0])
        chosen = [self.dots[g] for g in gemms if g in self.dots]
        narrow = buffer.dtype.is_float and buffer.dtype.bits < 32 and accum == "float32"
        if narrow and not chosen:
            return str(accum)
        if chosen and chosen[0].stored:
            return chosen[0].stored
        return UNPACKED.get(buffer.dtype, str(buffer.dtype))

    # --- gemm ---------------------------------------------------------------------------------

    def _gemm(
        self,
        gemm: Gemm,
        micro: tuple[int, int],
        plans: Mapping[Buffer, TilePlan],
    ) -> GemmPlan:
        m, n = gemm_extents(gemm.c)
        k = gemm_extents(gemm.a)[0 if gemm.transpose_a else 1]
        row_a, k_a = self._limits(gemm.a, gemm.transpose_a)
        k_b, col_b = self._limits(gemm.b, gemm.transpose_b)
        output = plans.get(gemm.c.buffer)
        vectors = plans.get(gemm.b.buffer)
        is_far = vectors is not None and gemm_order.is_far(vectors, self.launch)
        rows_of_a = plans.get(gemm.a.buffer)
        is_staged = rows_of_a is not None and rows_of_a.placement == "staged"
        form, dot = self.forms.get(gemm, PANELS), self.dots.get(gemm)
        is_plain = form == PANELS and (dot is None or bool(dot.stored))
        lanes = self.target.lanes(accumulator_dtype(gemm))
        nest = self.computed.get(gemm)
        is_masked = form == PANELS and nest is None and self._tile(gemm) is None
        is_plain = is_plain and nest is None
        is_rows_first = is_plain and gemm_order.takes_rows_first(gemm, vectors, micro, lanes)
        sums, weights = self._masks(gemm) if is_masked else (None, None)
        row_c = col_c = late = None
        if output is not None and output.output is not None:
            row_c, col_c = self._ends(output.output, gemm)
            late = output.output if output.placement == "late" else None
        return GemmPlan(
            gemm, m, n, k, *micro,
            distinct(row_a, row_c), distinct(col_b, col_c), least(k_a, k_b),
            dot, self._tile(gemm), form,
            few_rows.most_rows(gemm, self.sources), late, is_far,
            is_staged or is_rows_first, is_staged, nest, sums, weights,
        )  # fmt: skip

    def _masks(self, gemm: Gemm) -> tuple[Mask | None, Mask | None]:
        """Return what masks hide of a gemm's sums, and of its weights."""
        sums, weights = self.masked.sums.get(gemm), self.masked.weights.get(gemm)
        if sums is not None:
            self.notes.append(f"{gemm.span}: no products for sums that line {sums.span.line} hides")
        if weights is not None:
            line = weights.span.line
            self.notes.append(f"{gemm.span}: no products of weights that line {line} makes 0")
        return sums, weights

    def _ends(self, output: Output, gemm: Gemm) -> list[Expr | None]:
        """Return how many rows and columns of a gemm's sums the output has; None: all."""
        region, context = output.region, self.contexts[gemm]
        return [limit_of(region, axis, context) for axis in kept_axes(region)]

    def _limits(self, region: Region, transposed: bool) -> tuple[Expr | None, Expr | None]:
        source = self.sources.get(region.buffer)
        if source is None or not covers_whole(region) or len(source.limits) < 2:
            return None, None
        first, second = source.limits[-2:]
        return (second, first) if transposed else (first, second)

    def _note(self, buffer: Buffer, text: str) -> None:
        self.notes.append(f"{buffer.span}: {buffer.name} ({buffer.scope}): {text}")


def _fusion_note(nest: FusedNest) -> str:
    lines = ", ".join(str(member.span.line) for member in nest.members)
    domain = " x ".join(map(str, nest.extents))
    own = ", ".join(sorted(b.name for b in nest.handed_on))
    kept = f"; {own} stays in registers" if own else ""
    tensors = ", ".join(a.tile.name for a in nest.ahead)
    fetched = f"; fetches what {tensors} reads next" if tensors else ""
    return f"{nest.members[0].span}: one nest over {domain} for lines {lines}{kept}{fetched}"
