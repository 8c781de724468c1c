"""Products of 8-bit floats run on tensor cores that do not read them, as products of float16."""

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.codegen.cubin import read_features
from tilecore.codegen.nvrtc import compile_cuda
from tilecore.emulator import ALL_SCHEDULES
from tilecore.gpu_compiler import plan_gpu
from tilecore.ir.nodes import Gemm
from tilecore.ir.visitor import walk
from tilecore.target import parse_target

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
NUMPY = {E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2}


def product(kinds, form, m=48, n=40, k=70, block=(32, 32, 32), sums="float32", stages=2):
    """Return C = A B of blocks at ragged edges."""
    rows, columns, step = block
    is_turned = form != "k first"

    @T.prim_func
    def main(
        A: T.Tensor((m, k), kinds[0]), B: T.Tensor((n, k) if is_turned else (k, n), kinds[1]),
        C: T.Tensor((m, n), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(n, columns), T.ceildiv(m, rows), threads=128) as (bx, by):
            a = T.alloc_shared((rows, step), kinds[0])
            b = T.alloc_shared((columns, step) if is_turned else (step, columns), kinds[1])
            held = T.alloc_fragment((rows, step), kinds[0])
            c = T.alloc_fragment((rows, columns), sums)
            T.clear(c)
            for s in T.Pipelined(T.ceildiv(k, step), num_stages=stages):
                T.copy(A[by * rows, s * step], a)
                if is_turned:
                    T.copy(B[bx * columns, s * step], b)
                else:
                    T.copy(B[s * step, bx * columns], b)
                if form == "registers":
                    T.copy(a, held)
                    T.gemm(held, b, c, transpose_B=True)
                elif form == "halves":
                    for part in T.serial(2):
                        first = part * (step // 2)
                        T.gemm(
                            a[0:rows, first : first + step // 2],
                            b[0:columns, first : first + step // 2], c, transpose_B=True,
                        )  # fmt: skip
                else:
                    T.gemm(a, b, c, transpose_B=is_turned)
            T.copy(c, C[by * rows, bx * columns])

    return main


def kinds_of_products(func, target):
    _, plan = plan_gpu(func, parse_target(target))
    return {p.kind for launch in plan.launches.values() for p in launch.gemms.values()}


@pytest.mark.few(3)
@pytest.mark.parametrize("target", ["sm_75", "a100", "rtx3090"])
@pytest.mark.parametrize("kinds", [(E4M3, E4M3), (E5M2, E5M2), (E4M3, E5M2)])
@pytest.mark.parametrize("form", ["plain", "k first", "registers", "halves"])
def test_products_of_8_bit_floats_are_products_of_float16(form, kinds, target):
    rng = np.random.default_rng(len(form))
    a = rng.standard_normal((48, 70)).astype(NUMPY[kinds[0]])
    b = rng.standard_normal((40, 70)).astype(NUMPY[kinds[1]])
    c = np.zeros((48, 40), np.float32)
    func = product(kinds, form)
    given = b.T.copy() if form == "k first" else b
    run_emulated(func, target, [a, given, c], ALL_SCHEDULES)
    np.testing.assert_allclose(c, a.astype(float) @ b.astype(float).T, rtol=1e-5, atol=1e-5)
    assert kinds_of_products(func, target) == {"mma"}


@pytest.mark.parametrize("kind", [E4M3, E5M2])
def test_every_number_is_what_it_was(kind):
    """Times one: subnormal numbers, infinity and NaN."""
    codes = np.arange(256, dtype=np.uint8).view(NUMPY[kind])
    rows = np.arange(256)
    a = np.zeros((256, 32), NUMPY[kind])
    a[rows, rows % 32] = codes  # one a row: infinity times 0 is NaN
    b, c = np.eye(32).astype(NUMPY[kind]), np.zeros((256, 32), np.float32)
    func = product((kind, kind), "plain", 256, 32, 32, stages=0)
    run_emulated(func, "a100", [a, b, c])
    np.testing.assert_array_equal(c[rows, rows % 32], codes.astype(np.float32))


def test_units_that_read_8_bit_floats_read_them():
    func = product((E4M3, E4M3), "plain", 64, 64, 64, (64, 64, 64))
    for target in ("rtx4090", "h100", "mi300x"):
        made, _ = plan_gpu(func, parse_target(target))
        (gemm,) = [s for s in walk(made.body) if isinstance(s, Gemm)]
        assert gemm.a.dtype == E4M3


def test_tiles_for_which_there_is_no_room_are_not_made():
    func = product((E4M3, E4M3), "plain", 512, 512, 512, (128, 128, 128), stages=3)
    assert kinds_of_products(func, "a100") == {"mma"}
    full = product((E4M3, E4M3), "plain", 512, 512, 512, (128, 128, 128), stages=4)
    assert kinds_of_products(full, "a100") == {"fma"}


def test_an_operand_is_converted_once_and_not_for_each_product():
    """Multiply-adds converted each element of A once for every column."""
    func = product((E4M3, E4M3), "plain", 128, 128, 4096, (128, 128, 32))
    source = lowered(func, "a100")[2]
    (found,) = read_features(compile_cuda(source.text, "sm_80").data, "sm_80").values()
    assert found.opcodes["HMMA"] == 2 * 128 * 128 * 32 // (16 * 8 * 16) // 4 // 2
    assert "FFMA" not in found.opcodes
