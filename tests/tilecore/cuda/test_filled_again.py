"""Tiles that units fill again tell by a fence that threads have read them.

Found on an H200: without it a load of the next tile overtook matrices that were still on their way
to registers, in some 3 of 15 million steps of a product of 32 rows by 16 warps. The emulator reads
at once and cannot see that; the proof of order asks for the fence.
"""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore import kernels
from tilecore.codegen.order_proof import ENOUGH, order_programs
from tilecore.emulator import ALL_SCHEDULES
from tilecore.ordering import Verdict, check, judge, without
from tilecore.ordering.check import acts

F16 = {"dtype": "float16", "out_dtype": "float16"}
PRODUCTS = {
    "few rows": ("gemm", {"m": 40, "n": 128, "k": 400, **F16},
                 {"block_M": 32, "block_N": 128, "block_K": 64, "num_stages": 3, "threads": 512}),
    "float32": ("gemm", {"m": 64, "n": 64, "k": 200},
                {"block_M": 64, "block_N": 64, "block_K": 32, "num_stages": 3}),
    "a token": ("decode_attention", {"batch": 1, "heads": 4, "kv_heads": 2, "seq_q": 1,
                                     "seq_kv": 500, "dim": 64, "dtype": "float16"},
                {"splits": 2, "block_M": 16, "block_N": 64, "num_stages": 2, "threads": 128}),
}  # fmt: skip


def _fences(kernel):
    return [act for act in acts(kernel, inside_loops=True) if act.kind == "fence"]


@pytest.mark.parametrize("target", ["h100", "rtx5090"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_warps_free_tiles_of_boxes_behind_a_fence(name, target):
    kernel, fields, config = PRODUCTS[name]
    definition = kernels.get(kernel).on("cuda")
    problem = definition.parse_problem(fields)
    func = definition.program(problem, dict(definition.default_config("cuda")) | config)
    kernel = order_programs(lowered(func, target, is_ordered=False)[1])[0]
    assert judge(kernel, ENOUGH) == Verdict((), ())
    fences = _fences(kernel)
    assert fences
    for fence in fences:
        found = [f for f in check(without(kernel, fence), ENOUGH) if f.kind == "proxy"]
        assert any("reads shared memory" in f.text for f in found)


def test_products_of_warpgroups_need_none():
    definition = kernels.get("gemm").on("cuda")
    problem = definition.parse_problem({"m": 128, "n": 128, "k": 400, **F16})
    config = {"block_M": 128, "block_N": 128, "block_K": 64, "num_stages": 3, "threads": 256}
    func = definition.program(problem, dict(definition.default_config("cuda")) | config)
    kernel = order_programs(lowered(func, "h100", is_ordered=False)[1])[0]
    assert not _fences(kernel)


def test_a_role_that_reads_a_tile_tells_the_one_that_asks_for_the_next():
    @T.prim_func
    def main(X: T.Tensor((3, 16, 32), "float32"), Y: T.Tensor((3, 16, 32), "float32")):
        with T.Kernel(1, threads=256):
            tx = T.get_thread_binding()
            tile = T.alloc_shared((16, 32), "float32")
            full, free = T.alloc_barrier([1]), T.alloc_barrier([128])
            if tx < 128:
                for k in T.serial(3):
                    T.mbarrier_wait_parity(free, k % 2 ^ 1)
                    T.tma_copy(X[k, 0, 0], tile, barrier=full)
                    if tx == 0:
                        T.mbarrier_arrive(full)
            else:
                for k in T.serial(3):
                    T.mbarrier_wait_parity(full, k % 2)
                    for i, j in T.Parallel(16, 32):
                        Y[k, i, j] = tile[15 - i, j]
                    T.mbarrier_arrive(free)

    kernel = order_programs(lowered(main, "h100", is_ordered=False)[1])[0]
    assert judge(kernel, ENOUGH) == Verdict((), ())
    (fence,) = _fences(kernel)
    assert any("reads shared memory" in f.text for f in check(without(kernel, fence), ENOUGH))
    x = np.random.default_rng(6).standard_normal((3, 16, 32), dtype=np.float32)
    y = np.zeros_like(x)
    run_emulated(main, "h100", [x, y], ALL_SCHEDULES)
    np.testing.assert_array_equal(y, x[:, ::-1])
