"""Left operands that lie transposed: tiles of many rows are transposed as they are filled."""

import pytest
import torch

import tilecore as tilelang
import tilecore.language as T
from tilecore.ir.nodes import Gemm
from tilecore.ir.visitor import walk
from tilecore.passes import upright


def turned(M, N, K, dtype="float32", sums="float32", blocks=(128, 64, 32), reads_tile=False):
    block_M, block_N, block_K = blocks

    @T.prim_func
    def program(A: T.Tensor((K, M), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), sums)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            a = T.alloc_shared((block_K, block_M), dtype)
            b = T.alloc_shared((block_K, block_N), dtype)
            c = T.alloc_fragment((block_M, block_N), sums)
            T.clear(c)
            for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
                T.copy(A[ko * block_K, by * block_M], a)
                T.copy(B[ko * block_K, bx * block_N], b)
                T.gemm(a, b, c, transpose_A=True)
                if reads_tile:
                    for i, j in T.Parallel(block_M, block_N):
                        c[i, j] += a[0, i]
            T.copy(c, C[by * block_M, bx * block_N])

    return program


def is_turned(program):
    """Return whether the pass had the product read rows."""
    (gemm,) = (s for s in walk(upright.run(program).body) if isinstance(s, Gemm))
    return not gemm.transpose_a


def numbers(rows, columns, dtype):
    return torch.randint(-4, 5, (rows, columns)).to(getattr(torch, dtype))


def check(program, M, N, K, dtype="float32", sums="float32"):
    a, b = numbers(K, M, dtype), numbers(K, N, dtype)
    found = tilelang.compile(program, out_idx=[-1])(a, b)
    wanted = a.double().T @ b.double()
    assert torch.equal(found.double(), wanted)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("dtype", "sums"),
    [("float32", "float32"), ("bfloat16", "float32"), ("float16", "float32"), ("int8", "int32"),
     ("float64", "float64")],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(128, 64, 32), (130, 70, 67), (257, 33, 100), (96, 5, 1)])
def test_products_of_many_rows(dtype, sums, shape):
    program = turned(*shape, dtype, sums)
    assert is_turned(program)
    check(program, *shape, dtype, sums)


@pytest.mark.few(1)
@pytest.mark.parametrize("blocks", [(32, 32, 64), (256, 128, 16)])
def test_tiles_of_any_height(blocks):
    program = turned(200, 100, 90, "bfloat16", blocks=blocks)
    assert is_turned(program)
    check(program, 200, 100, 90, "bfloat16")


def test_products_of_few_rows_read_the_tensor_where_it_lies():
    program = turned(64, 100, 90)
    assert not is_turned(program)
    check(program, 64, 100, 90)


def test_sizes_that_vary():
    program = turned(T.dynamic("m"), T.dynamic("n"), T.dynamic("k"))
    assert is_turned(program)
    kernel = tilelang.compile(program, out_idx=[-1])
    for m, n, k in ((3, 40, 70), (64, 7, 33), (65, 100, 31), (300, 130, 64)):
        a, b = numbers(k, m, "float32"), numbers(k, n, "float32")
        assert torch.equal(kernel(a, b), a.T @ b)


def test_a_tile_that_others_read_stays():
    program = turned(130, 70, 64, reads_tile=True)
    assert not is_turned(program)
    a, b = numbers(64, 130, "float32"), numbers(64, 70, "float32")
    found = tilelang.compile(program, out_idx=[-1])(a, b)
    assert torch.equal(found, a.T @ b + (a[0] + a[32])[:, None])


def test_a_written_tensor_is_not_read_at_another_time():
    """Its tile holds what was there when it was copied."""

    @T.prim_func
    def program(A: T.Tensor((64, 128), "float32"), C: T.Tensor((128, 128), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 128), "float32")
            c = T.alloc_fragment((128, 128), "float32")
            T.clear(c)
            T.copy(A, a)
            T.fill(A, 0)
            T.gemm(a, a, c, transpose_A=True)
            T.copy(c, C)

    a, c = numbers(64, 128, "float32"), torch.empty(128, 128)
    wanted = a.T @ a
    tilelang.compile(program)(a, c)
    assert torch.equal(c, wanted)
    assert not a.any()
