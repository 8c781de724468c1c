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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilecore.errors import InvalidConfig
from tilecore.inference import layouts
from tilecore.inference.cpu import ahead, dots, gemm_order, masks
from tilecore.inference.cpu.fusion import fuse
from tilecore.inference.cpu.in_place import is_read_in_place
from tilecore.inference.cpu.options import CpuOptions
from tilecore.inference.cpu.outputs import Output, Outputs
from tilecore.inference.cpu.plan import (
    PANELS,
    CpuPlan,
    FusedNest,
    GemmPlan,
    LaunchPlan,
    Mask,
    TilePlan,
    TileSource,
)
from tilecore.inference.cpu.products import Products
from tilecore.inference.cpu.regions import distinct, gemm_extents, is_contiguous, least
from tilecore.inference.cpu.sources import Sources
from tilecore.inference.cpu.storage import UNPACKED, Storage, panels, rows, tile_rows
from tilecore.inference.cpu.streams import streamed_tensors
from tilecore.inference.uses import WRITES, Context, Use, grouped, limit_of, uses
from tilecore.ir.analysis import covers_whole, kept_axes, pads
from tilecore.ir.arithmetic.bounds import Known, begins_inside, variables
from tilecore.ir.dims import value_ranges
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Const, Expr, Var, int_value
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
    """Plans a launch: how its products are computed, where its tiles lie, what runs in one nest.

    Attributes:
        uses, by_buffer: what is accessed, in program order; the same by buffer.
        order: the position of each use.
        declared: buffers that the launch allocates.
        viewed: those that others are views of.
        tiles: the tiles, with the storage of each as rows.
        outputs: which of them go to a tensor.
        sources: which are always a box of a tensor.
        products: what is chosen for each gemm.
        contexts: what surrounds each gemm.
        masked: what the gemms may leave out.
        notes: the choices in words.
    """

    def __init__(
        self, launch: KernelLaunch, target: Target, options: CpuOptions, context: Context
    ) -> None:
        self.launch, self.target, self.options = launch, target, options
        self.uses = list(uses(launch, context))
        self.order = {id(use): position for position, use in enumerate(self.uses)}
        self.by_buffer = grouped(self.uses)
        self.declared = [s.buffer for s in walk(launch) if isinstance(s, Alloc)]
        self.viewed = {b.base for b in self.by_buffer if b.base is not None}
        beyond = self._rows_beyond()
        self.tiles = {
            b: replace(tile_rows(b, target, is_dense=b in self.viewed), beyond=beyond.get(b, 0))
            for b in self.declared
            if b.scope != "global" and b.base is None
        }
        layouts.check(launch)
        self.outputs = Outputs(launch, self.by_buffer, self.order)
        self.sources = self._sources()
        self.products = Products(launch, self.by_buffer, self.sources, target, options)
        self.contexts = {u.stmt: u.context for u in self.uses if isinstance(u.stmt, Gemm)}
        self.masked = masks.find(
            launch.body, self.contexts, self.viewed, skips_masked=options.skips_masked
        )
        self.notes = list(self.products.notes)

    def run(self) -> LaunchPlan:
        """Return the plan of the launch."""
        tiles = {buffer: self._place(buffer, self.sources.get(buffer)) for buffer in self.tiles}
        gemms = {gemm: self._gemm(gemm, tiles) for gemm in self.products.gemms}
        elided = self._elided(tiles)
        storages = {buffer: tile.storage for buffer, tile in tiles.items()}
        nests = fuse(self.launch, elided, storages)
        nests = ahead.fetching(nests, self.launch, tiles, self.by_buffer)
        self.notes += [_fusion_note(nest) for nest in nests]
        fused = {member: nest for nest in nests for member in nest.members}
        return LaunchPlan(self.launch, tiles, gemms, elided, fused, tuple(self.notes))

    def _rows_beyond(self) -> dict[Buffer, int]:
        """Return how many rows behind their last one vectors of products may read of tiles."""
        found: dict[Buffer, int] = {}
        for use in self.uses:
            gemm = use.stmt
            if use.role == "gemm-b" and isinstance(gemm, Gemm) and gemm.transpose_b:
                lanes, tile = self.target.lanes(accumulator_dtype(gemm)), use.buffer.root
                found[tile] = max(found.get(tile, 0), lanes - 1)
        return found

    def _sources(self) -> dict[Buffer, TileSource]:
        """Return the boxes of tensors that tiles always are."""
        known = Sources(self.by_buffer, self.order, frozenset(pads(self.launch)))
        return {
            b: s
            for b in self.tiles
            if (s := known.of(b)) is not None and self._has_place(s.copy.src.buffer, b)
        }

    def _elided(self, tiles: Mapping[Buffer, TilePlan]) -> frozenset[Stmt]:
        """Return the statements that the places of tiles, or products, make needless."""
        elided: set[Stmt] = {*self.products.computed.values()}
        for tile in tiles.values():
            if tile.placement in ("in_place", "staged", "grid") and tile.source is not None:
                elided.add(tile.source.copy)
            if tile.placement in ("output", "late"):
                elided.update(u.stmt for u in self.by_buffer[tile.buffer] if u.role == "copy-src")
        return frozenset(elided)

    # --- placement ----------------------------------------------------------------------------

    def _place(self, buffer: Buffer, source: TileSource | None) -> TilePlan:
        found = self.by_buffer.get(buffer, [])
        readers = [u for u in found if u.role not in WRITES]
        if buffer in self.viewed:
            self._note(buffer, f"{self.tiles[buffer].describe()}: it has views")
            return TilePlan(buffer, self.tiles[buffer])
        sums = [u.stmt for u in found if u.role == "gemm-c"]
        is_tiled = any(isinstance(g, Gemm) and self.products.tile(g) is not None for g in sums)
        is_plain = any(g in self.products.forms for g in sums if isinstance(g, Gemm))
        output = self.outputs.of(buffer, is_tiled, is_plain)
        has_place = output is not None and self._has_place(output.region.buffer, buffer)
        if output is not None and has_place and self._ends_alike(output, sums):
            is_late, storage = output.last is not None, self.tiles[buffer]
            late = f"{storage.describe()}, copied to the output by its last step"
            self._note(buffer, late if is_late else "accumulated in the output itself")
            return TilePlan(buffer, storage, "late" if is_late else "output", output=output)
        is_operand = readers and all(u.role == "gemm-b" for u in readers)
        if is_operand and not sums and len(buffer.shape) == 2:
            return self._place_vector_operand(buffer, source, readers)
        if readers and all(u.role == "gemm-a" for u in readers):
            return self._place_broadcast_operand(buffer, source, readers)
        storage = self.tiles[buffer]
        if source is not None and is_read_in_place(source, readers, self.products.operands):
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
        self, buffer: Buffer, source: TileSource | None, readers: Sequence[Use]
    ) -> TilePlan:
        gemms = [u.stmt for u in readers if isinstance(u.stmt, Gemm)]
        axes = {0 if g.transpose_b else 1 for g in gemms}
        whole = all(u.region is not None and covers_whole(u.region) for u in readers)
        if len(axes) != 1 or not whole:
            self._note(buffer, "rows: its gemms want lanes along different axes or parts of it")
            return TilePlan(buffer, self.tiles[buffer], "block", source)
        gemm = gemms[0]
        is_stored = source is None and gemm.transpose_b
        flushes = is_stored and all(dots.flushes(g, self.products.dots) for g in gemms)
        if gemm in self.products.forms and source is None:
            self._note(buffer, self.tiles[buffer].describe())
            return TilePlan(buffer, self.tiles[buffer], flushes=flushes)
        if gemm in self.products.forms:
            assert source is not None
            self._note(buffer, f"read in place from {source.copy.src.buffer.name}")
            return TilePlan(buffer, self.tiles[buffer], "in_place", source)
        width = self.products.register_tiles[gemm][1] * self.target.lanes(accumulator_dtype(gemm))
        shape = buffer.static_shape
        assert shape is not None
        dtype = self._kept_dtype(buffer, gemms)
        storage = panels(shape, dtype, axes.pop(), width, self.products.group(gemm))
        if gemm in self.products.computed:
            line = self.products.computed[gemm].span.line
            self._note(buffer, f"not stored, line {line} computes it in the registers of its gemm")
            return TilePlan(buffer, storage, "computed")
        hoisted, is_kept = self._hoist(source, storage), self._is_kept(source)
        if hoisted is not None and (is_kept or self.options.pack_b in ("auto", "grid")):
            count = str(math.prod(c for _, _, c in hoisted))
            open_vars = {v for v, e in self._grid() if int_value(e) is None}
            if not open_vars.isdisjoint(v for v, _, _ in hoisted):
                count = f"up to {count}"
            when = "and kept by the caller" if is_kept else "before the grid"
            self._note(buffer, f"{storage.describe()}, {count} tiles packed once {when}")
            return TilePlan(buffer, storage, "grid", source, hoisted, is_kept=is_kept)
        self._note(buffer, f"{storage.describe()}, packed in every block")
        return TilePlan(buffer, storage, "block", source, flushes=flushes)

    def _is_kept(self, source: TileSource | None) -> bool:
        """Return whether the caller keeps what a tile is copied from packed."""
        return source is not None and source.is_of(self.options.keep)

    def _hoist(
        self, source: TileSource | None, storage: Storage
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
        ordered += [x.loop_var for x in source.context.loops if x.loop_var in used]
        if not self._begins_inside(source, ordered):
            return None
        spans = tuple((v, ranges[v][0], ranges[v][1] - ranges[v][0] + 1) for v in ordered)
        size = math.prod(c for _, _, c in spans) * storage.size * DType(storage.dtype).itemsize
        is_for_all = not source.context.conditional
        pays = reuse > 1 and size <= HOIST_LIMIT_BYTES and is_for_all
        return spans if pays or self._is_kept(source) else None

    def _grid(self) -> Iterator[tuple[Var, Expr]]:
        """Yield the variables of blocks, and how many values each has."""
        return zip(self.launch.block_vars, self.launch.grid, strict=True)

    def _begins_inside(self, source: TileSource, hoisted: Sequence[Var]) -> bool:
        """Return whether a tile's box begins inside its tensor for all values that are packed.

        Variables of blocks stay below the grid's extents where the grid packs, but loops run as
        long as they ever may.
        """
        region, context = source.copy.src, source.context
        ranges = {v: context.ranges[v] for v in hoisted}
        known = Known(ranges, {} if self._is_kept(source) else dict(self._grid()), {})
        return begins_inside(region.offsets, region.buffer.shape, kept_axes(region), known)

    def _place_broadcast_operand(
        self, buffer: Buffer, source: TileSource | None, readers: Sequence[Use]
    ) -> TilePlan:
        gemms = [u.stmt for u in readers if isinstance(u.stmt, Gemm)]
        whole = all(u.region is not None and covers_whole(u.region) for u in readers)
        group = max(self.products.group(g) for g in gemms)
        if source is not None and whole and self.options.pack_a == "none":
            two_axes = all(axis is not None for axis in source.axes) and len(source.axes) == 2
            kept = {g: self.products.dots[g] for g in gemms if g in self.products.dots}
            if two_axes and dots.lies_in_groups(source.copy.src, source.limits, kept):
                self._note(buffer, f"read in place from {source.copy.src.buffer.name}")
                return TilePlan(buffer, self.tiles[buffer], "in_place", source)
        if source is not None and whole and self._is_staged(source, gemms):
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
        flushes = storage.kind == "rows" and all(dots.flushes(g, self.products.dots) for g in gemms)
        rounding = ", rounded by vcvtneps2bf16" if flushes else ""
        self._note(buffer, storage.describe() + rounding)
        skips = source is not None and whole and all(g in self.products.forms for g in gemms)
        return TilePlan(buffer, storage, "block", source, flushes=flushes, skips_absent=skips)

    def _is_staged(self, source: TileSource, gemms: Sequence[Gemm]) -> bool:
        """Return whether groups of rows are copied right before the one gemm that uses them."""
        gemm = gemms[0]
        dot = self.products.dots.get(gemm)
        by_words = dot is not None and not dot.is_tiled and not dot.stored
        if len(gemms) > 1 or gemm in self.products.forms or by_words:
            return False
        lanes = self.target.lanes(accumulator_dtype(gemm))
        is_open = self.options.pack_a == "auto" and (dot is None or bool(dot.stored))
        as_often = len(self.contexts[gemm].loops) == len(source.context.loops)
        pays = (
            is_open
            and as_often
            and gemm_order.pays_staging(gemm, self.products.register_tiles[gemm], lanes)
        )
        return gemm_order.can_stage(gemm, source) and (pays or self.options.pack_a == "rows")

    def _kept_dtype(self, buffer: Buffer, gemms: Sequence[Gemm]) -> str:
        """Return the dtype an operand is stored in: narrow types are widened when they are packed.

        The value of a float16 or bfloat16 element is exact in float32, that of a byte in the
        integers of 16 bits that ``vpmaddwd`` multiplies, so results do not change.
        """
        accum = accumulator_dtype(gemms[0])
        chosen = [self.products.dots[g] for g in gemms if g in self.products.dots]
        narrow = buffer.dtype.is_float and buffer.dtype.bits < 32 and accum == "float32"
        if narrow and not chosen:
            return str(accum)
        if chosen and chosen[0].stored:
            return chosen[0].stored
        return UNPACKED.get(buffer.dtype, str(buffer.dtype))

    # --- gemm ---------------------------------------------------------------------------------

    def _gemm(self, gemm: Gemm, tiles: Mapping[Buffer, TilePlan]) -> GemmPlan:
        products = self.products
        m, n = gemm_extents(gemm.c)
        k = gemm_extents(gemm.a)[0 if gemm.transpose_a else 1]
        row_a, k_a = self._limits(gemm.a, gemm.transpose_a)
        k_b, col_b = self._limits(gemm.b, gemm.transpose_b)
        a, b, c = (tiles.get(region.buffer) for region in (gemm.a, gemm.b, gemm.c))
        micro_m, micro_n = products.register_tiles[gemm]
        form, dot = products.forms.get(gemm, PANELS), products.dots.get(gemm)
        nest, tile = products.computed.get(gemm), products.tile(gemm)
        is_staged = a is not None and a.placement == "staged"
        is_plain = form == PANELS and (dot is None or bool(dot.stored)) and nest is None
        lanes = self.target.lanes(accumulator_dtype(gemm))
        is_masked = form == PANELS and nest is None and tile is None
        hidden_sums, hidden_weights = self._masks(gemm) if is_masked else (None, None)
        row_c = col_c = late = None
        if c is not None and c.output is not None:
            row_c, col_c = self._ends(c.output, gemm)
            late = c.output if c.placement == "late" else None
        return GemmPlan(
            gemm, m, n, k, micro_m, micro_n,
            row_limits=distinct(row_a, row_c),
            col_limits=distinct(col_b, col_c),
            k_limit=least(k_a, k_b),
            dot=dot,
            tile=tile,
            form=form,
            most_rows=products.most_rows[gemm],
            late=late,
            is_b_far=b is not None and gemm_order.is_far(b, self.launch),
            rows_first=is_staged
            or (is_plain and gemm_order.takes_rows_first(gemm, b, (micro_m, micro_n), lanes)),
            stages_a=is_staged,
            nest=nest,
            hidden_sums=hidden_sums,
            hidden_weights=hidden_weights,
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
