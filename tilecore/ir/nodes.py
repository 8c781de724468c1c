"""The tile IR: what a tile program means, before any target is chosen.

Grammar::

    func   = PrimFunc(name, params, body, attrs)          params: Buffers (global), Vars (scalars)
    stmt   = Seq(stmts)
           | KernelLaunch(block_vars, grid, threads, body)   blocks run in any order, concurrently
           | SourceLaunch(grid, threads, source, entry, arguments)   a kernel in CUDA C++
           | Alloc(buffer)                                   scope = rest of the enclosing Seq
           | Copy(src, dst, barrier)    tile copy with conversion; outside a global tensor loads
                                        give 0 and stores are skipped; see the node for barrier
           | ClusterCopy(copy, block, mask, barrier)   a copy into other blocks of the cluster
           | ChunkCopy(src, dst)               factors to tensor memory; see ir/plain/scaled_gemm.py
           | Fill(dst, value)
           | Gemm(a, b, c, transpose_a, transpose_b, clear_accum)   c (+)= op(a) @ op(b)
           | Gemm(.., factors, sharing)       elements times factors; see plain/scaled_gemm.py
           | Reduce(op, src, dst, axes, clear)   dst (op)= src folded along axes; see ir/fold.py
           | Scan(op, src, dst, axis, reverse)   dst = running fold of src along an axis
           | Parallel(loop_vars, extents, body)              iterations independent
           | For(loop_var, start, stop, step, kind, body)    kind: one of LOOP_KINDS
           | While(cond, body)
           | Jump(word)                                      break or continue of the innermost loop
           | If(cond, then_body, else_body)
           | Store(buffer, indices, value)                   outside a global tensor: skipped
           | Atomic(op, buffer, indices, value, prev)        one indivisible update of an element
           | Let(var, value)                                 immutable; scope = rest of the Seq
           | Annotate(key, value)                            a hint; never changes the meaning
           | Assert(cond, message)
           | Sync(scope)            threads of a block (warp, cluster, grid) wait for each other
           | Exchange(op, dst, args, width)     every thread tells its group and is told
           | LaneGemm(a, b, c, shape)  c += a @ b of what the lanes of a warp hold in pieces
           | Arrive(buffer, index, once, rank)  an arrival at a barrier, by each thread or once
           | Wait(buffer, index, parity)        until the barrier's phase of this parity is over
           | Print(text, args)              writes a line; each `{}` in text stands for an argument
           | Pad(buffer, value)             loads outside the tensor give value, in all the launch
    region = Region(buffer, offsets, extents)               extents: one per buffer axis
    buffer = Buffer(name, shape, dtype, scope)              scope: one of SCOPES
           | Buffer(.., strides)                            global, elements between neighbours
           | Buffer(.., base)                               another shape or dtype of base's memory
           | Buffer(.., address)                            global, at an address known at run time
           | Buffer(.., arrive_counts)                      int32, arrivals at barriers so far
           | Buffer(.., in_tensor_memory)                   shared, or tensor memory where there is

All nodes are immutable and carry the SourceSpan of the line that made them. Buffers and Vars are
compared by identity. Extents are expressions: Python ints become Const, dynamic dims and traced
knobs are Vars.
"""

from __future__ import annotations

import copyreg
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from tilecore.errors import ScopeError, SourceSpan
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, Load, Var, int_value

SCOPES = ("global", "shared", "fragment", "local")
LOOP_KINDS = ("serial", "pipelined", "unroll", "vectorized")
THREADS = "threads"  # kind of a loop over the threads of a block, none of which sees another
RUNS_ON = "runs_on"  # annotation of a copy
RESIDENT = "resident"  # of a launch whose blocks go through tiles, no two of which overlap
LAUNCHES = "launches"  # key of an Annotate: "trigger", "wait" (T.pdl_trigger, T.pdl_sync)
NOTE = "note"  # key of an Annotate: what a pass has to say about a launch
COALESCED_WIDTH = "coalesced_width"  # annotation of a Parallel: neighbours along its last loop
SHUFFLES = ("shfl", "shfl_xor", "shfl_up", "shfl_down")
COMBINERS = (
    "sum", "prod", "max", "min", "bitand", "bitor", "bitxor", "any", "all", "ballot", "count",
)  # fmt: skip
ATOMIC_OPS = ("add", "max", "min", "or", "load", "store")
ATOMIC_ORDERS = ("relaxed", "consume", "acquire", "release", "acq_rel", "seq_cst")  # C++'s
NO_SPAN = SourceSpan.unknown()


def read_only(values: Mapping[str, Any]) -> MappingProxyType[str, Any]:
    """Return a view of ``values`` that cannot be changed."""
    return MappingProxyType(dict(values))


copyreg.pickle(MappingProxyType, lambda proxy: (read_only, (dict(proxy),)))  # programs travel


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """A tensor (scope global) or a tile: row-major unless a layout says otherwise.

    ``is_output`` marks a tensor the kernel allocates and returns (``T.empty``, ``out_idx``).
    A scalar variable (``T.alloc_var``) is a local Buffer of shape (1,) with ``is_var``.
    ``reducer`` names the operation (ir.fold.REDUCER_OPS) of a tile that the iterations of a
    Parallel nest may all update (``T.alloc_reducer``).
    ``strides`` (None: row-major) are in elements. A view has a ``base`` that is no view itself and
    shares its memory from the first element on; a tensor at an ``address`` (integer expression)
    owns no memory either. Both come into being with an Alloc, as tiles and workspaces do.
    ``arrive_counts`` makes a shared tile an array of mbarriers: each element counts arrivals, and
    every so many of them end a phase; phases are numbered from 0 (ir.barrier). ``of_cluster``:
    other blocks use them, too (``T.alloc_cluster_barrier``).
    ``in_tensor_memory`` asks for the tensor memory of sm_100 (``T.alloc_tmem``); elsewhere the tile
    is a shared one.
    ``lanes`` above 1: an index along all axes but the last one, which has so many elements, is a
    vector's. That is how a program may spell its indices, and no more.
    """

    name: str
    shape: tuple[Expr, ...]
    dtype: DType
    scope: str = "global"
    is_output: bool = False
    is_var: bool = False
    reducer: str | None = None
    span: SourceSpan = NO_SPAN
    strides: tuple[Expr, ...] | None = None
    base: Buffer | None = None
    address: Expr | None = None
    arrive_counts: tuple[int, ...] | None = None
    in_tensor_memory: bool = False
    lanes: int = 1
    of_cluster: bool = False

    @property
    def root(self) -> Buffer:
        """The buffer that owns the memory."""
        return self if self.base is None else self.base

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape as ints, or None if an extent is symbolic."""
        values = [int_value(e) for e in self.shape]
        return None if any(v is None for v in values) else tuple(v for v in values if v is not None)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def data(self) -> Buffer:
        """The memory, as ``T.Tensor(shape, dtype, data)`` takes it to see it in another shape."""
        return self

    def __getitem__(self, key: Any) -> Any:
        """Return a Load (all indices given) or a Region (at least one slice)."""
        from tilecore.ir.indexing import index_buffer

        return index_buffer(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise ScopeError(
            message=f"an element of `{self.name}` is assigned in plain Python",
            hint="assign in the body of the kernel, or decorate the helper with @T.macro",
        )

    __iter__ = None  # indexing does not make a tensor iterable


class Range(NamedTuple):
    """One axis of a region, by TVM's names."""

    min: Expr
    extent: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A box of ``buffer``: ``offsets[i] <= index[i] < offsets[i] + extents[i]``."""

    buffer: Buffer
    offsets: tuple[Expr, ...]
    extents: tuple[Expr, ...]

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.buffer.dtype

    @property
    def region(self) -> tuple[Range, ...]:
        """The box axis by axis, as programs ask a slice for it."""
        return tuple(map(Range, self.offsets, self.extents))


class Stmt:
    """Base of all statements."""

    __slots__ = ()
    span: SourceSpan


@dataclass(frozen=True, slots=True, eq=False)
class Seq(Stmt):
    """Statements in order."""

    stmts: tuple[Stmt, ...]
    span: SourceSpan = NO_SPAN


@dataclass(frozen=True, slots=True, eq=False)
class KernelLaunch(Stmt):
    """A grid of independent blocks; ``block_vars[0]`` is blockIdx.x.

    ``threads`` is a GPU hint, unless the program asks which thread it is: then ``thread_vars``
    holds threadIdx.x, .y, .z, everything but tile operations runs once per thread, and tiles of
    scope local are private to each thread. ``cluster``: blocks along the axes of the grid that run
    together and reach each other's shared memory, where a target has clusters.
    """

    block_vars: tuple[Var, ...]
    grid: tuple[Expr, ...]
    threads: tuple[Expr, ...]
    body: Stmt
    span: SourceSpan = NO_SPAN
    thread_vars: tuple[Var, ...] = ()
    cluster: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class SourceLaunch(Stmt):
    """A grid of blocks of a kernel that the program gives as CUDA C++ (``source``).

    ``entry`` names the kernel in it, ``arguments`` are what it is passed: addresses of tensors,
    values of symbols (ir.cuda_source, which sets them when the program's parameters are known).
    Only NVIDIA's GPUs run it; what it does to its tensors, its parameters say (const or not).
    """

    grid: tuple[Expr, ...]
    threads: tuple[Expr, ...]
    source: str
    entry: str
    arguments: tuple[Buffer | Var, ...] = ()
    cluster: tuple[int, ...] = ()
    span: SourceSpan = NO_SPAN


@dataclass(frozen=True, slots=True, eq=False)
class Alloc(Stmt):
    """Brings a tile, workspace or view into being; new memory has undefined contents.

    A workspace (scope global) may stand before the kernel launches and lives across them.
    """

    buffer: Buffer
    span: SourceSpan = NO_SPAN


@dataclass(frozen=True, slots=True, eq=False)
class Copy(Stmt):
    """``dst = convert(src)``; the regions have the same extents but for axes of size 1.

    With a ``barrier`` (an element of an array of mbarriers) the copy may be under way until the
    phase ends that the barrier is in: who reads ``dst`` waits for it. With the annotation RUNS_ON
    the program waits itself before it writes ``src`` again. A target may complete it at once.
    """

    src: Region
    dst: Region
    annotations: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    span: SourceSpan = NO_SPAN
    barrier: Load | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ClusterCopy(Stmt):
    """A copy of a tile into shared memory of blocks of the cluster.

    To the tile of the same name in the block of rank ``block``, then an arrival at that block's
    ``barrier`` (if there is one). Or, from a tensor, to all blocks of ``mask``: they get what the
    one of the lowest rank reads, the others what they read themselves; with a ``barrier`` the copy
    may be under way until its phase ends, as a Copy with one may.
    """

    copy: Copy
    block: Expr | None = None
    mask: int = 0
    barrier: Load | None = None
    span: SourceSpan = NO_SPAN


@dataclass(frozen=True, slots=True, eq=False)
class Fill(Stmt):
    """Sets every element of ``dst``."""

    dst: Region
    value: Expr
    span: SourceSpan = NO_SPAN


@dataclass(frozen=True, slots=True, eq=False)
class ChunkCopy(Stmt):
    """Factors to tensor memory: each chunk of 128 words to four columns (``plain/scaled_gemm.py``).

    Shapes: src has 128 c words of uint32, row by row; dst is [128, 4 c] after axes of size 1 are
    dropped. A target may let it run on until a product that reads the factors is complete.
    ``in_pair``: in both of two blocks that multiply together; the first of them begins it.
    """

    src: Region
    dst: Region
    span: SourceSpan = NO_SPAN
    in_pair: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Gemm(Stmt):
    """``c (+)= op(a) @ op(b)``; ``clear_accum`` (bool expression) drops the old value of c.

    Shapes: op(a)[M, K], op(b)[K, N], c[M, N] after axes of size 1 are dropped. Products are taken
    in c's dtype. ``is_async``: the program itself waits for a barrier before it uses c or writes
    a or b again (``T.tcgen05_gemm``); a target may complete the product at once. ``in_group``: the
    program waits for groups of products (``T.wgmma_gemm``, ``T.wait_wgmma``) before it tells others
    that a or b may be written again. ``in_pair``: it is one of the blocks of ranks 2 i and 2 i + 1
    of a cluster together: op(b)[K, N / 2], the columns of the first block before those of the
    other; each has some rows, op(a)[M, K] and c[M, N]. The first block begins it, for both.

    ``factors``: words of uint32 with what the elements of a and of b are multiplied by, or none:
    ``plain/scaled_gemm.py`` says what that means. ``sharing``: how many elements along K of a and
    of b share a factor. ``factor_type``: of these. ``in_chunks``: how the words lie. ``pairs_of``:
    the type of which each byte of a and b holds two elements along K, or "". ``in_lanes``: the
    words lie as ChunkCopy places them. ``start``: where a and b begin along K, which then decides
    which byte of a word counts.
    """

    a: Region
    b: Region
    c: Region
    transpose_a: bool
    transpose_b: bool
    clear_accum: Expr
    policy: str = "square"
    span: SourceSpan = NO_SPAN
    is_async: bool = False
    in_group: bool = False
    in_pair: bool = False
    factors: tuple[Region, ...] = ()
    sharing: tuple[int, ...] = ()
    factor_type: str = "float8_e4m3fn"
    in_chunks: bool = False
    pairs_of: str = ""
    in_lanes: bool = False
    start: Expr | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Reduce(Stmt):
    """``dst (op)= src`` folded along ``axes``; ``clear`` drops the old value of dst.

    Shapes: dst has the extents of src without ``axes``, axes of size 1 aside. ``op`` is one of
    ir.fold.REDUCE_OPS. ``nan_propagate``: a maximum or minimum over a NaN is NaN.
    """

    op: str
    src: Region
    dst: Region
    axes: tuple[int, ...]
    clear: bool = True
    nan_propagate: bool = False
    span: SourceSpan = NO_SPAN


@dataclass(frozen=True, slots=True, eq=False)
class Scan(Stmt):
    """``dst[.., i, ..]`` = the fold of ``src[.., 0..i, ..]`` (``i..`` if ``reverse``).

    src and dst have one shape and may be the same region. ``op`` is one of ir.fold.SCAN_OPS.
    """

    op: str
    src: Region
    dst: Region
    axis: int
    reverse: bool = False
    span: SourceSpan = NO_SPAN


@dataclass(frozen=True, slots=True, eq=False)
class Parallel(Stmt):
    """A data-parallel nest; iterations may run in any order and at once."""

    loop_vars: tuple[Var, ...]
    extents: tuple[Expr, ...]
    body: Stmt
    annotations: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    span: SourceSpan = NO_SPAN


@dataclass(frozen=True, slots=True, eq=False)
class For(Stmt):
    """``for loop_var in range(start, stop, step)``; ``annotations['num_stages']`` if pipelined."""

    loop_var: Var
    start: Expr
    stop: Expr
    step: Expr
    kind: str
    body: Stmt
    annotations: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    span: SourceSpan = NO_SPAN


@dataclass(frozen=True, slots=True, eq=False)
class While(Stmt):
    """Runs ``body`` while ``cond`` holds."""

    cond: Expr
    body: Stmt
    span: SourceSpan = NO_SPAN


@dataclass(frozen=True, slots=True, eq=False)
class Jump(Stmt):
    """``break`` or ``continue`` (``word``) of the innermost For or While.

    While a kernel is traced also "return": ir.early_return makes breaks of it.
    """

    word: str
    span: SourceSpan = NO_SPAN


@dataclass(frozen=True, slots=True, eq=False)
class If(Stmt):
    """Runs one of two bodies."""

    cond: Expr
    then_body: Stmt
    else_body: Stmt | None = None
    span: SourceSpan = NO_SPAN


@dataclass(frozen=True, slots=True, eq=False)
class Store(Stmt):
    """``buffer[indices] = value``, converted to the buffer's dtype."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    span: SourceSpan = NO_SPAN


@dataclass(frozen=True, slots=True, eq=False)
class Atomic(Stmt):
    """``prev = buffer[indices]; buffer[indices] = prev op value``, indivisible and in one order.

    ``op`` is one of ATOMIC_OPS ("load" keeps the element, "store" drops it); outside a global
    tensor nothing is updated and ``prev`` (a variable, or None) becomes 0. ``order`` is that of
    C++ for accesses of other places around it, as other blocks see them.
    """

    op: str
    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    prev: Buffer | None = None
    span: SourceSpan = NO_SPAN
    order: str = "relaxed"


@dataclass(frozen=True, slots=True, eq=False)
class Let(Stmt):
    """Binds ``var`` to ``value`` for the rest of the enclosing Seq."""

    var: Var
    value: Expr
    span: SourceSpan = NO_SPAN


@dataclass(frozen=True, slots=True, eq=False)
class Annotate(Stmt):
    """A hint, which never changes the meaning.

    ``swizzle`` (panel_size, order, enable), ``layout`` (mapping Buffer -> Layout), or ``registers``
    (of each thread that comes by, whether these are more than before), ``LAUNCHES``, or ``NOTE``,
    a text.
    """

    key: str
    value: Any
    span: SourceSpan = NO_SPAN


@dataclass(frozen=True, slots=True, eq=False)
class Assert(Stmt):
    """Stops the program with ``message`` where ``cond`` does not hold."""

    cond: Expr
    message: str
    span: SourceSpan = NO_SPAN


@dataclass(frozen=True, slots=True, eq=False)
class Sync(Stmt):
    """Every thread of the ``scope`` waits here for the others.

    It is "warp", "block", "cluster", "grid", or "group": the threads that take the same branches.
    "cluster_arrive" and "cluster_wait" are the two halves of "cluster". "named" is for the
    ``count`` threads that come to the barrier of number ``barrier``; who comes there by
    "named_arrive" goes on at once (ir.named_barriers).
    """

    scope: str = "block"
    span: SourceSpan = NO_SPAN
    barrier: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Exchange(Stmt):
    """``dst`` = what each thread learns from its group of ``width`` threads (0: the block).

    op, args: one of SHUFFLES with (value, lane or distance), or of COMBINERS with (value,). A
    thread that a shuffle points outside the group gets its own value back. A further argument is
    the mask of the lanes that come by, where others may be elsewhere.
    """

    op: str
    dst: Buffer
    args: tuple[Expr, ...]
    width: int = 32
    span: SourceSpan = NO_SPAN


@dataclass(frozen=True, slots=True, eq=False)
class LaneGemm(Stmt):
    """``c`` += A B of matrices of ``shape`` (M, N, K) that the lanes of each warp hold in pieces.

    a, b and c are a thread's parts of them, elements of arrays of its own (ir.lane_matrix has which
    is which). All lanes of a warp come by together.
    """

    a: Region
    b: Region
    c: Region
    shape: tuple[int, int, int]
    span: SourceSpan = NO_SPAN


EXCHANGES = (Exchange, LaneGemm)  # by which threads learn what others have


@dataclass(frozen=True, slots=True, eq=False)
class Arrive(Stmt):
    """Every thread here, or one for all (``once``), arrives at the barrier ``buffer[index]``.

    ``after_products``: when the asynchronous products before it are complete. ``rank``: at that
    barrier of another block of the cluster. ``in_pair``: the first block of a pair arrives, at that
    barrier of both.
    """

    buffer: Buffer
    index: Expr
    once: bool = False
    span: SourceSpan = NO_SPAN
    after_products: bool = False
    rank: Expr | None = None
    in_pair: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Wait(Stmt):
    """Waits until the running phase of ``buffer[index]`` is not of this ``parity`` (an integer)."""

    buffer: Buffer
    index: Expr
    parity: Expr
    span: SourceSpan = NO_SPAN


@dataclass(frozen=True, slots=True, eq=False)
class Print(Stmt):
    """Writes ``text`` and a newline to standard output, each ``{}`` replaced by an argument."""

    text: str
    args: tuple[Expr, ...] = ()
    span: SourceSpan = NO_SPAN


@dataclass(frozen=True, slots=True, eq=False)
class Pad(Stmt):
    """Loads outside the global tensor ``buffer`` give ``value`` instead of 0, in all the launch."""

    buffer: Buffer
    value: Expr
    span: SourceSpan = NO_SPAN


@dataclass(frozen=True, slots=True, eq=False)
class PrimFunc:
    """One tile program: parameters in call order, and one or more kernel launches in sequence.

    ``attrs`` may hold ``out_idx`` (positions of the output tensors) and ``assumed`` (conditions
    on dimensions and integer parameters that hold at every call).
    """

    name: str
    params: tuple[Buffer | Var, ...]
    body: Stmt
    attrs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    span: SourceSpan = NO_SPAN

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The tensor parameters."""
        return tuple(p for p in self.params if isinstance(p, Buffer))

    @property
    def buffer_map(self) -> dict[Buffer, Buffer]:
        """The tensors by parameter, as programs look them up in TVM's functions."""
        return {p: p for p in self.buffers}

    def __str__(self) -> str:
        from tilecore.ir.printer import format_func

        return format_func(self)

    def script(self) -> str:
        """Return the program as text, as ``str`` does (the name is TVM's)."""
        return str(self)
