"""Statements in random order: products, reductions and branches; loops of threads over neighbours.

Whatever stands beside what, threads meet where they must: the emulator finds races, and results
are those of the interpreter, or of NumPy where all threads take one statement after the other.
"""

from __future__ import annotations

import random
import runpy
from textwrap import indent
from types import SimpleNamespace

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tilecore.emulator import ALL_SCHEDULES
from tilecore.interpreter import run as interpret

OF_TILES = """
@T.prim_func
def main(
    A: T.Tensor(({turns} * {rows}, 64), "float16"), B: T.Tensor(({turns} * 64, 64), "float16"),
    C: T.Tensor((3, {rows}, 64), "float32"), D: T.Tensor((2, {rows}), "float32"),
    E: T.Tensor((2, 64), "float32"),
):
    with T.Kernel(1, threads={threads}):
        a = T.alloc_shared(({rows}, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        c = T.alloc_shared(({rows}, 64), "float16")
        h = T.alloc_fragment(({rows}, 64), "float16")
        x, y, z = (T.alloc_fragment(({rows}, 64), "float32") for _ in range(3))
        u, v = (T.alloc_fragment(({rows},), "float32") for _ in range(2))
        s, t = (T.alloc_fragment((64,), "float32") for _ in range(2))
        for tile in (c, h, x, y, z, u, v, s, t):
            T.clear(tile)
        for k in {loop}:
            T.copy(A[k * {rows}, 0], a)
            T.copy(B[k * 64, 0], b)
{body}
        for n, tile in enumerate((x, y, z)):
            T.copy(tile, C[n, :, :])
        for n, (tile, other) in enumerate(((u, s), (v, t))):
            T.copy(tile, D[n, :])
            T.copy(other, E[n, :])
"""
OF_THREADS = """
@T.prim_func
def main(A: T.Tensor({shape}, "float32"), B: T.Tensor({shape}, "float32")):
    with T.Kernel(1, threads={threads}):
        rows = T.alloc_shared({shape}, "float32")
        columns = T.alloc_shared(({width}, {threads}), "float32")
        x = T.alloc_local(({width},), "float32")
        tx = T.get_thread_binding()
        for j in T.vectorized({width}):
            x[j] = A[tx, j]
            rows[tx, j] = 1
            columns[j, tx] = 2
        for r in T.serial({turns}):
{body}
        for j in T.vectorized({width}):
            B[tx, j] = x[j]
"""


class Tiles:
    """Draws statements of tiles whose elements are small numbers: results are exact."""

    def __init__(self, rng: random.Random, rows: int, turns: int) -> None:
        self.rng, self.rows, self.turns = rng, rows, turns

    def block(self, count: int, depth: int = 0) -> list[str]:
        return [line for _ in range(count) for line in self.statement(depth)]

    def statement(self, depth: int) -> list[str]:
        one = self.rng.choice
        f, g, each = one("xyz"), one("xyz"), f"for i, j in T.Parallel({self.rows}, 64):"
        small = f"T.max(T.min({f}[i, j], 2), -2)"
        less = f"{f}[i, j] - {one(['u[i]', 's[j]', g + '[i, j]'])}"
        product = one(["T.gemm", "T.gemm", "T.wgmma_gemm"])
        kinds = [
            [f"{product}({one(['a', 'c', 'h'])}, b, {f}, clear_accum=True)"],
            [f"T.reduce_{one(['max', 'sum'])}({f}, {one('uv')}, dim=1)"],
            [f"T.reduce_{one(['max', 'sum'])}({f}, {one('st')}, dim=0)"],
            [each, f"    {one(['c', 'h'])}[i, j] = {small}"],
            [each, f"    {f}[i, j] = T.max(T.min({less}, 3), -3)"],
            ["for i, j in T.Parallel(64, 64):", "    b[i, j] = -b[i, j]"],
            [f"T.copy(A[k * {self.rows}, 0], {one(['c', 'h'])})"],
            [f"T.fill({f}, {one([0, 1])})"],
        ]
        if depth < 2 and one([True, False, False]):
            condition = one(["k % 2 == 0", "k > 0", f"k == {self.turns - 1}", "A[k, 0] > 0"])
            lines = [f"if {condition}:", *self.inside(depth)]
            return [*lines, "else:", *self.inside(depth)] if one([True, False]) else lines
        return one(kinds)

    def inside(self, depth: int) -> list[str]:
        return [f"    {line}" for line in self.block(self.rng.choice([1, 2]), depth + 1)]


# Programs that were found this way, as small as they can be: (threads, turns, loop, statements).
SERIAL, PIPELINED = "T.serial({})", "T.Pipelined({}, num_stages=2)"
FOUND = {
    "a branch that alone multiplies frees its tiles": (128, 6, PIPELINED, """
if k % 3 != 1:
    T.wgmma_gemm(a, b, x, clear_accum=True)"""),
    "only the other branch waits for a product": (128, 2, PIPELINED, """
for i, j in T.Parallel(64, 64):
    c[i, j] = T.max(T.min(x[i, j], 2), -2)
if k % 2 == 0:
    T.wgmma_gemm(a, b, x, clear_accum=True)
else:
    T.fill(x, 1)"""),
    "tiles are freed behind a product that a branch waits for": (128, 6, PIPELINED, """
T.wgmma_gemm(a, b, x, clear_accum=True)
if k % 3 == 1:
    T.fill(x, 1)
    T.gemm(h, c, y, clear_accum=True)"""),
    "a tile lies where a product still reads another one": (256, 2, SERIAL, """
if A[k, 0] > 0:
    T.gemm(h, b, x, clear_accum=True)
T.wgmma_gemm(h, b, z, clear_accum=True)"""),
    "a branch that is never taken is the first to use shared memory": (128, 2, SERIAL, """
if k % 2 == 0:
    if k > 0:
        T.reduce_sum(y, s, dim=0)
T.reduce_max(z, t, dim=0)"""),
    "of two branches all threads take the same": (128, 1, PIPELINED, """
if A[k, 0] > 0:
    T.gemm(c, b, x, clear_accum=True)
else:
    for i, j in T.Parallel(64, 64):
        c[i, j] = T.max(T.min(z[i, j], 2), -2)"""),
    "a warp meets behind a product that it has waited for": (256, 3, PIPELINED, """
if k > 0:
    T.gemm(a, b, z, clear_accum=True)
    T.reduce_sum(y, t, dim=0)
else:
    for i, j in T.Parallel(64, 64):
        b[i, j] = -b[i, j]
for i, j in T.Parallel(128, 64):
    z[i, j] = T.max(T.min(z[i, j] - x[i, j], 3), -3)"""),
}  # fmt: skip


def function(source: str, lines: list[str], path, **values: object):
    path.write_text(source.format(body=indent("\n".join(lines), " " * 12), **values))
    return runpy.run_path(str(path), {"T": T})["main"]


def check_tiles(seed: int, target: str, path) -> None:
    rng = random.Random(f"tiles {seed}")
    threads, turns = rng.choice([128, 256]), rng.choice([1, 2, 3])
    loop = rng.choice([SERIAL, PIPELINED])
    lines = Tiles(rng, threads // 2, turns).block(rng.choice([3, 5, 8]))
    check_lines(lines, threads, turns, loop, seed, target, path)


def check_lines(
    lines: list[str], threads: int, turns: int, loop: str, seed: int, target: str, path
) -> None:
    rows = threads // 2
    values = {"rows": rows, "turns": turns, "threads": threads, "loop": loop.format(turns)}
    func = function(OF_TILES, lines, path, **values)
    numbers = np.random.default_rng(seed)
    a, b = (numbers.integers(-1, 2, (turns * n, 64)).astype(np.float16) for n in (rows, 64))
    shapes = ((3, rows, 64), (2, rows), (2, 64))
    wanted, found = ([np.zeros(s, np.float32) for s in shapes] for _ in range(2))
    interpret(func, a, b, *wanted)
    run_emulated(func, target, [a, b, *found], ALL_SCHEDULES)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, want, err_msg="\n".join(lines))


def check_threads(seed: int, target: str, path) -> None:
    rng = random.Random(f"threads {seed}")
    threads, width, turns = rng.choice([32, 64, 128]), rng.choice([2, 4, 8]), rng.choice([1, 2])
    lines: list[str] = []
    for _ in range(rng.choice([1, 2, 3])):
        who = ["tx", f"({threads - 1} - tx)", "(tx ^ 1)", f"(tx % 4 * {threads // 4} + tx // 4)"]
        lines.append(f"for j in T.{rng.choice(['vectorized', 'serial', 'unroll'])}({width}):")
        for _ in range(rng.choice([1, 2])):
            o, there = rng.choice(who), rng.choice(["rows[{}, j]", "columns[j, {}]"])
            places = [there.format(o), "x[j]"]
            rng.shuffle(places)
            lines.append(f"    {places[0]} = {places[1]} + 1")
    values = {"threads": threads, "width": width, "turns": turns, "shape": (threads, width)}
    func = function(OF_THREADS, lines, path, **values)
    a = np.random.default_rng(seed).integers(-9, 9, (threads, width)).astype(np.float32)
    b = np.zeros_like(a)
    run_emulated(func, target, [a, b], ALL_SCHEDULES)
    tiles = {"rows": np.ones_like(a), "columns": np.full_like(a.T, 2), "x": a.copy()}
    loops = SimpleNamespace(vectorized=range, serial=range, unroll=range)
    code = "\n".join(lines).replace("x[j]", "x[tx, j]")
    for _ in range(turns):  # a statement of all threads at a time
        exec(code, {"T": loops, "tx": np.arange(threads), **tiles})
    np.testing.assert_array_equal(b, tiles["x"], err_msg="\n".join(lines))


@pytest.mark.covering("check target")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("check", [check_tiles, check_threads])
@pytest.mark.parametrize("target", ["sm_80", "h100", "b200", "gfx942"])
def test_some(seed, check, target, tmp_path):
    check(seed, target, tmp_path / "program.py")


@pytest.mark.few(6)
@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("target", ["sm_80", "h100", "b200"])
def test_what_was_found(name, target, tmp_path):
    threads, turns, loop, text = FOUND[name]
    check_lines(text.split("\n"), threads, turns, loop, 0, target, tmp_path / "program.py")


@pytest.mark.exhaustive
@pytest.mark.parametrize("check", [check_tiles, check_threads])
@pytest.mark.parametrize("seed", range(4, 40))
def test_more(seed, check, tmp_path):
    check(seed, "h100", tmp_path / "program.py")
