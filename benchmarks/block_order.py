"""When the last block of a causal attention ends, by the order in which blocks begin; counted.

    python benchmarks/block_order.py [--targets a100 h100]

A block takes the steps of its loop and 1.5 more; a multiprocessor takes the next block of the order
when it is free (one block each). Printed: the end of the last one over the mean of all
multiprocessors, head by head as the program's grid has it (short blocks first), and in the order
that ``tilecore.passes.panels`` gives the library's program; of blocks that stay
(``tilecore.passes.persistent``), which go through tiles of an order of their own, what the busiest
has to do. Nothing runs: memory, clocks and what blocks share are not in these figures.
"""

from __future__ import annotations

import argparse

import numpy as np

from tilecore.gpu_target import GpuTarget
from tilecore.ir.nodes import KernelLaunch, PrimFunc
from tilecore.ir.visitor import walk
from tilecore.kernels.attention import ATTENTION
from tilecore.passes import panels, persistent
from tilecore.target import parse_gpu_target

SHAPES = ((40, 1024), (32, 2048), (40, 2048), (16, 4096), (32, 4096), (32, 8192))  # heads, rows
DIM = 128


def attention(heads: int, rows: int) -> tuple[PrimFunc, int]:
    """Return the library's program, of float16 and as many heads of keys, and a block's rows."""
    definition = ATTENTION.on("cuda")
    problem = definition.parse_problem({
        "batch": 1, "heads": heads, "kv_heads": heads, "seq_q": rows, "seq_kv": rows, "dim": DIM,
        "dtype": "float16", "causal": True,
    })  # fmt: skip
    knobs = definition.default_config("cuda")
    return definition.program(problem, dict(knobs)), int(knobs["block_M"])


def launch_of(func: PrimFunc) -> KernelLaunch:
    """Return the only launch of a program."""
    (launch,) = (s for s in walk(func.body) if isinstance(s, KernelLaunch))
    return launch


def figures(target: GpuTarget, heads: int, rows: int) -> str:
    """Return a row of the table."""
    func, block = attention(heads, rows)
    grid = (-(-rows // block), heads, 1)
    costs = np.arange(1, grid[0] + 1) + persistent.STEPS_OF_TILE
    workers = target.multiprocessors
    mean = costs.sum() * heads / workers
    section = max(1, panels.rows_of_section(launch_of(func), target))
    before, after = (
        persistent.end_of_last(persistent.sequence(of, grid, together), workers) / mean
        for of, together in ((costs, 0), (costs[::-1], section))
    )
    stays = ""
    if target.has_wgmma:
        order = persistent.order_of(launch_of(panels.run(func, target)), target)
        most = order and persistent.busiest(costs[::-1], grid, workers, order) / mean
        stays = "no" if most is None else f"{most:.3f}"
    cells = (f"{heads} x {rows}", section, f"{before:.3f}", f"{after:.3f}", stays)
    return f"| {target.device} | {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", nargs="+", default=["a100", "h100"])
    print(
        "| device | heads x rows | heads together | head by head | long first | blocks that stay |"
    )
    print("|---|---|---|---|---|---|")
    for name in parser.parse_args().targets:
        for heads, rows in SHAPES:
            print(figures(parse_gpu_target(name), heads, rows))


if __name__ == "__main__":
    main()
