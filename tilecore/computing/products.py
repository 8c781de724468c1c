"""Programs of products and of attention, whose results may go through an epilogue."""

from __future__ import annotations

import math

from tilecore.computing.fusion import Group
from tilecore.computing.graph import Node, Shape
from tilecore.computing.rows import Loop
from tilecore.computing.text import (
    Names,
    Parameter,
    Program,
    element,
    indented,
    module,
    number,
    view_of,
)

LOG2_E = 1.44269504088896341
LOWEST = -1e30  # finite: a row may see nothing yet
KNOBS = "block_M=64, block_N=64, block_K=64, num_stages=2, threads=128"
ATTENTION_KNOBS = "block_M=64, block_N=64, num_stages=2, threads=128"


def product(group: Group, name: str) -> Program:
    """Return the program of a group around a matrix product."""
    core = group.core
    assert core is not None
    (a, b), names = core.producers, Names(group)
    trans_a, trans_b = core.attrs["trans_a"], core.attrs["trans_b"]
    *lead, m, n = core.shape
    k = a.shape[-2] if trans_a else a.shape[-1]
    is_flat = not trans_a and math.prod(b.shape[:-2]) == 1 and a.shape[:-2] == tuple(lead)
    batch = () if is_flat else tuple(lead)
    rows = math.prod(lead) * m if is_flat else m
    at_a, at_b = _tile(a, batch, is_flat), _tile(b, batch, is_flat)
    names_a, names_b = names.read(a, at_a[0]), names.read(b, at_b[0])
    tile_a = ("block_K", "block_M") if trans_a else ("block_M", "block_K")
    tile_b = ("block_N", "block_K") if trans_b else ("block_K", "block_N")
    place = {"block_M": "by * block_M", "block_N": "bx * block_N", "block_K": "ko * block_K"}
    from_a = ", ".join([*at_a[1], *(place[t] for t in tile_a)])
    from_b = ", ".join([*at_b[1], *(place[t] for t in tile_b)])
    grid = f"T.ceildiv({n}, block_N), T.ceildiv({rows}, block_M)"
    blocks = "(bx, by)" if not batch else "(bx, by, bz)"
    grid += f", {math.prod(batch)}" if batch else ""
    flags = "".join([", transpose_A=True" * trans_a, ", transpose_B=True" * trans_b])
    lines = [
        f"with T.Kernel({grid}, threads=threads) as {blocks}:",
        f"    a = T.alloc_shared(({', '.join(tile_a)}), {a.dtype!r})",
        f"    b = T.alloc_shared(({', '.join(tile_b)}), {b.dtype!r})",
        "    c = T.alloc_fragment((block_M, block_N), 'float32')",
        "    T.clear(c)",
        f"    for ko in T.Pipelined(T.ceildiv({k}, block_K), num_stages=num_stages):",
        f"        T.copy({names_a}[{from_a}], a)",
        f"        T.copy({names_b}[{from_b}], b)",
        f"        T.gemm(a, b, c{flags})",
    ]
    row, column = "by * block_M + i", "bx * block_N + j"
    whole = row if not batch else f"bz * {m} + {row}"
    lines += _epilogue(group, names, "c", whole, column, "block_M, block_N")
    output = (rows, n) if not batch else (math.prod(batch), m, n)
    target = "by * block_M, bx * block_N"
    lines.append(f"    T.copy(c, out[{target if not batch else f'bz, {target}'}])")
    text = module(group, name, names, output, KNOBS, indented(lines, 2))
    inputs, last = names.inputs, Parameter("out", group.root, output)
    return Program(name, text, inputs, last, {})


def attention(group: Group, name: str) -> Program:
    """Return the program of a group around attention: blocks of keys, one after the other."""
    core = group.core
    assert core is not None
    (q, k, v), mask, names = core.producers[:3], core.producers[3:], Names(group)
    *lead, queries, width = core.shape
    keys, depth, is_causal = k.shape[-2], q.shape[-1], core.attrs["is_causal"]
    heads, scale = math.prod(lead), core.attrs["scale"]
    own, shared = tuple(lead), k.shape[:-2]
    head = "bz"
    if own != shared:  # grouped queries
        head = f"bz // {lead[-1] // shared[-1]}"
    kv_heads = math.prod(shared)
    name_q = names.read(q, (heads, queries, depth))
    name_k = names.read(k, (kv_heads, keys, depth))
    name_v = names.read(v, (kv_heads, keys, width))
    last = f"T.min({keys}, (bx + 1) * block_M)" if is_causal else str(keys)
    is_folded = not mask and scale > 0  # into the exponent
    factor = number(LOG2_E * (scale if is_folded else 1.0))
    rows = "largest, top, shrink, part, total"
    lines = [
        f"with T.Kernel(T.ceildiv({queries}, block_M), {heads}, threads=threads) as (bx, bz):",
        f"    q = T.alloc_shared((block_M, {depth}), {q.dtype!r})",
        f"    k = T.alloc_shared((block_N, {depth}), {k.dtype!r})",
        f"    v = T.alloc_shared((block_N, {width}), {v.dtype!r})",
        "    scores = T.alloc_fragment((block_M, block_N), 'float32')",
        f"    weights = T.alloc_fragment((block_M, block_N), {v.dtype!r})",
        f"    c = T.alloc_fragment((block_M, {width}), 'float32')",
        *(f"    {r} = T.alloc_fragment((block_M,), 'float32')" for r in rows.split(", ")),
        f"    T.copy({name_q}[bz, bx * block_M, 0], q)",
        "    T.clear(c)",
        "    T.clear(total)",
        f"    T.fill(largest, {LOWEST!r})",
        f"    T.fill(top, {LOWEST!r} * {factor})",
        f"    for step in T.Pipelined(T.ceildiv({last}, block_N), num_stages=num_stages):",
        f"        T.copy({name_k}[{head}, step * block_N, 0], k)",
        f"        T.copy({name_v}[{head}, step * block_N, 0], v)",
        "        T.clear(scores)",
        "        T.gemm(q, k, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)",
        *(f"        {line}" for line in _seen(core, names, own, is_folded)),
        "        T.reduce_max(scores, largest, dim=1, clear=False)",
        "        for i in T.Parallel(block_M):",
        f"            shrink[i] = T.exp2(top[i] - largest[i] * {factor})",
        f"            top[i] = largest[i] * {factor}",
        f"        for i, j in T.Parallel(block_M, {width}):",
        "            c[i, j] *= shrink[i]",
        "        for i, j in T.Parallel(block_M, block_N):",
        f"            scores[i, j] = T.exp2(scores[i, j] * {factor} - top[i])",
        "        T.reduce_sum(scores, part, dim=1)",
        "        for i in T.Parallel(block_M):",
        "            total[i] = total[i] * shrink[i] + part[i]",
        "        T.copy(scores, weights)",
        "        T.gemm(weights, v, c, policy=T.GemmWarpPolicy.FullRow)",
        f"    for i, j in T.Parallel(block_M, {width}):",
        "        c[i, j] /= total[i]",
    ]
    row = f"bz * {queries} + bx * block_M + i"
    lines += _epilogue(group, names, "c", row, "j", f"block_M, {width}")
    output = (heads, queries, width)
    lines.append("    T.copy(c, out[bz, bx * block_M, 0])")
    text = module(group, name, names, output, ATTENTION_KNOBS, indented(lines, 2))
    inputs, out = names.inputs, Parameter("out", group.root, output)
    return Program(name, text, inputs, out, {})


def _seen(core: Node, names: Names, own: Shape, is_folded: bool) -> list[str]:
    """Return the lines that scale scores, add a mask, and hide keys that a query does not see."""
    q, k, _, *mask = core.producers
    queries, keys = q.shape[-2], k.shape[-2]
    row, column = "bx * block_M + i", "step * block_N + j"
    value = "scores[i, j]"
    if not is_folded:
        value += f" * {number(core.attrs['scale'])}"
    if mask:
        whole = f"bz * {queries} + {row}"
        shape, index = view_of(mask[0], (*own, queries), keys, whole, column)
        value += f" + {element(mask[0], names.read(mask[0], shape), index)}"
    hidden, seen = f"{column} >= {keys}", str(keys)
    if core.attrs["is_causal"]:
        hidden, seen = f"T.Or({hidden}, {column} > {row})", f"T.min({keys}, bx * block_M + 1)"
    lines = [
        "for i, j in T.Parallel(block_M, block_N):",
        f"    scores[i, j] = T.if_then_else({hidden}, -T.infinity('float32'), {value})",
    ]
    if not is_folded:
        return lines
    return [f"if (step + 1) * block_N > {seen}:", *(f"    {line}" for line in lines)]


def _tile(x: Node, batch: Shape, is_flat: bool) -> tuple[Shape, list[str]]:
    """Return the shape in which an operand is read, and the indices before those of its tile."""
    rows, columns = x.shape[-2:]
    if is_flat:
        return (math.prod(x.shape[:-2]) * rows, columns), []
    lead = Node("view", "lead", (), (*x.shape[:-2], 1), x.dtype)
    shape, index = view_of(lead, batch, 1, "bz", "0")
    if math.prod(x.shape[:-2]) == 1:
        return (rows, columns), []
    return (*shape, rows, columns), index


def _epilogue(
    group: Group, names: Names, place: str, row: str, column: str, extents: str
) -> list[str]:
    """Return the lines that turn a product in a fragment into the root."""
    core, root = group.core, group.root
    assert core is not None
    if root is core:
        return []
    rows, columns = root.shape[:-1], root.shape[-1]
    loop = Loop(group, names, {core: f"{place}[i, j]"})
    for node in group.operands:
        if node in core.producers and not _is_read(group, node):
            continue
        shape, index = view_of(node, rows, columns, row, column)
        loop.known[node] = element(node, names.read(node, shape), index)
    loop.compute(root)
    return [
        f"    for i, j in T.Parallel({extents}):",
        *(f"        {line}" for line in loop.lines),
        f"        {place}[i, j] = {loop.known[root]}",
    ]


def _is_read(group: Group, node: Node) -> bool:
    """Return whether the epilogue reads a tensor."""
    return any(node in m.producers for m in group.members if m is not group.core)
