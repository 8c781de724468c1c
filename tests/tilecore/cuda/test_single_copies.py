"""Boxes that one thread asks for, and descriptors of the tensor memory accelerator (sm_90)."""

import numpy as np
import pytest
import torch

import tilecore
import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tests.tilecore.cuda.test_tile_programs import close, random
from tilecore.emulator import ALL_SCHEDULES
from tilecore.errors import EmulationError, ShapeMismatch, TypeMismatch, UnsupportedOnTarget

FLOAT16, UINT16 = 6, 1  # of CUtensorMapDataType


def fed_by_one_thread(M, N, K, stages):
    """A thread copies, a warpgroup multiplies."""
    BM, BN, BK = 64, 32, 32

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=256) as (bx, by):
            A_s = T.alloc_shared((stages, BM, BK), "float16")
            B_s = T.alloc_shared((stages, BN, BK), "float16")
            loaded = T.alloc_barrier([1] * stages)
            free = T.alloc_barrier([128] * stages)
            tx = T.get_thread_binding()
            if tx == 128:
                for k in T.serial(T.ceildiv(K, BK)):
                    T.mbarrier_wait_parity(free[k % stages], k // stages % 2 ^ 1)
                    T.tma_copy(
                        A[by * BM, k * BK], A_s[k % stages, :, :], barrier=loaded[k % stages]
                    )
                    T.tma_copy(
                        B[bx * BN, k * BK], B_s[k % stages, :, :], barrier=loaded[k % stages]
                    )
                    T.mbarrier_arrive(loaded[k % stages])
            elif tx < 128:
                sums = T.alloc_fragment((BM, BN), "float32")
                T.clear(sums)
                for k in T.serial(T.ceildiv(K, BK)):
                    T.mbarrier_wait_parity(loaded[k % stages], k // stages % 2)
                    T.gemm(A_s[k % stages, :, :], B_s[k % stages, :, :], sums, transpose_B=True)
                    T.mbarrier_arrive(free[k % stages])
                T.copy(sums, C[by * BM, bx * BN])

    return main


def test_one_thread_feeds_a_warpgroup():
    M, N, K = 100, 40, 112
    rng = np.random.default_rng(0)
    a, b = random(rng, (M, K), "float16"), random(rng, (N, K), "float16")
    c = np.zeros((M, N), np.float32)
    func = fed_by_one_thread(M, N, K, 2)
    plan = run_emulated(func, "h100", [a, b, c], ALL_SCHEDULES)
    close(c, a.astype(np.float64) @ b.astype(np.float64).T, "float32")
    assert "loaded by TMA on barriers of the program: A_s, B_s" in plan.explain()
    kernel = lowered(func, "h100")[2].emulated.partition('extern "C" __global__')[2]
    waits = [t.strip() for t in kernel.splitlines() if "tc_barrier_wait(" in t]
    for wait in waits:  # for free tiles, for loaded ones
        with pytest.raises(EmulationError, match=r"race|more arrivals"):
            run_emulated(func, "h100", [a, b, c], ALL_SCHEDULES, without=wait)


def alone(shape, dtype, threads):
    @T.prim_func
    def main(A: T.Tensor(shape, dtype), B: T.Tensor(shape, dtype)):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared(shape, dtype)
            loaded = T.alloc_barrier(threads)
            tx = T.get_thread_binding()
            if tx < threads:
                T.tma_copy(A, tile, barrier=loaded)
                T.mbarrier_arrive(loaded)
            T.mbarrier_wait_parity(loaded, 0)
            T.copy(tile, B)

    return main


def test_what_one_thread_cannot_copy_is_said():
    with pytest.raises(UnsupportedOnTarget, match="cannot bring this tile") as found:
        lowered(alone((32, 33), "float16", 1), "h100")
    assert "let a whole warp copy: `if tx < 32:`" in str(found.value)
    with pytest.raises(UnsupportedOnTarget, match="comes with sm_90"):
        lowered(alone((32, 32), "float16", 1), "a100")
    with pytest.raises(UnsupportedOnTarget, match="a branch that only some threads take"):
        lowered(alone((32, 32), "float16", 2), "h100")
    for target in ("h100", "a100"):
        lowered(alone((32, 33), "float16", 32), target)


# --- T.create_tma_descriptor, T.tma_load ---------------------------------------------------------


def described(shape, box, at, dtype="float16", code=FLOAT16, stages=1, swizzle=3):
    """TileOPs' way of loading a box: by one thread, with a descriptor of its own."""
    kept = [e for e in box if e != 1]
    size = {"float16": 2, "float32": 4}[dtype]
    strides = [size * int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]

    @T.prim_func
    def main(X: T.Tensor(shape, dtype), Y: T.Tensor(kept, dtype)):
        with T.Kernel(1, threads=128):
            tiles = T.alloc_shared([stages, *kept], dtype)
            loaded = T.alloc_barrier(arrive_count=128)
            tx = T.get_thread_binding()
            if tx == 0:
                T.mbarrier_expect_tx(loaded, size * int(np.prod(box)))
                descriptor = T.create_tma_descriptor(
                    code, len(shape), X.data, *reversed(shape), *reversed(strides),
                    *reversed(box), *([1] * len(shape)), 0, swizzle, 2, 0,
                )  # fmt: skip
                T.tma_load(
                    descriptor, loaded[0], T.access_ptr(tiles[stages - 1, 0, 0], "w"),
                    *reversed(at), 0,
                )  # fmt: skip
            T.barrier_arrive(loaded)
            T.barrier_wait(loaded, 0)
            T.copy(tiles[stages - 1, :, :], Y)

    return main


CASES = [
    ((2, 40, 3, 32), (1, 16, 1, 32), (1, 32, 2, 0), "float16", FLOAT16, 1),  # 8 rows outside
    ((1, 20, 64), (1, 8, 64), (0, 8, 0), "float16", UINT16, 2),
    ((48, 16), (32, 16), (16, 0), "float32", 7, 1),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("shape", "box", "at", "dtype", "code", "stages"), CASES)
def test_a_thread_loads_a_box_that_it_describes(shape, box, at, dtype, code, stages):
    func = described(shape, box, at, dtype, code, stages)
    x = random(np.random.default_rng(1), shape, dtype)
    expected = np.zeros(box, dtype)
    part = x[tuple(slice(a, a + e) for a, e in zip(at, box, strict=True))]
    expected[tuple(slice(0, e) for e in part.shape)] = part
    expected = expected.reshape([e for e in box if e != 1])
    y = np.full(expected.shape, 7, dtype)
    plan = run_emulated(func, "h100", [x, y], ALL_SCHEDULES)
    np.testing.assert_array_equal(y, expected)
    assert "loaded by TMA on barriers of the program: tiles" in plan.explain()
    z = torch.zeros(expected.shape, dtype=getattr(torch, dtype))
    tilecore.compile(func, target="llvm")(torch.from_numpy(x), z)
    np.testing.assert_array_equal(z.numpy(), expected)


def test_descriptors_that_say_something_else_are_refused():
    def traced(change, rank=2, extra=(), tile=(16, 32)):
        given = [32, 64, 2, 64, 32, 16, 1, 1, 0, 3, 2, 0]
        for place, value in change.items():
            given[place] = value

        @T.prim_func
        def main(X: T.Tensor((64, 32), "float16")):
            with T.Kernel(1, threads=128):
                shared = T.alloc_shared(tile, "float16")
                loaded = T.alloc_barrier(1)
                descriptor = T.create_tma_descriptor(FLOAT16, rank, X.data, *given)
                T.tma_load(descriptor, loaded, T.access_ptr(shared, "w"), 0, 0, *extra)

        return main

    lowered(traced({}, extra=(1,)), "h100")
    for change, message in (
        ({1: 60}, "extent of axis 0"),
        ({3: 128}, r"stride of axis 0(.|\n)*X.data\) is a view in another shape"),
    ):
        with pytest.raises(ShapeMismatch, match=message):
            traced(change)
    for change, message in (
        ({4: 512}, "a box from 1 to 256"), ({6: 2}, "1 as the step of each axis"),
        ({8: 1}, "no interleaved rows"), ({11: 1}, "zeros outside"),
        ({9: 4}, "swizzle 0, 1, 2 or 3"),
    ):  # fmt: skip
        with pytest.raises(TypeMismatch, match=message):
            traced(change)
    with pytest.raises(TypeMismatch, match="rank 2 of `X`, at most 5, found 3"):
        traced({}, rank=3)
    with pytest.raises(TypeMismatch, match="2 coordinates, and 0, 1 or 2 for the L2 cache"):
        traced({}, extra=(5,))
    with pytest.raises(ShapeMismatch, match=r"last axes have the extents of the box, \[16, 32\]"):
        traced({}, tile=(16, 64))
