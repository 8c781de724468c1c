"""What tile inference decides for a CPU: the plan that the lowering follows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tilecore.errors import SourceSpan
from tilecore.inference.cpu.dots import Dot
from tilecore.inference.cpu.outputs import Output
from tilecore.inference.cpu.storage import Storage
from tilecore.inference.uses import Context
from tilecore.ir.arithmetic.bounds import Linear
from tilecore.ir.expr import Expr, Var
from tilecore.ir.nodes import Buffer, Copy, Gemm, KernelLaunch, Parallel, Reduce, Stmt, Store

PANELS, DOTS, SUMS = "panels", "dots", "sums"  # forms of a gemm


@dataclass(frozen=True, slots=True, eq=False)
class TileSource:
    """A tile whose contents are always a box of one global tensor, padded with zeros.

    Attributes:
        copy: the only statement that writes the tile.
        axes: for each tile axis the source axis it runs along (None: extent 1).
        limits: for each tile axis how many elements lie inside the tensor (None: all).
    """

    copy: Copy
    axes: tuple[int | None, ...]
    limits: tuple[Expr | None, ...]
    context: Context

    def is_of(self, tensor: str) -> bool:
        """Return whether the tile is copied from a tensor of that name."""
        return self.copy.src.buffer.name == tensor


@dataclass(frozen=True, slots=True, eq=False)
class TilePlan:
    """Where a tile lives.

    placement:
        block: scratch memory of the running block;
        in_place: not stored, read from its source;
        staged: read from its source, each group of rows copied right before it is used;
        grid: packed for all values of ``hoist_vars`` before the grid runs, or, where ``is_kept``,
            by a call of its own into memory that the caller keeps;
        output: not stored, accumulated in the output region;
        late: scratch memory, copied to the output region by the last step of its gemm;
        computed: not stored, computed in registers by the gemm that reads it.

    flushes: its bfloat16 numbers may be rounded by an instruction that takes subnormal ones for 0.
    skips_absent: nobody reads rows that lie outside the tensor: they are left as they are.
    """

    buffer: Buffer
    storage: Storage
    placement: str = "block"
    source: TileSource | None = None
    hoist_vars: tuple[tuple[Var, int, int], ...] = ()  # variable, first value, most values
    output: Output | None = None
    flushes: bool = False
    is_kept: bool = False
    skips_absent: bool = False

    @property
    def packed_size(self) -> int:
        """Most elements of the tile for all values of ``hoist_vars``."""
        return math.prod(count for _, _, count in self.hoist_vars) * self.storage.size


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """Elements (row, column) of a tile that a program hides.

    Attributes:
        row, column: of an element, variables of the terms.
        terms: hidden is where one of them is not negative.
        cond: the mask hides nothing unless it holds (None: always).
        span: of the mask in the program.
    """

    row: Var
    column: Var
    terms: tuple[Linear, ...]
    cond: Expr | None
    span: SourceSpan

    def ends_rows(self, term: Linear) -> bool:
        """Return whether a term hides all columns of a row from some column on."""
        return term.coefficient(self.column) == 1


@dataclass(frozen=True, slots=True, eq=False)
class GemmPlan:
    """How a gemm is computed: extents, register tile, and what part of the tiles is real.

    Attributes:
        m, n, k: extents of the tiles.
        micro_m: rows of the register tile.
        micro_n: its vectors along N; where ``form`` has dots of rows, rows of b.
        row_limits, col_limits: rows and columns beyond one of these are neither computed nor
            written; none: all are real.
        k_limit: products beyond it are zero and skipped; None: there are none.
        dot: the instruction that sums up several products, if there is one for the operands.
        tile: rows and groups of its tiles, if it works on tiles.
        form: where b is read: in panels, or where it lies in a tensor, along K (dots of rows) or
            along N (sums of rows).
        most_rows: how many of the first rows can be real.
        late: where the last step writes the sums, if it does.
        is_b_far: b comes from beyond the caches of a core.
        rows_first: each group of rows meets all panels before the next one does.
        stages_a: each group of rows is copied to scratch memory for them.
        nest: what computes b, where the gemm does that itself.
        hidden_sums: sums that nobody looks at.
        hidden_weights: elements of a; what they are multiplied by counts nothing.
    """

    gemm: Gemm
    m: int
    n: int
    k: int
    micro_m: int
    micro_n: int
    row_limits: tuple[Expr, ...] = ()
    col_limits: tuple[Expr, ...] = ()
    k_limit: Expr | None = None
    dot: Dot | None = None
    tile: tuple[int, int] | None = None
    form: str = PANELS
    most_rows: int = 0
    late: Output | None = None
    is_b_far: bool = False
    rows_first: bool = False
    stages_a: bool = False
    nest: Parallel | None = None
    hidden_sums: Mask | None = None
    hidden_weights: Mask | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Ahead:
    """What is fetched ahead: what ``tile``, read in place, has at ``indices`` one box further.

    That is where ``var`` is ``step`` more. ``is_near``: to L1, else to L2.
    """

    tile: Buffer
    indices: tuple[Expr, ...]
    var: Var
    step: int
    is_near: bool


@dataclass(frozen=True, slots=True, eq=False)
class FusedNest:
    """Statements that run in one loop nest over ``extents``, in this order in each iteration.

    Attributes:
        members: the statements, as the program has them.
        steps: what they do at ``loop_vars``; a reduction takes the element of its source there.
        folded: positions of the axes that the reductions fold.
        handed_on: tiles whose new elements only later steps of the same iteration read.
        ahead: what is fetched meanwhile.
    """

    members: tuple[Stmt, ...]
    loop_vars: tuple[Var, ...]
    extents: tuple[int, ...]
    steps: tuple[Store | Reduce, ...]
    folded: frozenset[int]
    handed_on: frozenset[Buffer] = frozenset()
    ahead: tuple[Ahead, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class LaunchPlan:
    """Everything inferred for one kernel launch.

    ``elided`` statements are not executed; ``fused`` has the nest of each statement that is part
    of one.
    """

    launch: KernelLaunch
    tiles: Mapping[Buffer, TilePlan]
    gemms: Mapping[Gemm, GemmPlan]
    elided: frozenset[Stmt]
    fused: Mapping[Stmt, FusedNest]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class CpuPlan:
    """The plans of a program's kernel launches, in order.

    ``streamed`` tensors are written past the caches.
    """

    launches: Mapping[KernelLaunch, LaunchPlan]
    streamed: frozenset[Buffer] = frozenset()

    @property
    def kept(self) -> tuple[TilePlan, ...]:
        """The tiles whose packed form the caller keeps, in order."""
        plans = self.launches.values()
        return tuple(t for plan in plans for t in plan.tiles.values() if t.is_kept)

    @property
    def features(self) -> frozenset[str]:
        """What the code needs of the CPU beyond its vector instructions."""
        gemms = [gemm for plan in self.launches.values() for gemm in plan.gemms.values()]
        return frozenset[str]().union(*(g.dot.features for g in gemms if g.dot is not None))

    def explain(self) -> str:
        """Return what was inferred and why, one line per decision."""
        notes = [note for plan in self.launches.values() for note in plan.notes]
        names = sorted(buffer.name for buffer in self.streamed)
        notes += [f"{name}: written past the caches (large, never read here)" for name in names]
        return "\n".join(notes)
