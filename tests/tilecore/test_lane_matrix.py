"""Products of matrices that lanes hold in pieces: T.ptx_mma and TileLang's TensorCoreIntrinEmitter.

On CPUs against the oracle and float64, on emulated GPUs, whose mma instructions are written apart
from what the compiler knows of them.
"""

import ml_dtypes
import numpy as np
import pytest

import tilecore as tilelang
import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore import interpreter
from tilecore.emulator import LATE
from tilecore.errors import ScopeError, TypeMismatch, UnsupportedOnTarget
from tilecore.intrinsics import TensorCoreIntrinEmitter, get_mma_micro_size
from tilecore.ir.nodes import LaneGemm
from tilecore.ir.visitor import walk

FLOAT16 = {"types": ("float16", "float16", "float32")}
CASES = {
    "float16": FLOAT16,
    "both turned": {**FLOAT16, "turned": (True, False)},
    "rounded sums": {"types": ("float16", "float16", "float16"), "turned": (False, False)},
    "bfloat16": {"types": ("bfloat16", "float32", "float32"), "size": (50, 40, 48)},
    "warps along N first": {**FLOAT16, "warps": (1, 4), "is_m_first": True},
    "int8": {"types": ("int8", "int32", "int32"), "chunk": 64},
    "uint8, turned": {"types": ("uint8", "int32", "int32"), "turned": (True, False)},
    "float32": {"types": ("float32", "float32", "float32"), "tile": (32, 24), "chunk": 16},
    "float64": {"types": ("float64", "float64", "float64"), "tile": (16, 16), "chunk": 16},
    "float8": {"types": ("float8_e4m3fn", "float32", "float32")},
    "depth 8": {**FLOAT16, "chunk": 8},
}


def product(
    types, turned=(False, True), size=(64, 48, 64), warps=(2, 2), tile=(32, 16), chunk=32,
    is_m_first=False, stored="tiles",
):  # fmt: skip
    """C = op(A) op(B), as example_gemm_intrinsics writes it; each second column twice."""
    dtype, out, sums = types
    turned_a, turned_b = turned  # A lies as (K, M), B as (N, K)
    emitter = TensorCoreIntrinEmitter(
        dtype, dtype, sums, turned_a, turned_b, *warps, *tile, chunk, is_m_first=is_m_first
    )
    M, N, K = size
    rows, columns = warps[0] * tile[0], warps[1] * tile[1]
    m, n, k = emitter.micro_size_x, emitter.micro_size_y, emitter.micro_size_k
    count = emitter.warp_rows * emitter.warp_cols * emitter.local_size_out

    @T.prim_func
    def main(
        A: T.Tensor((K, M) if turned_a else (M, K), dtype),
        B: T.Tensor((N, K) if turned_b else (K, N), dtype),
        C: T.Tensor((M, N), out),
    ):
        with T.Kernel(
            T.ceildiv(N, columns), T.ceildiv(M, rows), threads=emitter.threads
        ) as (bx, by):  # fmt: skip
            A_s = T.alloc_shared((chunk, rows) if turned_a else (rows, chunk), dtype)
            B_s = T.alloc_shared((columns, chunk) if turned_b else (chunk, columns), dtype)
            C_s = T.alloc_shared((rows // m, columns // n, m, n), out)
            A_l = T.alloc_local((emitter.warp_rows * emitter.local_size_a), dtype)
            B_l = T.alloc_local((emitter.warp_cols * emitter.local_size_b), dtype)
            C_l = T.alloc_local((count), sums)
            T.clear(C_l)
            for step in T.Pipelined(T.ceildiv(K, chunk), num_stages=2):
                if turned_a:
                    T.copy(A[step * chunk, by * rows], A_s)
                else:
                    T.copy(A[by * rows, step * chunk], A_s)
                if turned_b:
                    T.copy(B[bx * columns, step * chunk], B_s)
                else:
                    T.copy(B[step * chunk, bx * columns], B_s)
                for inner in T.serial(chunk // k):
                    emitter.ldmatrix_a(A_l, A_s, inner)
                    emitter.ldmatrix_b(B_l, B_s, inner)
                    emitter.mma(A_l, B_l, C_l)
            for i in T.serial(count // 2):  # a lane's elements are neighbours of a row
                C_l[2 * i + 1] = C_l[2 * i + 1] + C_l[2 * i + 1]
            if stored == "tensor":
                emitter.stmatrix(C_l, C, by, bx)
            else:
                emitter.stmatrix(C_l, C_s)
                for i, j in T.Parallel(rows, columns):
                    C[by * rows + i, bx * columns + j] = C_s[i // m, j // n, i % m, j % n]

    return main


def operands(types, turned=(False, True), size=(64, 48, 64), **_):
    """Return A, B, an empty C, and what it must hold."""
    dtype, out, _ = types
    M, N, K = size
    rng = np.random.default_rng(7)
    scalar = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    if dtype.endswith("int8"):
        a, b = (rng.integers(0, 7, s).astype(scalar) for s in ((M, K), (K, N)))
    else:
        a, b = ((rng.standard_normal(s) / 4).astype(scalar) for s in ((M, K), (K, N)))
    expected = a.astype(np.float64) @ b.astype(np.float64)
    expected[:, 1::2] *= 2
    a, b = (x.T.copy() if is_turned else x for x, is_turned in zip((a, b), turned, strict=True))
    return a, b, np.zeros((M, N), out), expected


def close(found, expected, types):
    narrow = {"float16": 4e-3, "float32": 1e-3 if types[0] == "float32" else 1e-5, "float64": 1e-12}
    error = np.abs(found.astype(np.float64) - expected).max()
    assert error <= narrow.get(types[2] if types[2] == "float16" else types[1], 0) * max(
        1.0, np.abs(expected).max()
    )


@pytest.mark.few(3)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_on_a_cpu(case):
    a, b, c, expected = operands(**case)
    func = product(**case)
    tilelang.compile(func, target="llvm")(a, b, c)
    close(c, expected, case["types"])


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_oracle_says_the_same(case):
    case = {**case, "size": (24, 20, 24)}
    a, b, c, expected = operands(**case)
    interpreter.run(product(**case), a, b, c)
    close(c, expected, case["types"])


@pytest.mark.few(3)
@pytest.mark.covering
@pytest.mark.parametrize("target", ["sm_80", "h100", "sm_120"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_on_a_gpu(case, target):
    func, kind = product(**case), case["types"][0]
    if target == "sm_80" and kind.startswith("float8"):
        with pytest.raises(UnsupportedOnTarget, match="it comes with sm_89"):
            lowered(func, target)
        return
    a, b, c, expected = operands(**case)
    run_emulated(func, target, [a, b, c], (LATE,))
    close(c, expected, case["types"])
    assert "tc_mma_m" in lowered(func, target)[2].text


def test_what_lanes_hold_goes_to_a_tensor_too():
    case = {**FLOAT16, "stored": "tensor", "size": (64, 32, 32)}
    a, b, c, expected = operands(**case)
    tilelang.compile(product(**case), target="llvm")(a, b, c)
    close(c, expected, case["types"])


def lanes(shape, kinds, types, counts, threads=32, is_branched=False):
    @T.prim_func
    def main(C: T.Tensor((threads,), types[2])):
        with T.Kernel(1, threads=threads):
            a = T.alloc_local((counts[0],), types[0])
            b = T.alloc_local((counts[1],), types[1])
            c = T.alloc_local((counts[2],), types[2])
            T.clear(a)
            T.clear(b)
            T.clear(c)
            T.ptx_mma("", shape, "row", "col", *kinds, a.data, 0, b.data, 0, c.data, 0)
            C[T.get_thread_binding(0)] = c[0]

    return main


HALF = ("m16n8k16", ("fp16", "fp16", "fp32"), ("float16", "float16", "float32"), (8, 4, 4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: "m16n8k32"}, "a product of float16 of 16x8x8, 16x8x16"),
        ({0: "wide"}, "a shape like"),
        ({1: ("bf16", "fp16", "fp32")}, "expected bfloat16 in `a`"),
        ({1: ("fp16", "bf16", "fp32"), 2: ("float16", "bfloat16", "float32")}, "B of a type like"),
        ({1: ("int32", "int32", "int32"), 2: ("int32",) * 3}, "A of float16, bfloat16"),
    ],
)
def test_what_is_no_such_product_is_refused(change, message):
    given = [change.get(n, value) for n, value in enumerate(HALF)]
    with pytest.raises(TypeMismatch, match=message):
        lanes(*given)


def test_where_there_is_none_of_it():
    with pytest.raises(UnsupportedOnTarget, match=r"it comes with sm_80"):
        lowered(lanes(*HALF), "rtx2080")
    with pytest.raises(UnsupportedOnTarget, match="warps of 32 threads of an NVIDIA GPU"):
        lowered(lanes(*HALF), "mi300x")
    with pytest.raises(UnsupportedOnTarget, match="warps of 32 threads"):
        lowered(lanes(*HALF, threads=48), "sm_80")
    with pytest.raises(ScopeError):
        T.ptx_mma("", "m16n8k16", "row", "col", "fp16", "fp16", "fp32", 0, 0, 0, 0, 0, 0)


def test_sizes_are_those_of_tilelang():
    emitter = TensorCoreIntrinEmitter(warp_row_tiles=64, warp_col_tiles=64, chunk=32)
    assert (emitter.warp_rows, emitter.warp_cols, emitter.threads) == (4, 4, 128)
    assert (emitter.local_size_a, emitter.local_size_b, emitter.local_size_out) == (8, 8, 8)
    assert get_mma_micro_size("int8") == (16, 16, 32)
    with pytest.raises(ValueError, match="multiples of 16 x 8"):
        TensorCoreIntrinEmitter(warp_row_tiles=24, warp_col_tiles=64)
    with pytest.raises(ValueError, match="8 bits and more"):
        TensorCoreIntrinEmitter(a_dtype="int4", warp_row_tiles=16)


def test_programs_with_them_travel():
    from tests.tilecore.test_document import again

    func = product(**FLOAT16)
    found = [s for s in walk(again(func).body) if isinstance(s, LaneGemm)]
    assert found
    assert found[0].shape == (16, 8, 16)
