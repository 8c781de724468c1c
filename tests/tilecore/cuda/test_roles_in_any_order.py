"""Roles of warps in random order: beside statements of all threads, waiting for each other or not.

Wherever tiles lie and threads meet: the emulator finds races and deadlocks, results are those of
the interpreter.
"""

from __future__ import annotations

import random
import runpy
from textwrap import indent

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tilecore.emulator import LATE, Schedule
from tilecore.interpreter import run as interpret

ROWS, COLUMNS, SIDES = 64, 32, ("a", "b", "c")  # of tiles; of two roles, of all threads
PROGRAM = """
@T.prim_func
def main(
    X: T.Tensor((3, {rows}, {columns}), "float16"),
    W: T.Tensor((3, {columns}, {columns}), "float16"),
    Y: T.Tensor((3, 3, {rows}, {columns}), "float32"),
):
    with T.Kernel(1, threads={threads}):
        tx = T.get_thread_binding()
{barriers}
{tiles}
{body}
{stores}
"""
TILES = """
{s}h = T.alloc_shared(({rows}, {columns}), "float16")
{s}w = T.alloc_shared(({columns}, {columns}), "float16")
{s}t = T.alloc_shared(({rows}, {columns}), "float32")
{s}x = T.alloc_fragment(({rows}, {columns}), "float32")
{s}v = T.alloc_fragment(({rows},), "float32")
T.copy(X[{n}, :, :], {s}h)
T.copy(W[{n}, :, :], {s}w)
T.fill({s}t, {n})
T.fill({s}x, 1)
T.fill({s}v, 0)
"""
STORES = """
T.copy({s}x, Y[{n}, 0, :, :])
T.copy({s}t, Y[{n}, 1, :, :])
for i, j in T.Parallel({rows}, {columns}):
    Y[{n}, 2, i, j] = {s}h[i, j] + {s}v[i]
"""


class Roles:
    """Draws statements whose tiles hold small whole numbers."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"roles {seed}")
        self.sizes = [self.rng.choice([64, 128]) for _ in range(2)]
        self.barriers: list[str] = []
        self.count = 0

    def statement(self, side: str) -> list[str]:
        """Return a statement of the tiles of a side."""
        one, each = self.rng.choice, f"for i, j in T.Parallel({ROWS}, {COLUMNS}):"
        small = f"T.max(T.min({side}{one('xt')}[i, j], 2), -2)"
        self.count += 1
        spare = f"p{self.count}"
        return one([
            [f"{one(['T.gemm', 'T.wgmma_gemm'])}({side}h, {side}w, {side}x, clear_accum=True)"],
            [f"{spare} = T.alloc_shared(({COLUMNS}, {COLUMNS}), 'float16')",
             f"for k in T.Pipelined(3, num_stages={one([1, 2])}):",
             f"    T.copy(W[k, :, :], {spare})",
             f"    T.gemm({side}h, {spare}, {side}x, clear_accum=k == 0)"],
            [f"T.reduce_max({side}{one('xt')}, {side}v, dim=1)"],
            [each, f"    {side}h[i, j] = {small}"],
            [each, f"    {side}t[i, j] = {side}h[{ROWS - 1} - i, j] - i % 2"],
            [f"T.copy({side}x, {side}t)"],
            [f"{spare} = T.alloc_shared(({ROWS}, {COLUMNS}), 'float32')",
             f"T.copy({side}t, {spare})", f"T.copy({spare}, {side}x)"],
        ])  # fmt: skip

    def roles(self) -> list[str]:
        """Return the branches of both roles, or of one; one of two may wait for the other."""
        sides = self.rng.choice([[0, 1], [1, 0], [0, 1], [1, 0], [0], [1]])
        bodies = {s: [self.statement(SIDES[s]) for _ in range(self.rng.choice([1, 2]))]
                  for s in sides}  # fmt: skip
        if len(sides) == 2 and self.rng.random() < 0.5:
            first, name = self.rng.choice(sides), f"bar{len(self.barriers)}"
            self.barriers.append(f"{name} = T.alloc_barrier([{self.sizes[first]}])")
            for side, line in ((first, f"T.mbarrier_arrive({name})"),
                               (1 - first, f"T.mbarrier_wait_parity({name}, 0)")):  # fmt: skip
                bodies[side].insert(self.rng.randrange(3), [line])
        conds = (f"if tx < {self.sizes[0]}:", f"if tx >= {self.sizes[0]}:")
        lines: list[str] = []
        for side in sides:
            lines += [conds[side], *(f"    {line}" for s in bodies[side] for line in s)]
        return lines

    def source(self) -> str:
        """Return a program."""
        sizes = {"rows": ROWS, "columns": COLUMNS}
        body = []
        for _ in range(self.rng.choice([2, 3, 4])):
            body += self.roles() if self.rng.random() < 0.7 else self.statement("c")
        parts = {
            "barriers": "\n".join(self.barriers),
            "tiles": "".join(TILES.format(s=s, n=n, **sizes) for n, s in enumerate(SIDES)),
            "body": "\n".join(body),
            "stores": "".join(STORES.format(s=s, n=n, **sizes) for n, s in enumerate(SIDES)),
        }
        inside = {name: indent(text, " " * 8) for name, text in parts.items()}
        return PROGRAM.format(threads=sum(self.sizes), **sizes, **inside)


def check(seed: int, target: str, path) -> None:
    path.write_text(Roles(seed).source())
    func = runpy.run_path(str(path), {"T": T})["main"]
    rng = np.random.default_rng(seed)
    x, w = (rng.integers(-1, 2, (3, n, COLUMNS)).astype(np.float16) for n in (ROWS, COLUMNS))
    wanted, found = (np.zeros((3, 3, ROWS, COLUMNS), np.float32) for _ in range(2))
    interpret(func, x, w, wanted)
    run_emulated(func, target, [x, w, found], (LATE, Schedule("random", seed + 1)))
    np.testing.assert_array_equal(found, wanted, err_msg=path.read_text())


@pytest.mark.parametrize(("seed", "target"), [(4, "h100"), (5, "b200"), (12, "sm_80")])
def test_roles_whose_tiles_shared_memory(seed, target, tmp_path):
    """These had races: tiles of two roles lay in one place."""
    check(seed, target, tmp_path / "program.py")


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(60))
def test_more(seed, tmp_path):
    check(seed, ["sm_80", "h100", "b200"][seed % 3], tmp_path / "program.py")
