"""Programs of attention of few queries over many keys: reading keys and values takes the time.

The queries that share a head of keys are rows of one block. Up to three of them are multiplied with
the keys where these lie, several segments of the keys in turn, each a stream of its own; more are
matrix products. Blocks that share a head's keys leave parts, which a second launch adds up. On GPUs
they are products of as many rows as an instruction takes, in loops whose loads run ahead.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

from tilecore.computing.graph import Node, Shape
from tilecore.computing.places import Places
from tilecore.computing.planning.fusion import Group
from tilecore.computing.programs.products import LOG2_E, LOWEST, softmax_steps, tile_of
from tilecore.computing.programs.text import Names, Program, indented, part_of, program

MOST_ROWS, FEWEST_KEYS = 16, 256
MANY = 4  # queries of a head of keys from which on matrix products pay
SPLITS, STREAMS, KEYS = (1, 2, 4, 8), (1, 4), (32, 64, 128)
MOST_ON_GPU, ROWS_OF_PRODUCT = 64, 16
GPU_SPACE = {"splits": (1, 2, 4, 8, 16, 32, 64), "block_N": (32, 64, 128, 256)}


def is_decoding(group: Group, is_on_gpu: bool) -> bool:
    """Return whether a group is attention of few queries over many keys, and nothing else."""
    core = group.core
    if core is None or core.kind != "attention" or group.roots != (core,) or len(core.args) > 3:
        return False
    if group.computed_in != "float32":
        return False
    is_long = core.producers[1].shape[-2] >= FEWEST_KEYS
    most = MOST_ON_GPU if is_on_gpu else MOST_ROWS
    return is_long and _rows(core) <= most and core.attrs["scale"] > 0


def _query(group: int, queries: int) -> tuple[str, str]:
    """Return the head of query r of a block, and which of the head's queries it is."""
    if group == 1:
        return "bz", "r"
    if queries == 1:
        return f"bz * {group} + r", "0"
    return f"bz * {group} + r // {queries}", f"r % {queries}"


def _rows(core: Node) -> int:
    """Return how many queries share a head of keys."""
    heads, kv_heads = (math.prod(x.shape[:-2]) for x in core.producers[:2])
    found: int = heads // kv_heads * core.shape[-2]
    return found


def decoding(group: Group, name: str, places: Places, order: Sequence[int] | None) -> Program:
    """Return the program of such a group; the arguments are those of ``products.product``."""
    core = group.core
    assert core is not None
    (q, k, v), names = core.producers[:3], Names(group, places)
    *lead, queries, width = core.shape
    kv_heads, rows = math.prod(k.shape[:-2]), operator.index(_rows(core))
    queries, width = operator.index(queries), operator.index(width)
    query = _query(rows // queries, queries)
    place_q, at_q = tile_of(places.read(q), q.shape[:-2], query[0])
    (place_k, at_k), (place_v, at_v) = (tile_of(places.read(x), x.shape[:-2], "bz") for x in (k, v))
    element = f"{names.read(q, place_q)}[{', '.join([*at_q, query[1], 'd'])}]"
    block = _Block(
        core, rows, element, (names.read(k, place_k), at_k), (names.read(v, place_v), at_v)
    )
    shape, at = _result(tuple(lead), (queries, width), query, order)
    parts = f"{kv_heads}, splits, {rows}"
    head = [
        f"parts = T.alloc_global(({parts}, {width}), 'float32')",
        f"tops = T.alloc_global(({parts}), 'float32')",
        f"totals = T.alloc_global(({parts}), 'float32')",
    ]
    if places.is_on_gpu:
        lines = [
            *head, f"with T.Kernel(splits, {kv_heads}, threads=threads) as (bx, bz):",
            *(f"    {line}" for line in block.on_gpu()),
            f"with T.Kernel({rows}, {kv_heads}, threads=128) as (r, bz):",
            *(f"    {line}" for line in _combined_row(width, f"out[{at}]")),
        ]  # fmt: skip
        knobs = "splits=8, block_N=64, num_stages=2, threads=128"
        return program(group, name, names, shape, knobs, indented(lines, 2), GPU_SPACE)
    lines = [
        *head, f"with T.Kernel(splits, {kv_heads}) as (bx, bz):",
        *(f"    {line}" for line in (block.by_products() if rows >= MANY else block.by_sums())),
        "    T.copy(c, parts[bz, bx, 0, 0])",
        "    T.copy(top, tops[bz, bx, 0])",
        "    T.copy(total, totals[bz, bx, 0])",
        f"with T.Kernel({kv_heads}) as bz:",
        *(f"    {line}" for line in _combined(rows, width, f"out[{at}]")),
    ]  # fmt: skip
    space = {"splits": SPLITS, "block_N": KEYS} | ({} if rows >= MANY else {"streams": STREAMS})
    knobs = "splits=1, block_N=64" + ("" if rows >= MANY else ", streams=1")
    return program(group, name, names, shape, knobs, indented(lines, 2), space)


class _Block:
    """The lines of a block: a part of the keys of a head, for all queries that share it.

    Args:
        core: the attention.
        rows: queries.
        query: text of an element of query r.
        keys, values: name and the indices before those of a tile.
    """

    def __init__(
        self, core: Node, rows: int, query: str, keys: tuple[str, list[str]],
        values: tuple[str, list[str]],
    ) -> None:  # fmt: skip
        q, k, v = core.producers[:3]
        self._core, self._rows, self._query = core, rows, query
        self._keys, self._values = keys, values
        self._dtype, self._value_dtype = k.dtype, v.dtype
        self._count = k.shape[-2]
        self._depth, self._width = operator.index(q.shape[-1]), operator.index(v.shape[-1])
        self._factor = repr(LOG2_E * core.attrs["scale"])

    def by_sums(self) -> list[str]:
        """Products with keys where they lie, several segments in turn."""
        rows, depth, width = self._rows, self._depth, self._width
        key = "first + s * segment + n"
        hidden = self._hidden(f"({key})", "step * (block_N // streams) + n")
        return [
            f"segment = T.ceildiv({self._count}, splits * streams)",
            f"q = T.alloc_fragment(({rows}, {depth}), 'float32')",
            f"products = T.alloc_fragment(({rows}, block_N, {depth}), 'float32')",
            f"scores = T.alloc_fragment(({rows}, block_N), 'float32')",
            f"sums = T.alloc_fragment((streams, {rows}, {width}), 'float32')",
            *self._started(rows, self._query),
            "T.clear(sums)",
            "for step in T.serial(T.ceildiv(segment, block_N // streams)):",
            "    first = bx * streams * segment + step * (block_N // streams)",
            f"    for n, s, r, d in T.Parallel(block_N // streams, streams, {rows}, {depth}):",
            f"        products[r, n * streams + s, d] = q[r, d] * {self._at(self._keys, key)}",
            "    T.reduce_sum(products, scores, dim=2)",
            f"    for r, n, s in T.Parallel({rows}, block_N // streams, streams):",
            f"        if {hidden}:",
            "            scores[r, n * streams + s] = -T.infinity('float32')",
            *(f"    {line}" for line in softmax_steps(str(rows), "block_N", self._factor)),
            f"    for s, r, d in T.Parallel(streams, {rows}, {width}):",
            "        sums[s, r, d] *= shrink[r]",
            "    for n in T.serial(block_N // streams):",
            f"        for s, r, d in T.Parallel(streams, {rows}, {width}):",
            f"            value = {self._at(self._values, key)}",
            "            sums[s, r, d] += scores[r, n * streams + s] * value",
            "T.reduce_sum(sums, c, dim=0)",
        ]

    def by_products(self) -> list[str]:
        """Tiles of keys and values, and matrix products."""
        rows, depth, width = self._rows, self._depth, self._width
        (name_k, at_k), (name_v, at_v) = self._keys, self._values
        return [
            f"segment = T.ceildiv({self._count}, splits)",
            f"q = T.alloc_shared(({rows}, {depth}), {self._dtype!r})",
            f"k = T.alloc_shared((block_N, {depth}), {self._dtype!r})",
            f"v = T.alloc_shared((block_N, {width}), {self._value_dtype!r})",
            f"scores = T.alloc_fragment(({rows}, block_N), 'float32')",
            f"weights = T.alloc_fragment(({rows}, block_N), {self._value_dtype!r})",
            *self._started(rows, self._query),
            "T.clear(c)",
            "for step in T.serial(T.ceildiv(segment, block_N)):",
            "    first = bx * segment + step * block_N",
            f"    T.copy({name_k}[{', '.join([*at_k, 'first', '0'])}], k)",
            f"    T.copy({name_v}[{', '.join([*at_v, 'first', '0'])}], v)",
            "    T.clear(scores)",
            "    T.gemm(q, k, scores, transpose_B=True)",
            f"    for r, n in T.Parallel({rows}, block_N):",
            f"        if {self._hidden('(first + n)', 'step * block_N + n')}:",
            "            scores[r, n] = -T.infinity('float32')",
            *(f"    {line}" for line in softmax_steps(str(rows), "block_N", self._factor)),
            "    T.copy(scores, weights)",
            f"    for r, d in T.Parallel({rows}, {width}):",
            "        c[r, d] *= shrink[r]",
            "    T.gemm(weights, v, c)",
        ]

    def on_gpu(self) -> list[str]:
        """Products of rows that fill an instruction, and where the parts go."""
        rows, depth, width = self._rows, self._depth, self._width
        height = -(-rows // ROWS_OF_PRODUCT) * ROWS_OF_PRODUCT
        (name_k, at_k), (name_v, at_v) = self._keys, self._values
        return [
            f"steps = T.ceildiv({self._count}, splits * block_N)",
            f"q = T.alloc_shared(({height}, {depth}), {self._dtype!r})",
            f"k = T.alloc_shared((block_N, {depth}), {self._dtype!r})",
            f"v = T.alloc_shared((block_N, {width}), {self._value_dtype!r})",
            f"scores = T.alloc_fragment(({height}, block_N), 'float32')",
            f"weights = T.alloc_shared(({height}, block_N), {self._value_dtype!r})",
            *self._started(height, f"T.if_then_else(r < {rows}, {self._query}, 0.0)"),
            "T.clear(c)",
            "for step in T.Pipelined(steps, num_stages=num_stages):",
            "    first = (bx * steps + step) * block_N",
            f"    T.copy({name_k}[{', '.join([*at_k, 'first', '0'])}], k)",
            f"    T.copy({name_v}[{', '.join([*at_v, 'first', '0'])}], v)",
            "    T.clear(scores)",
            "    T.gemm(q, k, scores, transpose_B=True)",
            f"    for r, n in T.Parallel({height}, block_N):",
            f"        if {self._beyond('first + n')}:",
            "            scores[r, n] = -T.infinity('float32')",
            *(f"    {line}" for line in softmax_steps(str(height), "block_N", self._factor)),
            "    T.copy(scores, weights)",
            f"    for r, d in T.Parallel({height}, {width}):",
            "        c[r, d] *= shrink[r]",
            "    T.gemm(weights, v, c)",
            f"for r, d in T.Parallel({height}, {width}):",
            f"    if r < {rows}:",
            "        parts[bz, bx, r, d] = c[r, d]",
            f"for r in T.Parallel({height}):",
            f"    if r < {rows}:",
            "        tops[bz, bx, r] = top[r]",
            "        totals[bz, bx, r] = total[r]",
        ]

    def _started(self, rows: int, query: str) -> list[str]:
        return [
            f"c = T.alloc_fragment(({rows}, {self._width}), 'float32')",
            *(
                f"{name} = T.alloc_fragment(({rows},), 'float32')"
                for name in ("largest", "top", "shrink", "part", "total")
            ),
            f"for r, d in T.Parallel({rows}, {self._depth}):",
            f"    q[r, d] = {query}",
            "T.clear(total)",
            f"T.fill(largest, {LOWEST!r})",
            f"T.fill(top, {LOWEST!r} * {self._factor})",
        ]

    def _at(self, tensor: tuple[str, list[str]], key: str) -> str:
        name, lead = tensor
        return f"{name}[{', '.join([*lead, key, 'd'])}]"

    def _hidden(self, key: str, place: str) -> str:
        """Return whether a key lies beyond the segment or the tensor, or behind the query."""
        return f"T.Or({place} >= segment, {self._beyond(key)})"

    def _beyond(self, key: str) -> str:
        """Return whether a key lies beyond the tensor, or behind the query."""
        found = f"{key} >= {self._count}"
        if self._core.attrs["is_causal"]:
            heads, kv_heads = (math.prod(x.shape[:-2]) for x in self._core.producers[:2])
            found = f"T.Or({found}, {key} > {_query(heads // kv_heads, self._core.shape[-2])[1]})"
        return found


def _combined(rows: int, width: int, out: str) -> list[str]:
    """Return the lines that add up the parts of a head, each relative to its largest score."""
    return [
        f"top = T.alloc_fragment((splits, {rows}), 'float32')",
        f"total = T.alloc_fragment((splits, {rows}), 'float32')",
        f"largest = T.alloc_fragment(({rows},), 'float32')",
        f"whole = T.alloc_fragment(({rows},), 'float32')",
        f"c = T.alloc_fragment(({rows}, {width}), 'float32')",
        "T.copy(tops[bz, 0, 0], top)",
        "T.copy(totals[bz, 0, 0], total)",
        "T.reduce_max(top, largest, dim=0)",
        f"for x, r in T.Parallel(splits, {rows}):",
        "    top[x, r] = T.exp2(top[x, r] - largest[r])",
        "    total[x, r] = total[x, r] * top[x, r]",
        "T.reduce_sum(total, whole, dim=0)",
        "T.clear(c)",
        "for x in T.serial(splits):",
        f"    for r, d in T.Parallel({rows}, {width}):",
        "        c[r, d] += parts[bz, x, r, d] * top[x, r]",
        f"for r, d in T.Parallel({rows}, {width}):",
        f"    {out} = c[r, d] / whole[r]",
    ]


def _combined_row(width: int, out: str) -> list[str]:
    """Return the lines that do that for one query, by a block of its own."""
    return [
        "top = T.alloc_fragment((1, splits), 'float32')",
        "total = T.alloc_fragment((1, splits), 'float32')",
        "shares = T.alloc_shared((splits,), 'float32')",
        "largest = T.alloc_fragment((1,), 'float32')",
        "whole = T.alloc_fragment((1,), 'float32')",
        f"c = T.alloc_fragment(({width},), 'float32')",
        "for i, x in T.Parallel(1, splits):",
        "    top[i, x] = tops[bz, x, r]",
        "    total[i, x] = totals[bz, x, r]",
        "T.reduce_max(top, largest, dim=1)",
        "for i, x in T.Parallel(1, splits):",
        "    top[i, x] = T.exp2(top[i, x] - largest[i])",
        "    total[i, x] = total[i, x] * top[i, x]",
        "T.reduce_sum(total, whole, dim=1)",
        "for i, x in T.Parallel(1, splits):",
        "    shares[x] = top[i, x] / whole[i]",
        "T.clear(c)",
        "for x in T.serial(splits):",
        f"    for d in T.Parallel({width}):",
        "        c[d] += parts[bz, x, r, d] * shares[x]",
        f"for d in T.Parallel({width}):",
        f"    {out} = c[d]",
    ]


def _result(
    lead: Shape, matrix: Shape, query: tuple[str, str], order: Sequence[int] | None
) -> tuple[Shape, str]:
    """Return the shape of the result in memory, and the index of an element of row r.

    Args:
        lead: its leading axes.
        matrix: queries and width.
        query: the flat index into lead, and the query.
        order: of all axes in memory; None: as they are, the leading ones as one.
    """
    if order is None:
        return (math.prod(lead), *matrix), ", ".join([*query, "d"])
    index = [*(part_of(lead, axis, axis, query[0]) for axis in range(len(lead))), query[1], "d"]
    shape = (*lead, *matrix)
    return tuple(shape[axis] for axis in order), ", ".join(index[axis] for axis in order)
