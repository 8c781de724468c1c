"""Large outputs are written past the caches, and hold what they should."""

import numpy as np
import pytest

import tilecore.language as T
from tilecore import compiler, runtime
from tilecore.compiler import compile
from tilecore.inference.cpu.streams import LEAST_BYTES, MOST_CACHED_BYTES, streamed_tensors
from tilecore.ir.dtype import DType
from tilecore.target import parse_target

ROWS = 4104
COLUMNS = 1024 + 16  # two such tensors of float32 are more than MOST_CACHED_BYTES


def scaled(rows=ROWS, columns=COLUMNS, dtype="float32", reads=False):
    @T.prim_func
    def main(X: T.Tensor((rows, columns), dtype), Y: T.Tensor((rows, columns), dtype)):
        with T.Kernel(T.ceildiv(rows, 64)) as b:
            x = T.alloc_fragment((64, columns), dtype)
            T.copy(X[b * 64, 0], x)
            for i, j in T.Parallel(64, columns):
                x[i, j] = x[i, j] * 2
            T.copy(x, Y[b * 64, 0])
            if reads:
                T.copy(Y[b * 64, 0], x)

    return main


def names(func):
    return {b.name for b in streamed_tensors(func)}


def test_large_outputs_only():
    assert names(scaled()) == {"Y"}
    assert names(scaled(rows=64)) == set()
    assert names(scaled(reads=True)) == set()
    size = ROWS * COLUMNS * 4
    assert size > LEAST_BYTES
    assert 2 * size > MOST_CACHED_BYTES


def test_not_what_an_l3_takes_with_all_that_is_read():
    assert LEAST_BYTES < ROWS // 2 * COLUMNS * 4
    assert names(scaled(rows=ROWS // 2)) == set()


def test_not_a_small_output_of_much_that_is_read():
    @T.prim_func
    def main(X: T.Tensor((ROWS * 2, COLUMNS), "float32"), Y: T.Tensor((ROWS * 2,), "float32")):
        with T.Kernel(ROWS // 4) as b:
            x = T.alloc_fragment((8, COLUMNS), "float32")
            y = T.alloc_fragment((8,), "float32")
            T.copy(X[b * 8, 0], x)
            T.reduce_sum(x, y, dim=1)
            T.copy(y, Y[b * 8])

    assert names(main) == set()


def counting(asks):
    """Return a program whose blocks count themselves, and perhaps ask who came before."""

    @T.prim_func
    def main(X: T.Tensor((1 << 23,), "float32"), C: T.Tensor((2,), "int32")):
        with T.Kernel(1 << 13) as b:
            for i in T.Parallel(1024):
                X[b * 1024 + i] = 1.0
            if asks:
                before = T.atomic_add(C[0], 1, return_prev=True)
                C[1] = before
            else:
                T.atomic_add(C[0], 1)

    return main


def polling():
    @T.prim_func
    def main(X: T.Tensor((1 << 23,), "float32"), C: T.Tensor((2,), "int32")):
        with T.Kernel(1 << 13) as b:
            for i in T.Parallel(1024):
                X[b * 1024 + i] = 1.0
            T.atomic_add(C[0], 1)
            C[1] = C[0]

    return main


def test_not_where_blocks_may_see_each_others_work():
    assert names(counting(asks=True)) == names(polling()) == set()
    assert names(counting(asks=False)) == {"X"}


def test_not_sums_that_grow_in_the_output():
    N = 3072
    assert N * N * 4 > MOST_CACHED_BYTES

    @T.prim_func
    def main(
        A: T.Tensor((N, 64), "float32"),
        B: T.Tensor((64, N), "float32"),
        C: T.Tensor((N, N), "float32"),
    ):
        with T.Kernel(N // 128, N // 128) as (bx, by):
            a = T.alloc_shared((128, 32), "float32")
            b = T.alloc_shared((32, 128), "float32")
            c = T.alloc_fragment((128, 128), "float32")
            T.clear(c)
            for k in T.Pipelined(2):
                T.copy(A[by * 128, k * 32], a)
                T.copy(B[k * 32, bx * 128], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * 128, bx * 128])

    plan, tir = compiler.lower(main, parse_target("llvm"), {})
    assert plan.streamed == frozenset()
    assert "nontemporal" not in tir.script()
    kernel = compile(main)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((N, 64), dtype=np.float32)
    b = rng.standard_normal((64, N), dtype=np.float32)
    c = np.empty((N, N), np.float32)
    runtime.load(kernel)(a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-3)


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("target", ["avx2", "llvm"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_values_at_any_alignment(dtype, target, artifacts):
    import torch

    columns = COLUMNS * 4 // DType(dtype).itemsize
    func = scaled(columns=columns, dtype=dtype)
    assert names(func) == {"Y"}
    kernel = runtime.load(compile(func, target, store=artifacts))
    kind = getattr(torch, dtype)
    x = torch.randint(-50, 50, (ROWS, columns)).to(kind)
    for shift in (0, 3):  # aligned rows, and rows of which no vector is
        memory = torch.zeros(x.numel() + 64, dtype=kind)
        y = memory[shift : shift + x.numel()].view(x.shape)
        kernel(x, y)
        assert torch.equal(y, x * 2)
        assert not memory[:shift].any()
        assert not memory[shift + x.numel() :].any()


def test_the_plan_says_so_and_the_code_does_it():
    from tilecore.show import stage_texts

    texts = stage_texts(scaled(), parse_target("avx2"))
    assert "Y: written past the caches" in texts["inference"]
    assert "vmovntps" in texts["asm"]
    assert "sfence" in texts["asm"]
