"""Weights of 4 bits decoded by look-ups: sixteen values for all that share a scale and a zero."""

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.x86_paths import here, paths
from tilecore import runtime
from tilecore.compiler import compile, lower
from tilecore.interpreter import run
from tilecore.target import AVX512, parse_target

FULL = AVX512.using({"avx512_bf16", "avx512_vnni"})
PATHS = paths("avx2", "avx512", "avx512+avx512_bf16+avx512_vnni")
N, K = 40, 256


@T.macro
def zeros_and_scales(code, s, z, lut, i, at, group):
    return (T.cast(code, "float32") - z[i, at // group]) * s[i, at // group]


@T.macro
def centred(code, s, z, lut, i, at, group):
    return (T.cast(code, "int32") - 8) * s[i, at // group]


@T.macro
def of_a_table(code, s, z, lut, i, at, group):
    return lut[code] * s[i, at // group]


@T.macro
def of_its_place(code, s, z, lut, i, at, group):
    """What an element is depends on more than its code."""
    return (T.cast(code, "float32") - T.cast(at % 3, "float32")) * s[i, at // group]


def program(m, dtype, value, group=64, high_first=False, codes="uint8", transposed=True):
    block_n, block_k = 32, 128

    @T.prim_func
    def main(
        A: T.Tensor((m, K), dtype), W: T.Tensor((N, K // 2), codes),
        S: T.Tensor((N, K // group), "float32"), Z: T.Tensor((N, K // group), "float32"),
        Lut: T.Tensor((16,), "float32"), C: T.Tensor((m, N), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, block_n), threads=128) as bx:
            a = T.alloc_shared((m, block_k), dtype)
            w = T.alloc_shared((block_n, block_k // 2), codes)
            b = T.alloc_shared((block_n, block_k), dtype)
            lut = T.alloc_shared((16,), "float32")
            c = T.alloc_fragment((m, block_n), "float32")
            T.copy(Lut, lut)
            T.clear(c)
            for ko in T.Pipelined(K // block_k, num_stages=2):
                T.copy(A[0, ko * block_k], a)
                T.copy(W[bx * block_n, ko * block_k // 2], w)
                for i, j in T.Parallel(block_n, block_k):
                    half = (j + 1) % 2 if high_first else j % 2
                    code = (w[i, j // 2] >> T.cast(half * 4, codes)) & T.cast(15, codes)
                    b[i, j] = value(code, S, Z, lut, bx * block_n + i, ko * block_k + j, group)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[0, bx * block_n])

    return main


def tensors(m, dtype, group, codes):
    rng = np.random.default_rng(8)
    kind = np.dtype(getattr(ml_dtypes, dtype)) if dtype == "bfloat16" else np.dtype(dtype)
    a = (rng.standard_normal((m, K)) / 16).astype(kind)
    w = rng.integers(0, 256, (N, K // 2)).astype(np.uint8).view(codes)
    s = (rng.random((N, K // group)) / 8).astype(np.float32)
    z = rng.integers(0, 16, s.shape).astype(np.float32)
    return [a, w, s, z, rng.standard_normal(16).astype(np.float32)]


def check(func, inputs, path="avx512+avx512_bf16+avx512_vnni"):
    wanted, found = np.zeros((2, inputs[0].shape[0], N), np.float32)
    run(func, *inputs, wanted)
    runtime.load(compile(func, target=here(path)))(*inputs, found)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=2e-3)


@pytest.mark.few(5)
@pytest.mark.covering("dtype value")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
@pytest.mark.parametrize("value", [zeros_and_scales, centred, of_a_table, of_its_place])
def test_values_are_those_of_the_oracle(value, dtype, path):
    for m in (1, 16):
        check(program(m, dtype, value), tensors(m, dtype, 64, "uint8"), path)


@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("high_first", [False, True])
@pytest.mark.parametrize("codes", ["uint8", "int8"])
@pytest.mark.parametrize("group", [16, 32, 128])
def test_orders_types_and_groups(group, codes, high_first, dtype):
    for m in (1, 5):
        func = program(m, dtype, zeros_and_scales, group, high_first, codes)
        check(func, tensors(m, dtype, group, codes))


@pytest.mark.parametrize(
    ("m", "value", "group", "looks_up"),
    [
        (1, zeros_and_scales, 64, True),
        (16, zeros_and_scales, 64, True),
        (1, centred, 64, True),
        (16, centred, 64, True),
        (1, of_a_table, 64, True),
        (1, zeros_and_scales, 8, False),  # a vector has elements of several groups
        (16, zeros_and_scales, 8, False),
        (1, of_its_place, 64, False),
    ],
)
def test_what_is_looked_up(m, value, group, looks_up):
    _, tir = lower(program(m, "bfloat16", value, group), FULL, {})
    assert ("tilecore_entries_uint16_low" in tir.script()) == looks_up


def test_registers_of_256_bits_look_nothing_up():
    _, tir = lower(program(1, "float32", centred), parse_target("avx2"), {})
    assert "tilecore_entries" not in tir.script()
