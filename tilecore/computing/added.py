"""Programs of rows that are added up where integers say (``index_add``): gradients of embeddings.

A block adds up the rows that go to a row of the result, in float32, and writes that row once: the
result is never filled with zeros, no two blocks meet in one, and the order of additions is that of
the rows.
"""

from __future__ import annotations

from tilecore.computing.fusion import Group
from tilecore.computing.places import Places
from tilecore.computing.products import elements_of
from tilecore.computing.text import Names, Program, indented, program

SPACE = {"block_M": (8, 16, 32, 64, 128, 256), "block_N": (64, 128, 256, 512, 1024)}


def added(group: Group, name: str, places: Places) -> Program:
    """Return the program of a group around such a sum."""
    core = group.core
    assert core is not None
    rows, order, starts = core.producers
    count, width = core.shape
    names = Names(group, places)
    source, by, first = (names.read(x, places.read(x)) for x in (rows, order, starts))
    row, column = "row", "bx * block_N + j"
    lines, value = elements_of(group, names, {core: "c[j]"}, row, column)
    body = [
        f"with T.Kernel(T.ceildiv({width}, block_N), T.ceildiv({count}, block_M), threads=threads)"
        " as (bx, by):",
        "    c = T.alloc_fragment((block_N,), 'float32')",
        f"    for i in T.serial(T.min(block_M, {count} - by * block_M)):",
        "        row = by * block_M + i",
        "        T.clear(c)",
        f"        for n in T.serial({first}[row + 1] - {first}[row]):",
        "            for j in T.Parallel(block_N):",
        f"                c[j] += {source}[{by}[{first}[row] + n], {column}]",
        "        for j in T.Parallel(block_N):",
        *(f"            {line}" for line in lines),
        f"            out[row, {column}] = {value}",
    ]
    knobs = "block_M=32, block_N=256, threads=128"
    return program(group, name, names, core.shape, knobs, indented(body, 2), SPACE)
