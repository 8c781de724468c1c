"""Expected times of traced programs, and the order to measure them in."""

from __future__ import annotations

import pytest

import tilecore.language as T
from recommender.hardware import load_profile
from recommender.programs import by_promise, expect, work_flop
from tilecore import kernels
from tilecore.graph import build
from tilecore.ir.nodes import PrimFunc

CPU = load_profile("x86-64-avx512")
GEMM = kernels.get("gemm")


def product(m: int, n: int, k: int, **knobs: int) -> PrimFunc:
    return GEMM.program(
        GEMM.parse_problem({"m": m, "n": n, "k": k}), {**GEMM.default_config(), **knobs}
    )


def copied(n: int | T.Var, block: int) -> PrimFunc:
    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block)) as b:
            x = T.alloc_fragment((block,), "float32")
            T.copy(X[b * block], x)
            T.copy(x, Y[b * block])

    return main


def test_a_product_is_modelled_as_one():
    program = product(512, 512, 512, block_M=128, block_N=128, block_K=256)
    found = expect(program, CPU)
    assert found is not None
    assert found.work_flop == work_flop(build(program))
    assert found.work_flop == pytest.approx(2 * 512**3, rel=0.01)  # and clearing C
    assert "fma" in found.terms_s
    alone = expect(program, CPU, threads=1)
    assert alone is not None
    assert alone.time_s > found.time_s


def test_a_copy_is_bound_by_memory():
    found = expect(copied(1 << 24, 4096), CPU, threads=1)
    assert found is not None
    assert found.bound_by == "memory"
    assert found.time_s >= 2 * 4 * 2**24 / CPU.core_bandwidth_bytes_per_s


def test_nothing_is_expected_of_sizes_that_only_the_call_knows():
    assert expect(copied(T.dynamic("n"), 64), CPU) is None


@pytest.mark.parametrize(
    ("times_s", "order"),
    [([], []), ([3.0], [0]), ([3.0, 2.0, None, 1.0], [0, 3, 1, 2]), ([None, None], [0, 1])],
)
def test_the_default_first_then_the_promising_ones(times_s, order):
    class Expected:
        def __init__(self, time_s):
            self.time_s = time_s

    assert by_promise([None if t is None else Expected(t) for t in times_s]) == order


def test_blocks_that_waste_work_promise_less():
    good = expect(product(512, 512, 512, block_M=128, block_N=128, block_K=256), CPU)
    bad = expect(product(512, 512, 512, block_M=16, block_N=32, block_K=16), CPU)
    assert bad.time_s > 1.2 * good.time_s
