"""Programs of products and of attention, whose results may go through an epilogue."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence

from tilecore.computing.extents import present
from tilecore.computing.graph import Node, Shape, bytes_of
from tilecore.computing.places import Place, Places
from tilecore.computing.planning.fusion import Group
from tilecore.computing.planning.prologue import prologue_of
from tilecore.computing.programs.right_operand import TILES_OF_RIGHT, RightOperand
from tilecore.computing.programs.rows import Loop
from tilecore.computing.programs.text import (
    Names,
    Program,
    indented,
    part_of,
    program,
    view_of,
)
from tilecore.inference.cpu.dots import TILE_ROWS
from tilecore.ir.dtype import DType
from tilecore.tile_config import KnobValue

# Products of so many rows compute their transposes on AMX, those of many rows by weights that take
# so many bytes (a Xeon, bfloat16, 2026-11-30: benchmarks/results/linear_amx_2026-11-30.md).
FEW_TURNED, MOST_TURNED, MOST_BY_SMALL = 1, 512, 64
LARGE_BYTES = 12 << 20
MOST_OF_BLOCK, TILE_DEPTH = 512, 32
LOG2_E = 1.44269504088896341
ROWS_OF_BLOCK = 64  # of matrices that lie apart: with fewer they are copied into one
TILES = {"block_M": "by * block_M", "block_N": "bx * block_N", "block_K": "ko * block_K"}
LOWEST = -1e30  # finite: a row may see nothing yet
KNOBS = "block_M=64, block_N=64, block_K=64, num_stages=2, threads=128"
ATTENTION_KNOBS = "block_M=64, block_N=64, num_stages=2, threads=128"


def product(group: Group, name: str, places: Places, order: Sequence[int] | None) -> Program:
    """Return the program of a group around a matrix product.

    Args:
        group: the group.
        name: of the program.
        places: of tensors.
        order: of the axes of the result in memory, whose last is the last; None: as they are.
    """
    core = group.core
    assert core is not None
    a, names = core.producers[0], Names(group, places)
    *lead, m, n = core.shape
    k = a.shape[-2] if core.attrs["trans_a"] else a.shape[-1]
    is_flat = not is_batched(group, places)
    batch = () if is_flat else tuple(lead)
    rows = math.prod(lead) * m if is_flat else m
    left, is_turned = _matrices(places, a, rows if is_flat and rows != m else 0)
    trans_a = core.attrs["trans_a"] != is_turned
    place_a, lead_a = tile_of(left, batch)
    tile_a = ("block_K", "block_M") if trans_a else ("block_M", "block_K")
    from_a = ", ".join([*lead_a, *(TILES[t] for t in tile_a)])
    name_a = names.read(a, place_a)
    grid = f"T.ceildiv({n}, block_N), T.ceildiv({rows}, block_M)"
    blocks = "(bx, by)" if not batch else "(bx, by, bz)"
    grid += f", {math.prod(batch)}" if batch else ""
    cores = {"": core} if group.twin is None else {"": core, "2": group.twin}
    steps = [_Step(one, names, batch, suffix, trans_a) for suffix, one in cores.items()]
    lines = [
        f"with T.Kernel({grid}, threads=threads) as {blocks}:",
        f"    a = T.alloc_shared(({', '.join(tile_a)}), {steps[0].dtype!r})",
        *(f"    {line}" for step in steps for line in step.made),
        f"    for ko in T.Pipelined(T.ceildiv({k}, block_K), num_stages=num_stages):",
        f"        T.copy({name_a}[{from_a}], a)",
        *(f"        {line}" for step in steps for line in step.loads),
        *(f"        {step.gemm}" for step in steps),
    ]
    row, column = "by * block_M + i", "bx * block_N + j"
    whole = row if not batch else f"bz * {m} + {row}"
    lines += [f"    {line}" for step in steps for line in step.turns]
    places_of_results = {step.core: step.result for step in steps}
    lines += _epilogue(group, names, places_of_results, whole, column, "block_M, block_N")
    tile = [("by * block_M", "block_M"), ("bx * block_N", "block_N")]
    output, target = _target(batch, (rows, n), tile, order)
    lines.append(f"    T.copy({steps[0].result}, out[{target}])")
    right = steps[0].right
    space = _space_of_turned(right, present(rows), present(k)) if right.is_first else None
    return program(group, name, names, output, KNOBS, indented(lines, 2), space)


class _Step:
    """The lines of one product of a kernel: its right operand and its sums.

    Attributes:
        core: the product.
        dtype: of tiles of both operands.
        made: lines that allocate.
        loads, gemm: lines of a step along K.
        turns: lines that transpose the sums, if the transpose is computed.
        result: the fragment with the sums.
        right: how the right operand is read.
    """

    def __init__(self, core: Node, names: Names, batch: Shape, suffix: str, trans_a: bool) -> None:
        self.core, b, c = core, f"b{suffix}", f"c{suffix}"
        found: _Read | RightOperand = (
            RightOperand(core, names, b, TILES)
            if "prologue" in core.attrs
            else _Read(core, names, batch, b)
        )
        self.dtype, self.loads = found.dtype, found.loads
        self.right = found
        self.result, self.turns = c, list[str]()
        shape = "block_N, block_M" if found.is_first else "block_M, block_N"
        self.made = [
            *found.made, f"{c} = T.alloc_fragment(({shape}), {names.wide!r})", f"T.clear({c})",
        ]  # fmt: skip
        operands = [("a", trans_a), (b, found.is_turned)]
        if found.is_first:
            operands = [(b, not found.is_turned), ("a", not trans_a)]
            self.result = f"turned{suffix}"
            self.made.append(
                f"{self.result} = T.alloc_fragment((block_M, block_N), {names.wide!r})"
            )
            self.turns = [
                "for i, j in T.Parallel(block_M, block_N):", f"    {self.result}[i, j] = {c}[j, i]",
            ]  # fmt: skip
        (left, is_left), (right, is_right) = operands
        flags = ", transpose_A=True" * is_left + ", transpose_B=True" * is_right
        self.gemm = f"T.gemm({left}, {right}, {c}{flags})"


def _space_of_turned(
    right: _Read | RightOperand, rows: int, depth: int
) -> dict[str, tuple[KnobValue, ...]]:
    """Return the configs for the transpose of a product of so many rows.

    A block has all of them, if it can. Few wait for weights, which come from memory in pieces of at
    least a KiB then. More read each row of weights again and again, so that it is copied next to
    others, if it is not computed.

    Source: configs of 8 to 1024 rows by weights of 4096 x 2048 to 11008 x 4096, of 16, 8 and 4
    bits, the same Xeon, one thread.
    """
    unit = TILE_ROWS if rows <= TILE_ROWS else 2 * TILE_ROWS
    block_m, whole = -(-rows // unit) * unit, -(-depth // TILE_DEPTH) * TILE_DEPTH
    columns: tuple[int, ...] = (256, 512)
    depths: tuple[int, ...] = (512,)
    if rows <= MOST_BY_SMALL:
        columns, depths = (64, 128), (1024 if right.element_bytes >= 1 else 2048,)
    elif rows <= MOST_OF_BLOCK // 2:
        columns, depths = (64, 128, 256), (1024, 2048)
    return {
        "block_M": (min(block_m, MOST_OF_BLOCK),), "block_N": columns,
        "block_K": tuple(sorted({min(n, whole) for n in depths})),
        "pack_a": ("none",) if rows <= MOST_BY_SMALL else ("rows",), "pack_b": ("grid", "block"),
    }  # fmt: skip


class _Read:
    """The lines that read a right operand.

    Attributes:
        dtype: of its tiles.
        made: lines that allocate.
        loads: lines of a step along K.
        is_turned: whether a tile of it is one of (N, K).
        is_first, element_bytes: as of RightOperand. What is packed then are the few rows of the
            other one.
    """

    def __init__(self, core: Node, names: Names, batch: Shape, b: str) -> None:
        right = core.producers[1]
        self.dtype, self.element_bytes = right.dtype, float(DType(right.dtype).itemsize)
        place, is_turned = names.places.operand(right)
        self.is_turned = is_turned ^ core.attrs["trans_b"]
        rows, columns = present(math.prod(core.shape[:-1])), present(core.shape[-1])
        most = MOST_TURNED if bytes_of(right) >= LARGE_BYTES else MOST_BY_SMALL
        is_small = not batch and FEW_TURNED < rows <= min(most, columns)
        self.is_first = is_small and self.is_turned and self.dtype in names.places.tiled
        place, lead = tile_of(place, batch)
        tile = TILES_OF_RIGHT[self.is_turned]
        source = ", ".join([*lead, *(TILES[t] for t in tile)])
        self.made = [f"{b} = T.alloc_shared(({', '.join(tile)}), {right.dtype!r})"]
        self.loads = [f"T.copy({names.read(right, place)}[{source}], {b})"]


def is_batched(group: Group, places: Places) -> bool:
    """Return whether a product has matrices of its own per block, rather than all rows as one."""
    core = group.core
    assert core is not None
    a, (*lead, m, _) = core.producers[0], core.shape
    of_right = () if "prologue" in core.attrs else core.producers[1].shape[:-2]
    if core.attrs["trans_a"] or math.prod(of_right) != 1 or a.shape[:-2] != tuple(lead):
        return True
    is_apart = places.of(a).reshaped((math.prod(lead) * m, a.shape[-1])) is None
    return is_apart and m >= ROWS_OF_BLOCK


def _matrices(places: Places, x: Node, rows: int) -> tuple[Place, bool]:
    """Return where an operand is read, and whether its transpose lies there.

    ``rows``: of all its matrices as one; 0: they stay apart.
    """
    if not rows:
        return places.operand(x)
    shape = (rows, x.shape[-1])
    found = places.read(x, lambda place: place.reshaped(shape) is not None).reshaped(shape)
    assert found is not None
    return found, False


def attention(group: Group, name: str, places: Places, order: Sequence[int] | None) -> Program:
    """Return the program of a group around attention: blocks of keys, one after the other.

    The arguments are those of ``product``.
    """
    core = group.core
    assert core is not None
    (q, k, v), mask, names = core.producers[:3], core.producers[3:], Names(group, places)
    *lead, queries, width = core.shape
    width, depth = operator.index(width), operator.index(q.shape[-1])
    keys, is_causal = k.shape[-2], core.attrs["is_causal"]
    heads, scale = math.prod(lead), core.attrs["scale"]
    own, shared = tuple(lead), k.shape[:-2]
    head = "bz"
    if own != shared:  # grouped queries
        head = f"bz // {lead[-1] // shared[-1]}"
    (place_q, at_q), (place_k, at_k), (place_v, at_v) = (
        tile_of(places.read(x), x.shape[:-2], head if x is not q else "bz") for x in (q, k, v)
    )
    name_q, name_k, name_v = names.read(q, place_q), names.read(k, place_k), names.read(v, place_v)
    from_q, from_k, from_v = (
        ", ".join([*lead_of, place, "0"])
        for lead_of, place in (
            (at_q, "bx * block_M"), (at_k, "step * block_N"), (at_v, "step * block_N"),
        )
    )  # fmt: skip
    last = f"T.min({keys}, (bx + 1) * block_M)" if is_causal else str(keys)
    is_folded = not mask and scale > 0  # into the exponent
    factor = names.number(LOG2_E * (scale if is_folded else 1.0))
    rows = "largest, top, shrink, part, total"
    lines = [
        "T.annotate_pass_configs({'tc.skip_masked': True})",
        f"with T.Kernel(T.ceildiv({queries}, block_M), {heads}, threads=threads) as (bx, bz):",
        f"    q = T.alloc_shared((block_M, {depth}), {q.dtype!r})",
        f"    k = T.alloc_shared((block_N, {depth}), {k.dtype!r})",
        f"    v = T.alloc_shared((block_N, {width}), {v.dtype!r})",
        f"    scores = T.alloc_fragment((block_M, block_N), {names.wide!r})",
        f"    weights = T.alloc_fragment((block_M, block_N), {v.dtype!r})",
        f"    c = T.alloc_fragment((block_M, {width}), {names.wide!r})",
        *(f"    {r} = T.alloc_fragment((block_M,), {names.wide!r})" for r in rows.split(", ")),
        f"    T.copy({name_q}[{from_q}], q)",
        "    T.clear(c)",
        "    T.clear(total)",
        f"    T.fill(largest, {LOWEST!r})",
        f"    T.fill(top, {LOWEST!r} * {factor})",
        f"    for step in T.Pipelined(T.ceildiv({last}, block_N), num_stages=num_stages):",
        f"        T.copy({name_k}[{from_k}], k)",
        f"        T.copy({name_v}[{from_v}], v)",
        "        T.clear(scores)",
        "        T.gemm(q, k, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)",
        *(f"        {line}" for line in _seen(core, names, own, is_folded)),
        *(f"        {line}" for line in softmax_steps("block_M", "block_N", factor)),
        f"        for i, j in T.Parallel(block_M, {width}):",
        "            c[i, j] *= shrink[i]",
        "        T.copy(scores, weights)",
        "        T.gemm(weights, v, c, policy=T.GemmWarpPolicy.FullRow)",
        f"    for i, j in T.Parallel(block_M, {width}):",
        "        c[i, j] /= total[i]",
    ]
    row = f"bz * {queries} + bx * block_M + i"
    lines += _epilogue(group, names, {core: "c"}, row, "j", f"block_M, {width}")
    tile = [("bx * block_M", "block_M"), ("0", str(width))]
    output, target = _target(own, (queries, width), tile, order)
    names.written(group.root, output)
    lines.append(f"    T.copy(c, out[{target}])")
    for sums in group.others:
        stored = names.written(sums, (heads, queries))
        lines += [
            "    for i in T.Parallel(block_M):",
            f"        part[i] = top[i] * {names.number(1 / LOG2_E)} + T.log(total[i])",
            f"    T.copy(part, {stored}[bz, bx * block_M])",
        ]
    return program(group, name, names, None, ATTENTION_KNOBS, indented(lines, 2))


def softmax_steps(rows: str, keys: str, factor: str) -> list[str]:
    """Return the lines that turn scores into weights, and say by how much earlier sums shrink.

    Args:
        rows: of the scores.
        keys: the columns.
        factor: of scores, that makes weights powers of 2.
    """
    return [
        "T.reduce_max(scores, largest, dim=1, clear=False)",
        f"for i in T.Parallel({rows}):",
        f"    shrink[i] = T.exp2(top[i] - largest[i] * {factor})",
        f"    top[i] = largest[i] * {factor}",
        f"for i, j in T.Parallel({rows}, {keys}):",
        f"    scores[i, j] = T.exp2(scores[i, j] * {factor} - top[i])",
        "T.reduce_sum(scores, part, dim=1)",
        f"for i in T.Parallel({rows}):",
        "    total[i] = total[i] * shrink[i] + part[i]",
    ]


def _seen(core: Node, names: Names, own: Shape, is_folded: bool) -> list[str]:
    """Return the lines that scale scores, add a mask, and hide keys that a query does not see."""
    q, k, _, *mask = core.producers
    queries, keys = q.shape[-2], k.shape[-2]
    row, column = "bx * block_M + i", "step * block_N + j"
    value = "scores[i, j]"
    if not is_folded:
        value += f" * {names.number(core.attrs['scale'])}"
    if mask:
        whole = f"bz * {queries} + {row}"
        place = names.places.read(mask[0])
        value += f" + {names.element(mask[0], place, (*own, queries), keys, whole, column)}"
    hidden, seen = f"{column} >= {keys}", str(keys)
    if core.attrs["is_causal"]:
        hidden, seen = f"T.Or({hidden}, {column} > {row})", f"T.min({keys}, bx * block_M + 1)"
    lines = [
        "for i, j in T.Parallel(block_M, block_N):",
        f"    scores[i, j] = T.if_then_else({hidden}, -{names.infinity}, {value})",
    ]
    if not is_folded:
        return lines
    return [f"if (step + 1) * block_N > {seen}:", *(f"    {line}" for line in lines)]


def tile_of(place: Place, batch: Shape, at: str = "bz") -> tuple[Place, list[str]]:
    """Return the place as which matrices are read, and the indices before those of a tile.

    Args:
        place: of (..., rows, columns).
        batch: what its leading axes broadcast to.
        at: the flat index into batch.
    """
    lead, matrix = place.shape[:-2], place.shape[-2:]
    strides, index = place.strides[-2:], list[str]()
    if math.prod(lead) != 1:
        outer = Place(place.memory, place.offset, (*lead, 1), (*place.strides[:-2], 1))
        found, index = view_of(outer, batch, 1, at, "0")
        matrix, strides = (*found.shape, *matrix), (*found.strides, *strides)
    return Place(place.memory, place.offset, matrix, strides), index


def _target(
    batch: Shape, matrix: Shape, tile: Sequence[tuple[str, str]], order: Sequence[int] | None
) -> tuple[Shape, str]:
    """Return the shape of a result in memory, and the part of it that a block writes.

    Args:
        batch: its leading axes; a block computes tiles of one of their matrices.
        matrix: its last two.
        tile: the first index and the extent of the tile, along both.
        order: of all axes in memory; None: as they are.
    """
    starts = [start for start, _ in tile]
    if order is None:
        lead = (math.prod(batch),) if batch else ()
        return (*lead, *matrix), ", ".join([*("bz" for _ in lead), *starts])
    index = [part_of(batch, axis, axis, "bz") for axis in range(len(batch))]
    index += [f"{start}:{start} + {extent}" for start, extent in tile]
    shape = (*batch, *matrix)
    return tuple(shape[axis] for axis in order), ", ".join(index[axis] for axis in order)


def elements_of(
    group: Group, names: Names, cores: Mapping[Node, str], row: str, column: str
) -> tuple[list[str], str]:
    """Return the lines that turn elements of products into one of the root, and its text.

    ``cores``: the text of an element, by product.
    """
    root = group.root
    rows, columns = root.shape[:-1], root.shape[-1]
    loop = Loop(group, names, dict(cores))
    apart = {*cores, *(member for core in cores for member in prologue_of(core))}
    read = {p for member in group.members if member not in apart for p in member.producers}
    for node in group.operands:
        if node in read:
            at = names.places.read(node)
            loop.known[node] = names.element(node, at, rows, columns, row, column)
    loop.compute(root)
    return loop.lines, loop.known[root]


def _epilogue(
    group: Group, names: Names, cores: Mapping[Node, str], row: str, column: str, extents: str
) -> list[str]:
    """Return the lines that turn products in fragments into the root, in place of the first."""
    place = next(iter(cores.values()))
    if group.root in cores:
        return []
    elements = {core: f"{c}[i, j]" for core, c in cores.items()}
    lines, value = elements_of(group, names, elements, row, column)
    return [
        f"    for i, j in T.Parallel({extents}):",
        *(f"        {line}" for line in lines),
        f"        {place}[i, j] = {value}",
    ]
