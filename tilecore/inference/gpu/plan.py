"""What inference decides for a GPU; the lowering decides nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tilecore.inference.gpu.distribution import Distribution
from tilecore.inference.gpu.loops import Points
from tilecore.inference.gpu.threads.teams import Team, Teams
from tilecore.ir.expr import Binary, Expr, Load
from tilecore.ir.nodes import (
    Buffer,
    Copy,
    For,
    Gemm,
    If,
    KernelLaunch,
    Let,
    Parallel,
    PrimFunc,
    Region,
    Stmt,
)
from tilecore.ir.printer import format_expr
from tilecore.ir.visitor import walk, walk_expr

CHUNK_BYTES = 16  # the widest access of one thread; what swizzles move as one
# Where a box of the tensor memory accelerator may begin (PTX ISA 9.0, cp.async.bulk.tensor).
BOX_ALIGNMENT = 128


@dataclass(frozen=True, slots=True)
class SharedLayout:
    """Where the elements of a shared tile lie.

    The last axis is cut into panels of ``swizzle_bytes``; within a panel row, 16-byte chunks are
    permuted by the number of the row, as TMA, ldmatrix and wgmma do. 0: row-major, rows
    ``leading`` elements apart.

    Attributes:
        shape: of the tile.
        itemsize: bytes of an element.
        swizzle_bytes: 0, 32, 64 or 128.
        leading: elements from row to row of a tile that is not swizzled.
        stages: copies of the tile, which a pipelined loop uses in turn.
        offset_bytes: of the first copy in the shared memory of the block.
        seen_as: of a view with other rows than memory has: its own shape, row-major in ``shape``,
            the rows of memory in elements of the view.
    """

    shape: tuple[int, ...]
    itemsize: int
    swizzle_bytes: int = 0
    leading: int = 0
    stages: int = 1
    offset_bytes: int = 0
    seen_as: tuple[int, ...] | None = None

    @property
    def elements(self) -> int:
        """Elements of memory that one copy takes."""
        total = 1
        for extent in self.shape[:-1]:
            total *= extent
        return total * (self.shape[-1] if self.swizzle_bytes else self.leading)

    @property
    def alignment(self) -> int:
        """Bytes that the address must be a multiple of: 8 rows of a swizzle are its period."""
        is_small = self.elements * self.itemsize < BOX_ALIGNMENT
        return max(CHUNK_BYTES if is_small else BOX_ALIGNMENT, 8 * self.swizzle_bytes)

    @property
    def stage_bytes(self) -> int:
        """Bytes from one copy to the next."""
        size = self.elements * self.itemsize
        return -(-size // self.alignment) * self.alignment

    @property
    def bytes(self) -> int:
        """Bytes of all copies."""
        return self.stage_bytes * self.stages


@dataclass(frozen=True, slots=True)
class MatrixMove:
    """How a warp moves 8x8 matrices of 16-bit elements from or to shared memory at once.

    Attributes:
        access: the load or store, by position among the accesses of the points.
        count: matrices of one instruction: 1, 2 or 4.
        rows, columns: the loops whose points are rows and columns of a matrix in registers.
        is_transposed: whether rows in memory are columns in registers.
    """

    access: int
    count: int
    rows: int
    columns: int
    is_transposed: bool


@dataclass(frozen=True, slots=True)
class WideAccess:
    """Elements side by side in memory that move together: those of all lanes of a nest.

    Attributes:
        parts: the accesses that ask for them, by position among those of the points, and which of
            the elements of a point each one takes.
        step: elements of a point: 2 of pairs, both halves of which are asked for.
        axis: the axis along which the elements of the points follow each other; if it is not the
            last one, that has ``step`` elements.
        place: the indices of the first element, at lane 0.
        per_move: elements of one instruction.
        in_rows: whether either all of them lie inside of a row or none does.
        in_place: whether what points read and what they write of a tile is one array, as they read
            what they have written.
        for_all: whether it is read for points that do not ask for it, too.
    """

    parts: tuple[tuple[int, int], ...]
    step: int
    axis: int
    place: tuple[Expr, ...]
    per_move: int
    in_rows: bool
    in_place: bool = False
    for_all: bool = False


@dataclass(frozen=True, slots=True)
class NestPlan:
    """How a data-parallel nest runs: its points, and how many neighbours move at once.

    Attributes:
        points: the statement as loops.
        distribution: of the points.
        lanes: consecutive points of a thread along one loop, whose memory accesses are one.
        wide: what moves for all lanes at once.
        matrices: how the nest loads or stores by matrices, if it does; then there is one lane.
    """

    points: Points
    distribution: Distribution
    lanes: int = 1
    wide: tuple[WideAccess, ...] = ()
    matrices: MatrixMove | None = None

    @property
    def moves_whole_chunks(self) -> bool:
        """Whether each access is of the lanes side by side, and one instruction moves them."""
        whole = [w for w in self.wide if (w.step, w.per_move) == (1, self.lanes)]
        return sum(len(w.parts) for w in whole) == len(self.points.accesses)


@dataclass(frozen=True, slots=True)
class Operand:
    """How a matrix instruction gets an operand: tile rows (M or N) by K.

    Attributes:
        distribution: of one step of K, or of the whole operand if it stays in registers.
        source: "registers", "ldmatrix", "chunks" (each lane reads its elements side by side),
            "rows" (it reads those of several tiles, whose K is the first axis, at once),
            "elements", "descriptor" (read by the instruction) or "tensor memory".
        is_transposed: whether K is the first axis of the tile in memory.
    """

    distribution: Distribution
    source: str
    is_transposed: bool


@dataclass(frozen=True, slots=True)
class GemmPlan:
    """How one product runs.

    Attributes:
        kind: "mma" (a warp's matrix instruction), "scaled" (one that takes elements and factors,
            with two elements to a byte, which is what K counts), "quads" (that of Volta), "wgmma"
            (a warpgroup's), "mfma" (a wavefront's), "tcgen05" (one thread's, with sums in tensor
            memory) or "fma".
        shape: M, N, K of the instruction (1, 1, 1 for fma), of two blocks where they multiply
            together.
        size: M, N, K of the product; of two blocks the rows of one.
        warps: rows and columns of warps (of warpgroups) over C.
        a, b: the operands.
        c: the accumulators.
        keeps_c: whether C is a fragment; else it is loaded before and stored after.
        sums: element type of the sums.
        reason: why no matrix instruction (on sm_100: not tcgen05) is used, or "".
        is_async: whether nobody waits for it at its end: the program does, or a pipeline.
        converts_to: the type that holds all of A's and B's numbers, to which threads convert them
            because the instruction does not read theirs; "": it does.
    """

    stmt: Gemm
    kind: str
    shape: tuple[int, int, int]
    size: tuple[int, int, int]
    warps: tuple[int, int]
    a: Operand
    b: Operand
    c: Distribution
    keeps_c: bool
    sums: str
    reason: str = ""
    is_async: bool = False
    converts_to: str = ""

    @property
    def rows(self) -> int:
        """Rows of the instruction in one block."""
        return self.shape[0] // (2 if self.stmt.in_pair else 1)

    @property
    def columns_of_b(self) -> int:
        """Columns of B of the instruction in one block."""
        return self.shape[1] // (2 if self.stmt.in_pair else 1)

    @property
    def is_tf32(self) -> bool:
        """Whether matrix units read float32 operands, of which they drop bits."""
        return self.kind in ("mma", "wgmma", "tcgen05") and self.stmt.a.dtype == "float32"

    def explain(self) -> str:
        """Return how the product runs, in words."""
        from tilecore.inference.gpu.words import product_in_words

        return product_in_words(self)


@dataclass(frozen=True, slots=True)
class TensorTile:
    """A tile in tensor memory: matrices side by side.

    Attributes:
        shape: of the tile; the last two axes are those of a matrix.
        column: the first of the block's columns of 32 bits.
        dtype: of the elements there.
        packed: elements in a column: several of an operand, one of sums.
        is_folded: whether the second half of the columns of 64 rows lies in lanes 64 to 127, as
            two blocks sum them up (PTX ISA 9.0, 9.7.16.10.5, layout B).
        of_factors: whether it holds factors, which one thread copies there and multiplies by.
    """

    shape: tuple[int, ...]
    column: int
    dtype: str = "float32"
    packed: int = 1
    is_folded: bool = False
    of_factors: bool = False

    @property
    def parts(self) -> int:
        """Groups of 128 rows, which lie side by side."""
        return max(1, self.shape[-2] // 128)

    @property
    def columns(self) -> int:
        """Columns of all matrices."""
        return math.prod(self.shape[:-2]) * self.parts * self.row_columns

    @property
    def row_columns(self) -> int:
        """Columns of a row of a matrix."""
        return self.shape[-1] // self.packed // (2 if self.is_folded else 1)


@dataclass(frozen=True, slots=True)
class TensorTransfer:
    """How threads move elements between tensor memory and their registers.

    Attributes:
        tile: some columns of all rows of a tile in tensor memory.
        other: where elements come from or go to; None: all get one value.
        stores: whether they go to tensor memory.
        spread: who moves which elements.
        held: how ``other``, a fragment, must be spread so that its registers are those moved.
        start: the first column of ``other`` that is moved.
    """

    tile: Region
    other: Region | None
    stores: bool
    spread: Distribution
    held: Distribution | None = None
    start: int = 0


@dataclass(frozen=True, slots=True)
class Box:
    """How the tensor memory accelerator brings a tile.

    Attributes:
        tensor: where it comes from.
        extents: of one box, an extent per axis of the tensor.
        panels: boxes side by side along the last axis that make up the tile.
    """

    tensor: Buffer
    extents: tuple[int, ...]
    panels: int


@dataclass(frozen=True, slots=True)
class BoxUpdate:
    """An atomic update of a part of a tensor by a shared tile, as boxes.

    Attributes:
        op: add, min or max.
        box: how the accelerator takes the tile.
        there: the part of the tensor.
        here: the tile.
    """

    op: str
    box: Box
    there: Region
    here: Region


@dataclass(frozen=True, slots=True)
class Group:
    """Blocks of a cluster that get the same boxes.

    Attributes:
        axes: for each axis of the grid whether they differ along it.
        offsets: ranks of the blocks less that of the first, which loads for all.
    """

    axes: tuple[bool, ...]
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Overlap:
    """The order of a loop whose iterations begin before the last product of the one before is over.

    Attributes:
        first: statements up to the first products of an iteration; these run at once with ``last``
            of the iteration before, which is issued after them.
        meanwhile: what threads compute of the first products while ``last`` runs.
        rest: what must wait for ``last`` of the iteration before.
        last: the product of all that.
    """

    first: tuple[Stmt, ...]
    meanwhile: tuple[Stmt, ...]
    rest: tuple[Stmt, ...]
    last: Gemm


@dataclass(frozen=True, slots=True)
class Gather:
    """A nest that fills a shared tile with elements of a tensor, from where other tensors say.

    Attributes:
        nest: the nest.
        tile: what it fills, each point the element at its own indices.
        source: the element that a point brings.
        cond: where it does; elsewhere the tile gets 0. None: everywhere.
    """

    nest: Parallel
    tile: Buffer
    source: Load
    cond: Expr | None = None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A loop whose copies from tensors run ahead of what uses them.

    Attributes:
        loop: the loop.
        copies: those of its statements that run ahead.
        stages: tiles of each kind.
        boxes: for each copy how the tensor memory accelerator brings it; none: each thread copies
            its part (cp.async), ``stages - 1`` iterations ahead.
        is_nested: whether the loop runs more than once in a launch.
        in_registers: whether a thread keeps its part of the next tiles in registers while the
            loop uses the tiles before (where no instruction copies to shared memory).
        groups: for each copy the blocks of the cluster that one of them loads for, or None.
        overlap: the order in which products of two iterations run at once, if they do.
        lookups: names of the iteration that its copies need (pages of a table), in order.
        gathers: nests that run ahead as copies of threads do.
    """

    loop: For
    copies: tuple[Copy, ...]
    stages: int
    boxes: tuple[Box, ...] = ()
    is_nested: bool = False
    in_registers: bool = False
    groups: tuple[Group | None, ...] = ()
    overlap: Overlap | None = None
    lookups: tuple[Let, ...] = ()
    gathers: tuple[Gather, ...] = ()

    @property
    def ahead(self) -> tuple[Stmt, ...]:
        """The statements that run ahead."""
        return (*self.copies, *(gather.nest for gather in self.gathers))

    @property
    def tiles(self) -> tuple[Buffer, ...]:
        """The tiles that they fill."""
        copied = tuple(copy.dst.buffer for copy in self.copies)
        return (*copied, *(gather.tile for gather in self.gathers))

    def group(self, copy: Copy) -> Group | None:
        """Return the blocks that ``copy`` brings the same, if one loads for all."""
        number = next(n for n, c in enumerate(self.copies) if c is copy)
        return self.groups[number] if self.groups else None


@dataclass(frozen=True, slots=True)
class OwnRows:
    """A shared tile that each warpgroup fills and stores by itself.

    Attributes:
        filled, stored: the copies of sums to it, and of it to a tensor.
        rows: of the tile, of a warpgroup.
        axis, step: of the tensor, along which a warpgroup's part begins so much further.
        barrier: the named barrier of the first warpgroup; the others have those after it.
        box: what a warpgroup stores.
    """

    filled: Copy
    stored: Copy
    rows: int
    axis: int
    step: int
    barrier: int
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLaunchPlan:
    """Everything decided about one kernel launch.

    ``barriers`` holds the statements before which all threads of the block meet, ``ends`` the loops
    at the end of whose body they do. Where pipelines have ``boxes``, a warpgroup beyond ``threads``
    issues them (``has_producer``). ``stores`` has the copies of shared tiles to tensors that one
    thread hands over to the tensor memory accelerator, ``loads`` those from tensors that it asks
    for on a barrier of the program's own, ``updates`` the nests that it does. For ``unawaited``
    copies threads wait only when they meet next. Behind the ``tile_bytes`` of ``shared_bytes`` is
    what threads tell each other, for each team from ``scratch`` on (bytes), and the barriers of
    pipelines. ``registers``: whether warpgroups
    hand registers to each other where the program says so. ``tensor_tiles`` and
    ``transfers`` are what lies in tensor memory, of which a block has ``tensor_columns``.
    ``multicasts`` has the copies from tensors to several blocks of a cluster that one block asks
    for. ``running`` has those ``stores`` and ``updates`` of which nobody waits for more than that
    the tile is read: before threads meet next or, where the program waits itself, before the kernel
    ends. ``own_rows`` is the tile of sums that each warpgroup stores by itself.
    Where there are ``torn`` branches, no code can be made yet: inside, threads must meet before
    some statements, and not all of them come by.
    """

    launch: KernelLaunch
    threads: tuple[int, int, int]
    fragments: Mapping[Buffer, Distribution]
    shared: Mapping[Buffer, SharedLayout]
    nests: Mapping[Stmt, NestPlan]
    gemms: Mapping[Stmt, GemmPlan]
    pipelines: Mapping[Stmt, Pipeline]
    stores: Mapping[Stmt, Box]
    loads: Mapping[Stmt, Box]
    updates: Mapping[Stmt, BoxUpdate]
    unawaited: frozenset[Stmt]
    registers: bool
    barriers: frozenset[Stmt]
    ends: frozenset[Stmt]
    tile_bytes: int
    scratch: Mapping[Team, int]
    shared_bytes: int
    teams: Teams
    notes: tuple[str, ...] = ()
    tensor_tiles: Mapping[Buffer, TensorTile] = field(default_factory=dict)
    transfers: Mapping[Stmt, TensorTransfer] = field(default_factory=dict)
    tensor_columns: int = 0
    multicasts: Mapping[Stmt, Box] = field(default_factory=dict)
    running: frozenset[Stmt] = frozenset()
    own_rows: OwnRows | None = None
    torn: Mapping[Stmt, frozenset[Stmt]] = field(default_factory=dict)

    @property
    def thread_count(self) -> int:
        """Threads of a block, those that issue copies aside."""
        x, y, z = self.threads
        return x * y * z

    @property
    def has_producer(self) -> bool:
        """Whether a warpgroup of its own issues the copies that run ahead."""
        return any(p.boxes for p in self.pipelines.values())

    def explain(self) -> str:
        """Return the decisions in words."""
        from tilecore.inference.gpu.words import launch_in_words

        return launch_in_words(self)


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """The plan of a program: one per kernel launch."""

    func: PrimFunc
    launches: Mapping[KernelLaunch, GpuLaunchPlan] = field(default_factory=dict)

    @property
    def torn(self) -> Mapping[Stmt, frozenset[Stmt]]:
        """Branches of some threads, with what in them threads must meet before."""
        return {b: s for plan in self.launches.values() for b, s in plan.torn.items()}

    def explain(self) -> str:
        """Return the decisions in words, launch by launch."""
        when: dict[Stmt, str] = {}
        for stmt in walk(self.func.body):
            if isinstance(stmt, If) and stmt.then_body in self.launches:
                when[stmt.then_body] = f"where {_multiples(stmt.cond)}:\n"
                if stmt.else_body is not None:
                    when[stmt.else_body] = "for other sizes:\n"
        return "\n".join(when.get(s, "") + plan.explain() for s, plan in self.launches.items())


def _multiples(cond: Expr) -> str:
    """Return what a version of a launch (passes.aligned) asks of sizes, in words."""
    found: dict[str, list[str]] = {}
    for part in walk_expr(cond):
        if isinstance(part, Binary) and part.op == "mod":
            found.setdefault(format_expr(part.b), []).append(format_expr(part.a))
    return ", ".join(f"{factor} divides {' and '.join(names)}" for factor, names in found.items())
