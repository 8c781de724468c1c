"""Rows of tiles that nothing reads are left out, and no others."""

import numpy as np
import pytest

import tilecore.language as T
from tilecore import runtime
from tilecore.compiler import compile
from tilecore.ir.expr import int_value
from tilecore.ir.nodes import Alloc, Parallel
from tilecore.ir.visitor import walk
from tilecore.passes.pipeline import run_passes

ROWS, LIVE, N, K = 16, 3, 24, 40


def shapes(func):
    """Return the shapes of the tiles after the passes, by name."""
    tiles = [s.buffer for s in walk(run_passes(func).body) if isinstance(s, Alloc)]
    return {tile.name: tile.static_shape for tile in tiles}


def loops(func):
    """Return the extents of the nests after the passes."""
    nests = [s for s in walk(run_passes(func).body) if isinstance(s, Parallel)]
    return [tuple(int_value(e) for e in nest.extents) for nest in nests]


def rows(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


# --- heads that share their keys, as TileLang's examples pad them ---------------------------------


def decoding(heads, live, rows=64, dim=32, keys=100, block=32, dtype="float32"):
    """Attention of one token: ``live`` heads of a group are the first of ``rows`` of each tile."""

    @T.prim_func
    def main(
        Q: T.Tensor((heads, dim), dtype), K: T.Tensor((keys, heads // live, dim), dtype),
        V: T.Tensor((keys, heads // live, dim), dtype), Out: T.Tensor((heads, dim), dtype),
        L: T.Tensor((heads,), "float32"),
    ):  # fmt: skip
        with T.Kernel(heads // live, threads=128) as group:
            q = T.alloc_shared((rows, dim), dtype)
            k = T.alloc_shared((block, dim), dtype)
            v = T.alloc_shared((block, dim), dtype)
            out = T.alloc_shared((live, dim), dtype)
            s = T.alloc_fragment((rows, block), "float32")
            weights = T.alloc_fragment((rows, block), dtype)
            o = T.alloc_fragment((rows, dim), "float32")
            top = T.alloc_fragment((rows,), "float32")
            before = T.alloc_fragment((rows,), "float32")
            scale = T.alloc_fragment((rows,), "float32")
            part = T.alloc_fragment((rows,), "float32")
            total = T.alloc_fragment((rows,), "float32")
            T.annotate_layout({q: T.Layout((rows, dim), lambda i, j: (i, j))})
            T.copy(Q[group * live : group * live + rows, :], q)
            T.clear(o)
            T.clear(total)
            T.fill(top, -T.infinity("float32"))
            for step in T.Pipelined(T.ceildiv(keys, block), num_stages=2):
                T.copy(K[step * block : (step + 1) * block, group, :], k)
                for i, j in T.Parallel(rows, block):
                    s[i, j] = T.if_then_else(step * block + j < keys, 0, -T.infinity("float32"))
                T.gemm(q, k, s, transpose_B=True)
                T.copy(top, before)
                T.reduce_max(s, top, dim=1, clear=False)
                for i in T.Parallel(rows):
                    scale[i] = T.exp2(before[i] - top[i])
                for i, j in T.Parallel(rows, block):
                    s[i, j] = T.exp2(s[i, j] - top[i])
                T.reduce_sum(s, part, dim=1)
                for i in T.Parallel(rows):
                    total[i] = total[i] * scale[i] + part[i]
                T.copy(s, weights)
                for i, j in T.Parallel(rows, dim):
                    o[i, j] *= scale[i]
                T.copy(V[step * block : (step + 1) * block, group, :], v)
                T.gemm(weights, v, o)
            for i, j in T.Parallel(rows, dim):
                o[i, j] /= total[i]
            for i in T.Parallel(rows):
                if i < live:
                    L[group * live + i] = T.log2(total[i]) + top[i]
            T.copy(o[:live, :], out)
            T.copy(out, Out[group * live : (group + 1) * live, :])

    return main


def test_heads_that_fill_a_part_of_their_tiles(run_both) -> None:
    func = decoding(8, 4)
    found = shapes(func)
    assert {name: size[0] for name, size in found.items()} == {
        "k": 32, "v": 32, **dict.fromkeys(["q", "s", "weights", "o", "out", "top", "before"], 4),
        **dict.fromkeys(["scale", "part", "total"], 4),
    }  # fmt: skip
    q, k, v = rows(8, 32), rows(100, 2, 32, seed=1), rows(100, 2, 32, seed=2)
    grouped = q.reshape(2, 4, 32).astype(np.float64)
    s = np.einsum("ghd,kgd->ghk", grouped, k) * np.log(2)
    weights = np.exp(s - s.max(-1, keepdims=True))
    out = np.einsum("ghk,kgd->ghd", weights / weights.sum(-1, keepdims=True), v)
    logs = np.log2(np.exp(s).sum(-1))
    run_both(func, [q, k, v], [np.zeros((8, 32), np.float32), np.zeros(8, np.float32)],
             [out.reshape(8, 32), logs.reshape(8)], rtol=1e-4)  # fmt: skip


# --- what is left out -----------------------------------------------------------------------------


def of_rows(body, live=LIVE, out=None):
    """Return a program whose ``body`` makes z from x, both of ROWS rows, and reads z into Y."""

    @T.prim_func
    def main(X: T.Tensor((ROWS, N), "float32"), Y: T.Tensor(out or (live, N), "float32")):
        with T.Kernel(1, threads=64) as _:
            x = T.alloc_shared((ROWS, N), "float32")
            z = T.alloc_fragment((ROWS, N), "float32")
            r = T.alloc_fragment((ROWS,), "float32")
            T.copy(X, x)
            body(x, z, r, Y)

    return main


@T.macro
def to_the_end(x, z, r, Y):
    """The tensor has fewer rows than the tile."""
    for i, j in T.Parallel(ROWS, N):
        z[i, j] = x[i, j] * 2
    T.copy(z, Y[0, 0])


@T.macro
def by_rows(x, z, r, Y):
    T.reduce_sum(x, r, dim=1)
    for i, j in T.Parallel(ROWS, N):
        z[i, j] = x[i, j] - r[i]
    T.copy(z[0:LIVE, :], Y)


@T.macro
def guarded(x, z, r, Y):
    T.copy(x, z)
    for i, j in T.Parallel(ROWS, N):
        if j >= 0 and i < LIVE:
            Y[i, j] = z[i, j] + i


@T.macro
def otherwise(x, z, r, Y):
    T.copy(x, z)
    for i, j in T.Parallel(ROWS, N):
        if not (i < LIVE):
            z[i, j] = 0
        else:
            Y[i, j] = z[i, j]


@T.macro
def beyond_the_end(x, z, r, Y):
    """Stores beyond a tensor's end are skipped."""
    T.copy(x, z)
    for i in T.Parallel(ROWS):
        for j in T.Parallel(N):
            Y[i, j] = z[i, j] * i


@T.macro
def of_single_rows(x, z, r, Y):
    T.copy(x, z)
    for j in T.Parallel(N):
        Y[0, j] = z[0, j]
        Y[1, j] = z[2, j]
        Y[2, j] = z[1, j]


@T.macro
def in_steps(x, z, r, Y):
    T.clear(z)
    for k in T.serial(4):
        for i, j in T.Parallel(ROWS, N):
            z[i, j] += x[i, j] * k
    T.cumsum(z, z, dim=1)
    T.copy(z[0:LIVE, :], Y)


BODIES = {
    to_the_end: lambda x: x * 2,
    by_rows: lambda x: x - x.sum(1, keepdims=True),
    guarded: lambda x: x + np.arange(ROWS)[:, None],
    otherwise: lambda x: x,
    beyond_the_end: lambda x: x * np.arange(ROWS)[:, None],
    of_single_rows: lambda x: x[[0, 2, 1]],
    in_steps: lambda x: np.cumsum(x * 6, axis=1),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("body", BODIES, ids=lambda b: b.__name__)
def test_rows_that_nothing_reads(run_both, body) -> None:
    func = of_rows(body)
    found = shapes(func)
    assert found["x"] == found["z"] == (LIVE, N)
    assert all(extents[0] in (LIVE, N) for extents in loops(func))
    x = rows(ROWS, N)
    run_both(func, [x], [np.zeros((LIVE, N), np.float32)], [BODIES[body](x)[:LIVE]])


def test_products_of_one_row(run_both) -> None:
    """A vector is the first row of a tile that tensor cores could multiply."""

    @T.prim_func
    def main(X: T.Tensor((K,), "float32"), W: T.Tensor((K, 50), "float32"),
             Y: T.Tensor((50,), "float32")):  # fmt: skip
        with T.Kernel(T.ceildiv(50, N), threads=64) as block:
            x = T.alloc_shared((ROWS, K), "float32")
            w = T.alloc_shared((8, N), "float32")
            z = T.alloc_fragment((ROWS, N), "float32")
            out = T.alloc_shared((ROWS, N), "float32")
            for k in T.Parallel(K):
                x[0, k] = X[k]
            T.clear(z)
            for step in T.Pipelined(K // 8, num_stages=2):
                T.copy(W[step * 8, block * N], w)
                T.gemm(x[:, step * 8 : step * 8 + 8], w, z)
            T.copy(z, out)
            for j in T.Parallel(N):
                Y[block * N + j] = out[0, j]

    assert shapes(main) == {"x": (1, K), "w": (8, N), "z": (1, N), "out": (1, N)}
    x, w = rows(K), rows(K, 50, seed=1)
    run_both(main, [x, w], [np.zeros(50, np.float32)], [x @ w])


@pytest.mark.few(1)
@pytest.mark.parametrize("transpose", [False, True])
def test_rows_of_a_transposed_operand_stay(run_both, transpose) -> None:
    """Lanes run along the last axis of a tile, which is not cut."""

    @T.prim_func
    def main(A: T.Tensor((K, ROWS) if transpose else (ROWS, K), "float32"),
             B: T.Tensor((N, K), "float32"), C: T.Tensor((LIVE, N), "float32")):  # fmt: skip
        with T.Kernel(1, threads=64) as _:
            a = T.alloc_shared((K, ROWS) if transpose else (ROWS, K), "float32")
            b = T.alloc_shared((N, K), "float32")
            c = T.alloc_fragment((ROWS, N), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, transpose_A=transpose, transpose_B=True, clear_accum=True)
            T.copy(c[0:LIVE, :], C)

    assert shapes(main)["c"] == ((ROWS, N) if transpose else (LIVE, N))
    a, b = rows(K, ROWS) if transpose else rows(ROWS, K), rows(N, K, seed=1)
    run_both(main, [a, b], [np.zeros((LIVE, N), np.float32)],
             [((a.T if transpose else a) @ b.T)[:LIVE]])  # fmt: skip


# --- what stays -----------------------------------------------------------------------------------


@T.macro
def neighbours(x, z, r, Y):
    for i, j in T.Parallel(ROWS, N):
        z[i, j] = x[(i + 5) % ROWS, j]
    T.copy(z[0:LIVE, :], Y)


@T.macro
def columns(x, z, r, Y):
    c = T.alloc_fragment((N,), "float32")
    T.reduce_sum(x, c, dim=0)
    for i, j in T.Parallel(ROWS, N):
        z[i, j] = c[j]
    T.copy(z[0:LIVE, :], Y)


@T.macro
def down(x, z, r, Y):
    T.cumsum(x, z, dim=0, reverse=True)
    T.copy(z[0:LIVE, :], Y)


@T.macro
def looked_up(x, z, r, Y):
    for i in T.Parallel(LIVE):
        r[i] = T.abs(x[i, 0]) * 8
    for i, j in T.Parallel(LIVE, N):
        Y[i, j] = x[T.min(T.cast(r[i], "int32"), ROWS - 1), j]


@T.macro
def from_the_end(x, z, r, Y):
    T.copy(x[ROWS - LIVE : ROWS, :], z[0:LIVE, :])
    T.copy(z[0:LIVE, :], Y)


@T.macro
def last_ones(x, z, r, Y):
    T.copy(x, z)
    for i, j in T.Parallel(ROWS, N):
        if i < ROWS - LIVE:
            z[i, j] = 0
        else:
            Y[i - (ROWS - LIVE), j] = z[i, j]


@T.macro
def by_a_view(x, z, r, Y):
    view = T.reshape(x, (ROWS * N,))
    for i, j in T.Parallel(LIVE, N):
        Y[i, j] = view[ROWS * N - 1 - i * N - j] + x[i, j]


@T.macro
def set_apart(x, z, r, Y):
    """What is set by a part stays, read or not."""
    T.copy(x[0:2, :], x[ROWS - 2 : ROWS, :])
    T.copy(x[0:LIVE, :], Y)


@T.macro
def added_up(x, z, r, Y):
    T.clear(Y)
    for i, j in T.Parallel(ROWS, N):
        T.atomic_add(Y[i % LIVE, j], x[i, j])


@T.macro
def turned(x, z, r, Y):
    for i, j in T.Parallel(N, ROWS):
        if i < LIVE:
            Y[i, j] = x[j, i]


@T.macro
def one_after_the_other(x, z, r, Y):
    T.clear(r)
    for i in T.serial(ROWS):
        for j in T.serial(N):
            r[0] += x[i, j]
    for i, j in T.Parallel(LIVE, N):
        Y[i, j] = r[0]


STAY = {
    neighbours: lambda x: x[5:][:LIVE],
    columns: lambda x: np.broadcast_to(x.sum(0), (LIVE, N)),
    down: lambda x: np.cumsum(x[::-1], axis=0)[::-1][:LIVE],
    looked_up: lambda x: x[np.minimum((np.abs(x[:LIVE, 0]) * 8).astype(int), ROWS - 1)],
    from_the_end: lambda x: x[-LIVE:],
    last_ones: lambda x: x[-LIVE:],
    by_a_view: lambda x: (x.reshape(-1)[::-1].reshape(ROWS, N) + x)[:LIVE],
    set_apart: lambda x: x[:LIVE],
    added_up: lambda x: np.stack([x[i::LIVE].sum(0) for i in range(LIVE)]),
    turned: lambda x: np.pad(x.T[:LIVE], ((0, 0), (0, N - ROWS))),
    one_after_the_other: lambda x: np.full((LIVE, N), x.sum()),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("body", STAY, ids=lambda b: b.__name__)
def test_rows_that_something_reads(run_both, body) -> None:
    func = of_rows(body)
    assert shapes(func)["x"] == (ROWS, N)
    x = rows(ROWS, N)
    run_both(func, [x], [np.zeros((LIVE, N), np.float32)], [STAY[body](x)], atol=1e-4)


def test_what_a_row_says_is_said(artifacts, capfd) -> None:
    """A line that is printed is no row of a tile: all iterations run."""

    @T.macro
    def told(x, z, r, Y):
        T.copy(x, z)
        for i in T.Parallel(ROWS):
            if z[i, 0] > 0:
                T.print(z[i, 0])
        T.copy(z[0:LIVE, :], Y)

    func = of_rows(told)
    assert shapes(func)["z"] == (ROWS, N)
    x = rows(ROWS, N)
    runtime.load(compile(func, store=artifacts))(x, np.zeros((LIVE, N), np.float32))
    assert len(capfd.readouterr().out.splitlines()) == (x[:, 0] > 0).sum() > LIVE


def test_what_a_row_asserts_is_asserted(artifacts) -> None:
    @T.macro
    def asserted(x, z, r, Y):
        T.copy(x, z)
        for i in T.Parallel(ROWS):
            T.device_assert(z[i, 0] > 0, "a row is not above 0")
        T.copy(z[0:LIVE, :], Y)

    kernel = runtime.load(compile(of_rows(asserted), store=artifacts))
    x, y = np.ones((ROWS, N), np.float32), np.zeros((LIVE, N), np.float32)
    kernel(x, y)
    np.testing.assert_array_equal(y, 1)
    x[ROWS - 1] = -1
    with pytest.raises(Exception, match="a row is not above 0"):
        kernel(x, y)


def test_rows_of_a_dynamic_tensor_stay() -> None:
    m = T.dynamic("m")

    @T.prim_func
    def main(X: T.Tensor((m, N), "float32"), Y: T.Tensor((m, N), "float32")):
        with T.Kernel(T.ceildiv(m, ROWS), threads=64) as block:
            x = T.alloc_shared((ROWS, N), "float32")
            T.copy(X[block * ROWS, 0], x)
            for i, j in T.Parallel(ROWS, N):
                x[i, j] = x[i, j] * 2
            T.copy(x, Y[block * ROWS, 0])

    assert all(extents == (ROWS, N) for extents in loops(main))
    assert (ROWS, N) in shapes(main).values()


@pytest.mark.few(1)
@pytest.mark.parametrize("m", [1, 5, ROWS, ROWS + 1, 2 * ROWS - 1])
def test_last_rows_of_a_grid(artifacts, m) -> None:
    """A tile is cut where no block of the grid has more rows."""

    @T.prim_func
    def main(X: T.Tensor((m, N), "float32"), Y: T.Tensor((m, N), "float32")):
        with T.Kernel(T.ceildiv(m, ROWS), threads=64) as block:
            x = T.alloc_shared((ROWS, N), "float32")
            y = T.alloc_shared((ROWS, N), "float32")
            T.copy(X[block * ROWS, 0], x)
            for i, j in T.Parallel(ROWS, N):
                y[i, j] = x[i, j] * 2
            T.copy(y, Y[block * ROWS, 0])

    assert shapes(main)["y"][0] == min(m, ROWS)
    x, y = rows(m, N), np.full((m, N), np.nan, np.float32)
    runtime.load(compile(main, store=artifacts))(x, y)
    np.testing.assert_array_equal(y, x * 2)
