"""Blocks of products of few rows are joined along N where columns stand on their own."""

import numpy as np
import pytest
import torch

import tilecore.language as T
from tests.tilecore.products import product
from tilecore import kernels, runtime
from tilecore.compiler import compile
from tilecore.inference.cpu.options import CpuOptions
from tilecore.interpreter import run
from tilecore.ir.expr import int_value
from tilecore.ir.nodes import KernelLaunch
from tilecore.ir.visitor import walk
from tilecore.passes.pipeline import cpu_pipeline, run_passes
from tilecore.target import parse_target
from workers.correctness import tolerance

pytestmark = pytest.mark.few(1)  # a case takes long

ROWS, K, N = 2, 130, 5000  # 40 blocks, which three times 14 overrun; weights that are large enough
COLUMNS, DEPTH = 128, 32
BLOCKS = -(-N // COLUMNS)


def passed(func):
    """Return the program after all passes."""
    target = parse_target("llvm")
    return run_passes(func, pipeline=cpu_pipeline(target, CpuOptions.parse({}, target, {})))


def grids(func):
    """Return the blocks along N of all versions, in order."""
    launches = [s for s in walk(passed(func).body) if isinstance(s, KernelLaunch)]
    return [int_value(launch.grid[0]) for launch in launches]


def rows(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture
def check(artifacts):
    """Compare both versions, and what the oracle makes of the first, with what is wanted."""
    cores = runtime.num_threads()

    def compared(func, inputs, wanted, rtol=1e-4, atol=1e-3, into=None):
        kernel = runtime.load(compile(func, store=artifacts))
        for threads in (1, cores):
            runtime.set_num_threads(threads)
            found = torch.full(wanted.shape, torch.nan) if into is None else into.clone()
            kernel(*inputs, found)
            torch.testing.assert_close(found.double(), wanted, rtol=rtol, atol=atol)
        if all(x.dtype == torch.float32 for x in inputs):
            found = torch.full(wanted.shape, torch.nan) if into is None else into.clone()
            run(passed(func), *[x.numpy() for x in inputs], array := found.numpy())
            np.testing.assert_allclose(array, wanted.numpy(), rtol=rtol, atol=atol)

    yield compared
    runtime.set_num_threads(cores)


# --- products -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("m", [1, 3, 7])
@pytest.mark.parametrize(("n", "k"), [(5000, 130), (5120, 128), (4097, 257), (11008, 129)])
def test_ragged_products(check, dtype, m, n, k) -> None:
    func = product(m, n, k, dtype, (8, COLUMNS, DEPTH), trans_b=False)
    wide, narrow = grids(func)
    assert wide * 5 < narrow == -(-n // COLUMNS)
    a, b = rows(m, k, dtype=getattr(torch, dtype)), rows(k, n, seed=1, dtype=getattr(torch, dtype))
    rtol, atol = tolerance("float32", "float32", k)
    check(func, [a, b], a.double() @ b.double(), rtol, atol)


@pytest.mark.covering
@pytest.mark.parametrize("out", ["bfloat16", "float32"])
@pytest.mark.parametrize("clear", [True, False])
def test_how_sums_begin_and_end(artifacts, out, clear) -> None:
    func = product(3, N, K, "float32", (8, COLUMNS, DEPTH), False, out, clear)
    assert grids(func)[0] < BLOCKS
    a, b = rows(3, K), rows(K, N, seed=1)
    found = torch.empty(3, N, dtype=getattr(torch, out))
    runtime.load(compile(func, store=artifacts))(a, b, found)
    rtol, atol = tolerance(out, "float32", K)
    torch.testing.assert_close(found.double(), a.double() @ b.double(), rtol=rtol, atol=atol)


def test_dynamic_rows(check) -> None:
    func = product(T.dynamic("m"), N, K, "float32", (64, COLUMNS, DEPTH), trans_b=False)
    one, one_narrow, few, few_narrow, all_rows = grids(func)
    assert one == few < one_narrow == few_narrow == all_rows == BLOCKS
    for m in (1, 2, 5, 40):
        a, b = rows(m, K), rows(K, N, seed=1)
        check(func, [a, b], a.double() @ b.double())


def test_dynamic_columns_and_depth(check) -> None:
    n, k = T.dynamic("n"), T.dynamic("k")
    func = product(3, n, k, "float32", (8, COLUMNS, DEPTH), trans_b=False)
    assert len(grids(func)) == 2
    for columns, depth in ((1, 5), (128, 32), (1025, 40), (5000, 130)):
        a, b = rows(3, depth), rows(depth, columns, seed=1)
        check(func, [a, b], a.double() @ b.double())


def test_few_or_short_blocks_stay() -> None:
    assert grids(product(1, 128, 4096, "float32", (8, 128, 32), False)) == [1]
    assert grids(product(1, 512, 64, "float32", (8, 128, 32), False)) == [4]  # in a cache
    assert grids(product(1, 8192, 128, "float32", (8, 2048, 32), False)) == [4]
    assert grids(product(64, N, K, "float32", (64, 128, 32), False)) == [BLOCKS]  # many rows
    assert grids(product(1, N, K, "float32", (8, 128, 32), True)) == [BLOCKS]


def test_so_many_blocks_that_no_version_is_needed() -> None:
    (wide,) = grids(product(1, 128 * 4096, 8, "float32", (8, 128, 8), False))
    assert wide == 256


# --- what is done with sums -----------------------------------------------------------------------


def finished(finish, out=(ROWS, N), blocks=BLOCKS, columns=N):
    """Return a product whose sums ``c`` the macro ``finish`` takes to Y."""

    @T.prim_func
    def main(
        A: T.Tensor((ROWS, K), "float32"), B: T.Tensor((K, columns), "float32"),
        S: T.Tensor((N,), "float32"), Y: T.Tensor(out, "float32"),
    ):  # fmt: skip
        with T.Kernel(blocks, threads=128) as bx:
            a = T.alloc_shared((ROWS, DEPTH), "float32")
            b = T.alloc_shared((DEPTH, COLUMNS), "float32")
            c = T.alloc_fragment((ROWS, COLUMNS), "float32")
            s = T.alloc_fragment((COLUMNS,), "float32")
            r = T.alloc_fragment((ROWS,), "float32")
            T.clear(c)
            for ko in T.Pipelined(T.ceildiv(K, DEPTH), num_stages=2):
                T.copy(A[0, ko * DEPTH], a)
                T.copy(B[ko * DEPTH, bx * COLUMNS], b)
                T.gemm(a, b, c)
            finish(bx, c, s, r, S, Y)

    return main


def operands():
    return rows(ROWS, K), rows(K, N, seed=1), rows(N, seed=2)


def in_blocks(x):
    """Return columns by their block, which 0 fills."""
    padded = torch.nn.functional.pad(x, (0, BLOCKS * COLUMNS - N))
    return padded.reshape(*x.shape[:-1], BLOCKS, COLUMNS)


def out_of_blocks(x):
    return x.reshape(*x.shape[:-2], -1)[..., :N]


@T.macro
def by_bias_tile(bx, c, s, r, S, Y):
    T.copy(S[bx * COLUMNS], s)
    for i, j in T.Parallel(ROWS, COLUMNS):
        c[i, j] = T.max(c[i, j] + s[j], 0)
    T.copy(c, Y[0, bx * COLUMNS])


@T.macro
def by_bias_elements(bx, c, s, r, S, Y):
    for i, j in T.Parallel(ROWS, COLUMNS):
        if bx * COLUMNS + j < N:
            Y[i, bx * COLUMNS + j] = T.max(c[i, j] + S[bx * COLUMNS + j], 0)


@T.macro
def by_other_tiles(bx, c, s, r, S, Y):
    """Rows have a tile of their own, which no block index is in."""
    for i in T.Parallel(ROWS):
        r[i] = i + 1
    for j in T.Parallel(COLUMNS):
        s[j] = S[bx * COLUMNS + j] * 2
    for i, j in T.Parallel(ROWS, COLUMNS):
        c[i, j] = c[i, j] * r[i] + s[j]
    T.copy(c, Y[0, bx * COLUMNS])


@T.macro
def by_place(bx, c, s, r, S, Y):
    """The number of a column is part of the result."""
    for i, j in T.Parallel(ROWS, COLUMNS):
        c[i, j] += T.cast(bx * COLUMNS + j, "float32") / 64
    T.copy(c, Y[0, bx * COLUMNS])


PLACES = torch.arange(N, dtype=torch.float64)
JOINED = {
    by_bias_tile: lambda c, s: (c + s).clamp(min=0),
    by_bias_elements: lambda c, s: (c + s).clamp(min=0),
    by_other_tiles: lambda c, s: c * torch.tensor([[1.0], [2.0]]) + s * 2,
    by_place: lambda c, s: c + PLACES / 64,
}


@pytest.mark.parametrize("finish", JOINED, ids=lambda macro: macro.__name__)
def test_columns_on_their_own(check, finish) -> None:
    func = finished(finish)
    assert grids(func) == [3, BLOCKS]
    a, b, s = operands()
    check(func, [a, b, s], JOINED[finish](a.double() @ b.double(), s.double()))


# --- columns that have to do with each other ------------------------------------------------------


@T.macro
def softmax(bx, c, s, r, S, Y):
    """Over the columns of a block."""
    T.reduce_max(c, r, dim=1)
    for i, j in T.Parallel(ROWS, COLUMNS):
        c[i, j] = T.exp((c[i, j] - r[i]) / 16)
    T.reduce_sum(c, r, dim=1)
    for i, j in T.Parallel(ROWS, COLUMNS):
        c[i, j] /= r[i]
    T.copy(c, Y[0, bx * COLUMNS])


@T.macro
def running_sums(bx, c, s, r, S, Y):
    T.cumsum(c, dim=1)
    T.copy(c, Y[0, bx * COLUMNS])


@T.macro
def from_the_first(bx, c, s, r, S, Y):
    for i in T.Parallel(ROWS):
        r[i] = c[i, 0]
    for i, j in T.Parallel(ROWS, COLUMNS):
        c[i, j] -= r[i]
    T.copy(c, Y[0, bx * COLUMNS])


@T.macro
def backwards(bx, c, s, r, S, Y):
    for i, j in T.Parallel(ROWS, COLUMNS):
        Y[i, bx * COLUMNS + j] = c[i, COLUMNS - 1 - j]


@T.macro
def by_number_of_block(bx, c, s, r, S, Y):
    for i, j in T.Parallel(ROWS, COLUMNS):
        c[i, j] += bx
    T.copy(c, Y[0, bx * COLUMNS])


@T.macro
def by_column_of_block(bx, c, s, r, S, Y):
    for i, j in T.Parallel(ROWS, COLUMNS):
        c[i, j] += j
    T.copy(c, Y[0, bx * COLUMNS])


@T.macro
def some_blocks(bx, c, s, r, S, Y):
    if bx % 2 == 0:
        for i, j in T.Parallel(ROWS, COLUMNS):
            c[i, j] = -c[i, j]
    T.copy(c, Y[0, bx * COLUMNS])


@T.macro
def bias_of_blocks(bx, c, s, r, S, Y):
    """All blocks have the same."""
    T.copy(S[0:COLUMNS], s)
    for i, j in T.Parallel(ROWS, COLUMNS):
        c[i, j] += s[j]
    T.copy(c, Y[0, bx * COLUMNS])


@T.macro
def rows_by_block(bx, c, s, r, S, Y):
    T.copy(S[bx : bx + ROWS], r)
    for i, j in T.Parallel(ROWS, COLUMNS):
        c[i, j] += r[i]
    T.copy(c, Y[0, bx * COLUMNS])


@T.macro
def half_of_a_tile(bx, c, s, r, S, Y):
    T.fill(c[:, 0:64], 1)
    T.copy(c, Y[0, bx * COLUMNS])


@T.macro
def half_of_a_nest(bx, c, s, r, S, Y):
    for i, j in T.Parallel(ROWS, COLUMNS // 2):
        c[i, j] = 1
    T.copy(c, Y[0, bx * COLUMNS])


@T.macro
def half_of_a_tensor(bx, c, s, r, S, Y):
    T.copy(c, Y[0, bx * COLUMNS])
    start = bx * COLUMNS
    T.copy(S[start : start + 64], Y[0, start : start + 64])


@T.macro
def once_per_column_of_a_loop(bx, c, s, r, S, Y):
    for j in T.serial(COLUMNS):
        for i in T.Parallel(ROWS):
            Y[i, bx * COLUMNS + j] = c[i, j] * 2


@T.macro
def told_of_columns(bx, c, s, r, S, Y):
    """Of those beyond the blocks of the program, which are none (so that it is not seen)."""
    for i, j in T.Parallel(ROWS, COLUMNS):
        if T.cast(bx * COLUMNS + j, "uint32") >= T.cast(BLOCKS * COLUMNS, "uint32"):
            T.print(c[i, j])
        Y[i, bx * COLUMNS + j] = c[i, j]


@T.macro
def assert_of_columns(bx, c, s, r, S, Y):
    """Of those of the program: joined blocks may have more."""
    for i, j in T.Parallel(ROWS, COLUMNS):
        T.device_assert(bx * COLUMNS + j < BLOCKS * COLUMNS, "a column of no block")
        Y[i, bx * COLUMNS + j] = c[i, j]


@T.macro
def until_it_is_enough(bx, c, s, r, S, Y):
    steps = T.alloc_var("int32", init=0)
    while steps < 3:
        steps += 1
        for i, j in T.Parallel(ROWS, COLUMNS):
            c[i, j] += 1
    T.copy(c, Y[0, bx * COLUMNS])


@T.macro
def left_early(bx, c, s, r, S, Y):
    for step in T.serial(5):
        if step == 3:
            break
        for i, j in T.Parallel(ROWS, COLUMNS):
            c[i, j] += 1
    T.copy(c, Y[0, bx * COLUMNS])


@T.macro
def at_a_barrier(bx, c, s, r, S, Y):
    arrived = T.alloc_barrier(128)
    T.copy(S[bx * COLUMNS], s)
    T.mbarrier_arrive(arrived)
    T.mbarrier_wait_parity(arrived, 0)
    for i, j in T.Parallel(ROWS, COLUMNS):
        c[i, j] += s[j]
    T.copy(c, Y[0, bx * COLUMNS])


def softmax_of_blocks(c, s):
    return out_of_blocks(torch.softmax(in_blocks(c) / 16, dim=-1))


IN_BLOCK = torch.arange(COLUMNS, dtype=torch.float64)
IN_GRID = torch.arange(BLOCKS, dtype=torch.float64)[:, None]
APART = {
    softmax: softmax_of_blocks,
    running_sums: lambda c, s: out_of_blocks(in_blocks(c).cumsum(-1)),
    from_the_first: lambda c, s: out_of_blocks(in_blocks(c) - in_blocks(c)[..., :1]),
    backwards: lambda c, s: out_of_blocks(in_blocks(c).flip(-1)),
    by_number_of_block: lambda c, s: out_of_blocks(in_blocks(c) + IN_GRID),
    by_column_of_block: lambda c, s: out_of_blocks(in_blocks(c) + IN_BLOCK),
    some_blocks: lambda c, s: out_of_blocks(in_blocks(c) * (IN_GRID % 2 * 2 - 1)),
    bias_of_blocks: lambda c, s: out_of_blocks(in_blocks(c) + s[:COLUMNS]),
    rows_by_block: lambda c, s: out_of_blocks(
        in_blocks(c) + s[torch.arange(ROWS)[:, None] + torch.arange(BLOCKS)][..., None]
    ),
    half_of_a_tile: lambda c, s: out_of_blocks(torch.where(IN_BLOCK < 64, 1.0, in_blocks(c))),
    half_of_a_nest: lambda c, s: out_of_blocks(torch.where(IN_BLOCK < 64, 1.0, in_blocks(c))),
    half_of_a_tensor: lambda c, s: out_of_blocks(
        torch.where(IN_BLOCK < 64, in_blocks(torch.stack([s, c[1]])), in_blocks(c))
    ),
    once_per_column_of_a_loop: lambda c, s: c * 2,
    told_of_columns: lambda c, s: c,
    assert_of_columns: lambda c, s: c,
    until_it_is_enough: lambda c, s: c + 3,
    left_early: lambda c, s: c + 3,
    at_a_barrier: lambda c, s: c + s,
}


@pytest.mark.parametrize("finish", APART, ids=lambda macro: macro.__name__)
def test_columns_of_a_block(check, finish) -> None:
    func = finished(finish)
    assert grids(func) == [BLOCKS]
    a, b, s = operands()
    check(func, [a, b, s], APART[finish](a.double() @ b.double(), s.double()))


@T.macro
def in_other_order(bx, c, s, r, S, Y):
    T.copy(c, Y[0, (BLOCKS - 1 - bx) * COLUMNS])


@T.macro
def by_blocks(bx, c, s, r, S, Y):
    """The block index is an index of its own."""
    for i, j in T.Parallel(ROWS, COLUMNS):
        Y[i, bx, j] = c[i, j]


@T.macro
def one_of_a_block(bx, c, s, r, S, Y):
    T.reduce_absmax(c, r, dim=1)
    T.copy(r, Y[0:ROWS, bx])


@T.macro
def added(bx, c, s, r, S, Y):
    for i, j in T.Parallel(ROWS, COLUMNS):
        T.atomic_add(Y[i, bx * COLUMNS + j], c[i, j])


@T.macro
def added_by_rows(bx, c, s, r, S, Y):
    T.atomic_add(Y[0, bx * COLUMNS], c)


@T.macro
def onto_itself(bx, c, s, r, S, Y):
    for i, j in T.Parallel(ROWS, COLUMNS):
        Y[i, bx * COLUMNS + j] = Y[i, bx * COLUMNS + j] * 2 + c[i, j]


@T.macro
def columns_by_columns(bx, c, s, r, S, Y):
    """The diagonal blocks of what columns make of each other."""
    again = T.alloc_shared((ROWS, COLUMNS), "float32")
    table = T.alloc_fragment((COLUMNS, COLUMNS), "float32")
    T.copy(c, again)
    T.gemm(c, again, table, transpose_A=True, clear_accum=True)
    T.copy(table, Y[bx * COLUMNS, bx * COLUMNS])


SIDE = 3 * COLUMNS + 10


def diagonal(c):
    whole = c.T @ c
    blocks = torch.arange(SIDE) // COLUMNS
    return torch.where(blocks[:, None] == blocks, whole[:SIDE, :SIDE], 0)


def last_first(c):
    whole = torch.full((ROWS, BLOCKS * COLUMNS), torch.nan, dtype=torch.float64)
    whole[:] = torch.nn.functional.pad(c, (0, BLOCKS * COLUMNS - N))
    return whole.reshape(ROWS, BLOCKS, COLUMNS).flip(1).reshape(ROWS, -1)


@pytest.mark.parametrize(
    ("finish", "shape", "expected"),
    [
        (in_other_order, (ROWS, BLOCKS * COLUMNS), last_first),
        (by_blocks, (ROWS, BLOCKS, COLUMNS), in_blocks),
        (one_of_a_block, (ROWS, BLOCKS), lambda c: in_blocks(c).abs().amax(-1)),
        (added, (ROWS, N), lambda c: c),
        (added_by_rows, (ROWS, N), lambda c: c),
        (onto_itself, (ROWS, N), lambda c: c),
        (columns_by_columns, (SIDE, SIDE), diagonal),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_other_ways_to_store(check, finish, shape, expected) -> None:
    func = finished(finish, shape)
    assert grids(func) == [BLOCKS]
    a, b, s = operands()
    check(func, [a, b, s], expected(a.double() @ b.double()), into=torch.zeros(shape))


@T.macro
def stored(bx, c, s, r, S, Y):
    T.copy(c, Y[0, bx * COLUMNS])


@T.macro
def stored_by_elements(bx, c, s, r, S, Y):
    for i, j in T.Parallel(ROWS, COLUMNS):
        Y[i, bx * COLUMNS + j] = c[i, j]


@T.macro
def stored_before(bx, c, s, r, S, Y):
    """What lies before the tensor is left out, and nothing behind the last block is stored."""
    for i, j in T.Parallel(ROWS, COLUMNS):
        Y[i, bx * COLUMNS + j - 100] = c[i, j]


@pytest.mark.parametrize("blocks", [36, 37])  # in three wide blocks, or with some too much
@pytest.mark.parametrize("finish", [stored, stored_by_elements, stored_before])
def test_columns_that_no_block_takes(check, finish, blocks) -> None:
    func = finished(finish, blocks=blocks)
    assert grids(func) == ([blocks] if blocks == 37 else [3, 36])
    a, b, s = operands()
    wanted = torch.full((ROWS, N), 7.0, dtype=torch.float64)
    shift = 100 if finish is stored_before else 0
    last = blocks * COLUMNS
    wanted[:, : last - shift] = (a.double() @ b.double())[:, shift:last]
    check(func, [a, b, s], wanted, into=torch.full((ROWS, N), 7.0))


@pytest.mark.parametrize("end", [N - 100, N, N + 100])  # blocks end at 5020
def test_an_output_that_ends_before_the_blocks(check, end) -> None:
    func = finished(stored_before, (ROWS, end))
    a, b, s = operands()
    wanted = torch.full((ROWS, end), 7.0, dtype=torch.float64)
    product = (a.double() @ b.double())[:, 100:]
    whole = torch.nn.functional.pad(product, (0, max(0, end - product.shape[1])))
    beyond = BLOCKS * COLUMNS - 100  # columns of the last block that lie behind the weights are 0
    wanted[:, : min(end, beyond)] = whole[:, : min(end, beyond)]
    check(func, [a, b, s], wanted, into=torch.full((ROWS, end), 7.0))


# --- several products -----------------------------------------------------------------------------


def swiglu(scaled=False):
    """Two products of a block, of weights one beside the other; of 8 bits the second, if scaled."""
    kind = "int8" if scaled else "float32"

    @T.prim_func
    def main(
        A: T.Tensor((ROWS, K), "float32"), B: T.Tensor((K, N), "float32"),
        C: T.Tensor((K, N), kind), S: T.Tensor((N,), "float32"), Y: T.Tensor((ROWS, N), "float32"),
    ):  # fmt: skip
        with T.Kernel(BLOCKS, threads=128) as bx:
            a = T.alloc_shared((ROWS, DEPTH), "float32")
            b = T.alloc_shared((DEPTH, COLUMNS), "float32")
            q = T.alloc_shared((DEPTH, COLUMNS), kind)
            w = T.alloc_shared((DEPTH, COLUMNS), "float32")
            gate = T.alloc_fragment((ROWS, COLUMNS), "float32")
            up = T.alloc_fragment((ROWS, COLUMNS), "float32")
            T.clear(gate)
            T.clear(up)
            for ko in T.Pipelined(T.ceildiv(K, DEPTH), num_stages=2):
                T.copy(A[0, ko * DEPTH], a)
                T.copy(B[ko * DEPTH, bx * COLUMNS], b)
                T.copy(C[ko * DEPTH, bx * COLUMNS], q)
                if scaled:
                    for k, j in T.Parallel(DEPTH, COLUMNS):
                        w[k, j] = T.cast(q[k, j], "float32") * S[bx * COLUMNS + j]
                T.gemm(a, b, gate)
                T.gemm(a, w if scaled else q, up)
            for i, j in T.Parallel(ROWS, COLUMNS):
                up[i, j] *= T.max(gate[i, j], 0)
            T.copy(up, Y[0, bx * COLUMNS])

    return main


@pytest.mark.parametrize("scaled", [False, True])
def test_two_products_of_a_block(check, scaled) -> None:
    """Weights of 8 bits are not read in place, but computed for as many columns."""
    func = swiglu(scaled)
    assert grids(func) == [3, BLOCKS]
    a, b, s = operands()
    c = rows(K, N, seed=3)
    weights = c.double()
    if scaled:
        c = (c * 20).to(torch.int8)
        weights = c.double() * s.double()
    wanted = (a.double() @ b.double()).clamp(min=0) * (a.double() @ weights)
    check(func, [a, b, c, s], wanted, rtol=1e-3, atol=5e-2)


def split(splits, is_added):
    """Return a product whose sums are split along K, added or side by side."""
    part = -(-K // splits // DEPTH) * DEPTH

    @T.prim_func
    def main(
        A: T.Tensor((ROWS, K), "float32"), B: T.Tensor((K, N), "float32"),
        Y: T.Tensor((ROWS, N) if is_added else (splits, ROWS, N), "float32"),
    ):  # fmt: skip
        with T.Kernel(BLOCKS, splits, threads=128) as (bx, bz):
            a = T.alloc_shared((ROWS, DEPTH), "float32")
            b = T.alloc_shared((DEPTH, COLUMNS), "float32")
            c = T.alloc_fragment((ROWS, COLUMNS), "float32")
            T.clear(c)
            for ko in T.Pipelined(part // DEPTH, num_stages=2):
                T.copy(A[0, bz * part + ko * DEPTH], a)
                T.copy(B[bz * part + ko * DEPTH, bx * COLUMNS], b)
                T.gemm(a, b, c)
            if is_added:
                for i, j in T.Parallel(ROWS, COLUMNS):
                    T.atomic_add(Y[i, bx * COLUMNS + j], c[i, j])
            else:
                T.copy(c, Y[bz, 0, bx * COLUMNS])

    return main


@pytest.mark.parametrize("is_added", [False, True])
@pytest.mark.parametrize("splits", [2, 3])
def test_sums_in_parts(check, splits, is_added) -> None:
    func = split(splits, is_added)
    assert grids(func) == ([BLOCKS] if is_added else [3, BLOCKS])
    a, b, _ = operands()
    part = -(-K // splits // DEPTH) * DEPTH
    parts = [a[:, i : i + part].double() @ b[i : i + part].double() for i in range(0, K, part)]
    wanted = torch.stack(parts + [torch.zeros_like(parts[0])] * (splits - len(parts)))
    wanted = wanted.sum(0) if is_added else wanted
    check(func, [a, b], wanted, into=torch.zeros(wanted.shape))


@pytest.mark.exhaustive
def test_products_that_nothing_joins(check) -> None:
    """Keys and values of a block have their columns in common, and a nest that reads neither."""

    @T.prim_func
    def main(
        A: T.Tensor((ROWS, K), "float32"), B: T.Tensor((K, N), "float32"),
        C: T.Tensor((K, N), "float32"), S: T.Tensor((N,), "float32"),
        Y: T.Tensor((3, ROWS, N), "float32"),
    ):  # fmt: skip
        with T.Kernel(BLOCKS, threads=128) as bx:
            a = T.alloc_shared((ROWS, DEPTH), "float32")
            b = T.alloc_shared((DEPTH, COLUMNS), "float32")
            d = T.alloc_shared((DEPTH, COLUMNS), "float32")
            keys = T.alloc_fragment((ROWS, COLUMNS), "float32")
            values = T.alloc_fragment((ROWS, COLUMNS), "float32")
            T.clear(keys)
            T.clear(values)
            for ko in T.Pipelined(T.ceildiv(K, DEPTH), num_stages=2):
                T.copy(A[0, ko * DEPTH], a)
                T.copy(B[ko * DEPTH, bx * COLUMNS], b)
                T.copy(C[ko * DEPTH, bx * COLUMNS], d)
                T.gemm(a, b, keys)
                T.gemm(a, d, values)
            T.copy(keys, Y[0, 0, bx * COLUMNS])
            T.copy(values, Y[1, 0, bx * COLUMNS])
            for i, j in T.Parallel(ROWS, COLUMNS):
                Y[2, i, bx * COLUMNS + j] = S[bx * COLUMNS + j] * 2

    assert grids(main) == [3, BLOCKS]
    a, b, s = operands()
    c = rows(K, N, seed=3)
    sums = [a.double() @ b.double(), a.double() @ c.double(), s.double().expand(ROWS, N) * 2]
    check(main, [a, b, c, s], torch.stack(sums))


def test_products_of_many_rows_keep_their_blocks() -> None:
    """Forms for few rows stand beside one that packs a tile for all rows of an expert."""
    definition = kernels.get("grouped_gemm")
    problem = definition.parse_problem({"experts": 2, "m": 64, "n": N, "k": K})
    func = definition.program(problem, {**definition.default_config(), "block_N": COLUMNS})
    assert grids(func) == [BLOCKS]
