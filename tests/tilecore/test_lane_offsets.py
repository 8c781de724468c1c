"""Quotients and remainders of what runs over lanes: known offsets, vectors, right values."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilecore.language as T
from tests.tilecore.x86_paths import here, paths
from tilecore import runtime
from tilecore.compiler import compile, lower
from tilecore.ir.arithmetic.lane_offsets import lane_offsets, lane_values
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Var, binary
from tilecore.target import parse_target

PATHS = paths("avx2", "avx512")
J, K = Var("j"), Var("k")
OPS = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b,
    "shr": lambda a, b: a >> b, "bitand": lambda a, b: a & b,
}  # fmt: skip
NUMBERS = {"shr": st.integers(0, 6), "bitand": st.sampled_from([0, 1, 3, 7, 31, 127])}


def value(expr, names):
    if isinstance(expr, Var):
        return names[expr]
    if hasattr(expr, "op"):
        return OPS[expr.op](value(expr.a, names), value(expr.b, names))
    return int(expr.value)


@st.composite
def indices(draw, depth=4):
    kind = draw(st.sampled_from(["var", *OPS])) if depth else "var"
    if kind == "var":
        return draw(st.sampled_from([J, J, K, binary("mul", K, 16), binary("mul", K, 128)]))
    inner = draw(indices(depth=depth - 1))
    if kind in ("add", "sub") and draw(st.booleans()):
        return binary(kind, inner, draw(indices(depth=depth - 1)))
    return binary(kind, inner, draw(NUMBERS.get(kind, st.integers(1, 160))))


@settings(max_examples=300, deadline=None)
@given(indices(), st.sampled_from([4, 8, 16]))
def test_what_is_told_of_lanes_holds_in_every_vector(expr, lanes):
    offsets, values = (f(expr, J, lanes) for f in (lane_offsets, lane_values))
    for first in range(0, 40 * lanes, lanes):
        for k in (0, 1, 5, 1000):
            each = [value(expr, {J: first + lane, K: k}) for lane in range(lanes)]
            assert offsets is None or [each[0] + x for x in offsets] == each
            assert values is None or list(values) == each


@pytest.mark.parametrize(
    ("expr", "offsets"),
    [
        (binary("floordiv", J, 2), (0, 0, 1, 1)),
        (binary("mod", binary("add", binary("mul", K, 8), J), 2), (0, 1, 0, 1)),
        (binary("floordiv", binary("add", binary("mul", K, 128), J), 32), (0, 0, 0, 0)),
        (binary("mod", binary("add", J, 64), 128), (0, 1, 2, 3)),
        (binary("floordiv", J, 3), None),
        (binary("floordiv", binary("add", K, J), 2), None),
    ],
)
def test_offsets_of_four_lanes(expr, offsets):
    assert lane_offsets(expr, J, 4) == offsets


def looked_at(n, dtype):
    """Return a program that reads and stores by quotients and remainders of its last axis."""

    @T.prim_func
    def main(
        A: T.Tensor((3, n), dtype), B: T.Tensor((3, n), dtype), C: T.Tensor((3, n), dtype),
        D: T.Tensor((3, n), "int32"),
    ):  # fmt: skip
        with T.Kernel(3) as b:
            for j in T.Parallel(n):
                B[b, j] = A[b, j // 4] + A[b, j % 8]
            for j in T.Parallel(n):
                C[b, (j + n // 2) % n] = A[b, n // 2 + j // 2 - (j & 1)]
            for j in T.Parallel(n):
                D[b, j] = T.if_then_else(j % 4 == 1, (j // 8) * 3 + j % 2, -(j >> 1))

    return main


@pytest.mark.few(1)
@pytest.mark.parametrize("n", [16, 64, 96, 100, 160])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float64"])
@pytest.mark.parametrize("path", PATHS)
def test_values_by_quotients_and_remainders(artifacts, path, dtype, n):
    kind = DType(dtype).numpy
    a = np.random.default_rng(n).integers(-9, 9, (3, n)).astype(kind)
    b, c, d = np.zeros((3, n), kind), np.zeros((3, n), kind), np.zeros((3, n), np.int32)
    runtime.load(compile(looked_at(n, dtype), here(path), store=artifacts))(a, b, c, d)
    j = np.arange(n)
    np.testing.assert_array_equal(b, a[:, j // 4] + a[:, j % 8])
    np.testing.assert_array_equal(c[:, (j + n // 2) % n], a[:, n // 2 + j // 2 - (j & 1)])
    np.testing.assert_array_equal(d[0], np.where(j % 4 == 1, (j // 8) * 3 + j % 2, -(j >> 1)))


@pytest.mark.few(1)
@pytest.mark.parametrize("path", PATHS)
def test_indices_that_leave_a_tensor_are_looked_at_lane_by_lane(artifacts, path):
    @T.prim_func
    def main(A: T.Tensor((20,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1):
            for j in T.Parallel(64):
                B[j] = A[j // 2 - 5]

    a, b = np.arange(1, 21, dtype=np.float32), np.zeros(64, np.float32)
    runtime.load(compile(main, here(path), store=artifacts))(a, b)
    at = np.arange(64) // 2 - 5
    np.testing.assert_array_equal(b, np.where((at >= 0) & (at < 20), a[at.clip(0, 19)], 0))


def dequantised(m, n, k, group, dtype="float32", tile=(32, 64)):
    """Return A @ W.T: weights of 4 bits, a scale and a zero point for a group of a row."""
    block_n, block_k = tile

    @T.prim_func
    def main(
        A: T.Tensor((m, k), dtype), W: T.Tensor((n, k // 2), "uint8"),
        S: T.Tensor((n, k // group), "float32"), Z: T.Tensor((n, k // group), "float32"),
        C: T.Tensor((m, n), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(n, block_n), threads=128) as bx:
            a = T.alloc_shared((m, block_k), dtype)
            b = T.alloc_shared((block_n, block_k), dtype)
            c = T.alloc_fragment((m, block_n), "float32")
            T.clear(c)
            for ko in T.serial(T.ceildiv(k, block_k)):
                T.copy(A[0, ko * block_k], a)
                for i, j in T.Parallel(block_n, block_k):
                    row, at = bx * block_n + i, ko * block_k + j
                    code = (W[row, at // 2] >> T.cast((at % 2) * 4, "uint8")) & T.cast(15, "uint8")
                    b[i, j] = (T.cast(code, "float32") - Z[row, at // group]) * S[row, at // group]
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[0, bx * block_n])

    return main


@pytest.mark.few(1)
@pytest.mark.covering("m dtype", "m shape")
@pytest.mark.parametrize("path", [*PATHS, *paths("avx512+avx512_bf16")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(64, 128, 32), (40, 96, 16), (33, 64, 64)], ids=str)
@pytest.mark.parametrize("m", [1, 3, 5, 17])
def test_products_of_dequantised_rows(artifacts, path, dtype, shape, m):
    n, k, group = shape
    kind, rng = DType(dtype).numpy, np.random.default_rng(m)
    a = rng.standard_normal((m, k), np.float32).astype(kind)
    codes = rng.integers(0, 16, (n, k)).astype(np.uint8)
    scales = rng.integers(1, 9, (n, k // group)).astype(np.float32) / 4
    zeros = rng.integers(0, 16, (n, k // group)).astype(np.float32)
    packed, c = codes[:, ::2] | (codes[:, 1::2] << 4), np.zeros((m, n), np.float32)
    artifact = compile(dequantised(m, n, k, group, dtype), here(path), store=artifacts)
    runtime.load(artifact)(a, packed, scales, zeros, c)
    weights = (codes - zeros.repeat(group, 1)) * scales.repeat(group, 1)
    wanted = a.astype(np.float64) @ weights.astype(kind).astype(np.float64).T
    np.testing.assert_allclose(c, wanted, rtol=1e-5, atol=1e-3)


def test_pieces_of_rows_that_lanes_share_are_fetched_ahead():
    fetches = [
        str(lower(dequantised(1, n, 4096, 128), parse_target("avx2"), {})[1]).count(
            "tilecore_fetch_2"
        )
        for n in (1024, 32)  # the smaller tensor stays in a cache
    ]
    assert fetches[0] > fetches[1]


@pytest.mark.parametrize(("m", "form"), [(3, "lanes run along K"), (16, "lanes run along N")])
def test_pairs_of_dequantised_rows_go_to_the_instruction(m, form):
    target = parse_target("avx512+avx512_bf16")
    plan, tir = lower(dequantised(m, 64, 128, 32, "bfloat16"), target, {})
    assert form in plan.explain()
    assert "vdpbf16ps" in plan.explain()
    assert "tilecore_bfloat16_x16" in str(tir)


@pytest.mark.parametrize("path", ["avx2", "avx512"])
@pytest.mark.parametrize(("m", "is_moved"), [(1, False), (4, False), (16, True)])
def test_rows_are_computed_in_vectors_and_moved_across_for_many_rows(path, m, is_moved):
    target = parse_target(path)
    plan, tir = lower(dequantised(m, 64, 128, 32), target, {})
    text = str(tir)
    assert "tilecore_spread1_i8" in text
    lanes = target.lanes("float32")
    stages = lanes.bit_length() - 1
    assert (text.count("T.Shuffle([t") == stages * lanes) == is_moved
    assert ("lanes run along K" in plan.explain()) == (not is_moved)
