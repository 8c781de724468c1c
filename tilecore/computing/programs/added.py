"""Programs of rows that are added up where integers say (``index_add``): gradients of embeddings.

A block adds up the rows that go to a row of the result, in float32, and writes that row once: the
result is never filled with zeros, no two blocks meet in one, and the order of additions is that of
the rows. What is added up may be computed on the way: messages along the edges of a graph are.
"""

from __future__ import annotations

from tilecore.computing.places import Places
from tilecore.computing.planning.fusion import Group
from tilecore.computing.programs.columns import Elements
from tilecore.computing.programs.text import Names, Program, SplitRow, indented, program

ROWS, COLUMNS = (8, 16, 32, 64, 128, 256), (64, 128, 256, 512, 1024)
FEW_COLUMNS, PARTS = (16, 32, 64), (1, 2, 4, 8, 16)


def added(group: Group, name: str, places: Places) -> Program:
    """Return the program of a group around such a sum."""
    core = group.core
    assert core is not None
    rows, order, starts = core.producers
    (count, width), columns = core.shape, rows.shape[-1]
    names = Names(group, places)
    by, first = (names.read(x, places.read(x)) for x in (order, starts))
    parts = width // columns  # of a row, which several rows of what is computed make
    added_row, part = (SplitRow("r", "part", parts), "part, ") if parts > 1 else ("r", "")
    before = Elements(group, names, rows.shape, added_row, "column")
    value = before.of(rows)
    column = f"part * {columns} + column" if part else "column"
    behind = Elements(group, names, group.root.shape, "row", column)
    behind.loop.known[core] = "c[k, j]" if part else "c[j]"
    result = behind.of(group.root)
    blocks = [f"T.ceildiv({columns}, block_N)", f"T.ceildiv({count}, block_M)"]
    block, index, at = "block_N,", "j", "column = bx * block_N + j"
    knobs, space = "block_M=32, block_N=256, threads=128", {"block_M": ROWS, "block_N": COLUMNS}
    if columns <= FEW_COLUMNS[-1]:
        space["block_N"] = (next(n for n in FEW_COLUMNS if n >= columns),)
    if part:
        blocks.append(f"T.ceildiv({parts}, block_P)")
        block, index = "block_P, block_N", "k, j"
        at = "part, column = bz * block_P + k, bx * block_N + j"
        knobs = f"{knobs}, block_P=4"
        space["block_P"] = tuple(n for n in PARTS if n < 2 * parts)
    body = [
        f"with T.Kernel({', '.join(blocks)}, threads=threads)"
        f" as {'(bx, by, bz)' if part else '(bx, by)'}:",
        f"    c = T.alloc_fragment(({block}), {names.wide!r})",
        f"    for i in T.serial(T.min(block_M, {count} - by * block_M)):",
        "        row = by * block_M + i",
        "        T.clear(c)",
        f"        for n in T.serial({first}[row + 1] - {first}[row]):",
        f"            r = {by}[{first}[row] + n]",
        f"            for {index} in T.Parallel({block}):",
        f"                {at}",
        *(f"                {line}" for line in before.loop.lines),
        f"                c[{index}] += {value}",
        f"        for {index} in T.Parallel({block}):",
        f"            {at}",
        *(f"            {line}" for line in behind.loop.lines),
        f"            out[row, {part}column] = {result}",
    ]
    output = (count, parts, columns) if part else (count, width)
    return program(group, name, names, output, knobs, indented(body, 2), space)
