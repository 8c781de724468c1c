"""Entries of small tables, picked lane by lane: right values, in vectors, on every vector width."""

import subprocess

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.x86_paths import here, is_native, paths
from tilecore import kernels, runtime
from tilecore.compiler import compile
from tilecore.interpreter import run
from tilecore.ir.dtype import DType

PATHS = paths("avx2", "avx512")


def lookup(n, size, dtype, mask):
    @T.prim_func
    def main(
        A: T.Tensor((n,), "int32"),
        L: T.Tensor((size,), dtype),
        B: T.Tensor((n,), "float32"),
        C: T.Tensor((n,), dtype),
    ):
        with T.Kernel(1):
            for i in T.Parallel(n):
                word = A[i]
                B[i] = L[(word >> 4) & mask] * 2
            for i in T.Parallel(n):
                C[i] = L[A[i] & mask]

    return main


def instructions(artifact):
    found = subprocess.run(
        ["objdump", "-d", f"{artifact.path}/kernel.so"], capture_output=True, text=True, check=True
    )
    return found.stdout


@pytest.mark.few(1)
@pytest.mark.covering("dtype size")
@pytest.mark.parametrize("n", [7, 8, 50, 64])
@pytest.mark.parametrize("size", [2, 4, 8, 16])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("path", PATHS)
def test_lanes_pick_entries(artifacts, path, dtype, size, n):
    rng = np.random.default_rng(size)
    words = rng.integers(-(2**31), 2**31, n).astype(np.int32)
    table = rng.standard_normal(size).astype(DType(dtype).numpy)
    table[0], table[-1] = -np.inf, np.nan
    doubled, picked = np.zeros(n, np.float32), np.zeros(n, table.dtype)
    func = lookup(n, size, dtype, size - 1)
    artifact = compile(func, here(path), store=artifacts)
    runtime.load(artifact)(words, table, doubled, picked)
    with np.errstate(invalid="ignore"):
        wanted = table[(words >> 4) & (size - 1)].astype(np.float32) * 2
    np.testing.assert_array_equal(doubled, wanted)
    expected = table[words & (size - 1)].astype(np.float32)
    np.testing.assert_array_equal(picked.astype(np.float32), expected)
    if n >= 32 and is_native(path):
        assert "vperm" in instructions(artifact)


def test_an_index_that_may_leave_the_table_is_not_picked(artifacts):
    func = lookup(64, 8, "float32", 15)  # entries 8 to 15 do not exist: they read as 0
    words, table = np.arange(64, dtype=np.int32), np.arange(1, 9, dtype=np.float32)
    found = [np.full(64, np.nan, np.float32) for _ in range(4)]
    runtime.load(compile(func, store=artifacts))(words, table, *found[:2])
    run(func, words, table, *found[2:])
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_array_equal(found[1], found[3])
    assert (found[1][8:16] == 0).all()


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("shape", [(1, 130, 200), (3, 64, 128), (33, 50, 77), (16, 200, 300)])
def test_codes_are_decoded_by_shuffles_of_bytes(artifacts, shape, zeros):
    definition = kernels.get("dequant_gemm")
    fields = dict(zip("mnk", shape, strict=True), zeros=zeros, format="nf4", out_dtype="float32")
    problem = definition.parse_problem(fields)
    inputs = definition.inputs(problem, np.random.default_rng(0))
    for rows in (1, 4, 32):
        program = definition.program(problem, {**definition.default_config(), "block_M": rows})
        artifact = compile(program, "avx2", {}, artifacts)
        found = np.full(shape[:2], np.nan, np.float32)
        runtime.load(artifact)(*inputs, found)
        np.testing.assert_allclose(found, definition.reference(problem, inputs)[0], atol=2e-4)
        assert "vpshufb" in instructions(artifact)


@pytest.mark.few(1)
@pytest.mark.parametrize(("shifts", "depth"), [("pairs", 8), ("turn", 8), ("back", 8), ("two", 2)])
@pytest.mark.parametrize("path", PATHS)
def test_codes_in_every_order_of_a_word(artifacts, path, shifts, depth):
    bits = {
        "pairs": lambda k: 4 * ((k % 8) // 2) + 16 * (k % 2),
        "turn": lambda k: 4 * (k % 8),
        "back": lambda k: 28 - 4 * (k % 8),
        "two": lambda k: 16 * (k % 2),
    }[shifts]

    @T.prim_func
    def main(
        A: T.Tensor((4, 16), "bfloat16"),
        W: T.Tensor((16 // depth, 64), "int32"),
        L: T.Tensor((16,), "bfloat16"),
        C: T.Tensor((4, 64), "float32"),
    ):
        with T.Kernel(1):
            a = T.alloc_shared((4, 16), "bfloat16")
            b = T.alloc_shared((16, 64), "bfloat16")
            c = T.alloc_fragment((4, 64), "float32")
            T.copy(A, a)
            for k, n in T.Parallel(16, 64):
                b[k, n] = L[(W[k // depth, n] >> bits(k)) & 15]
            T.gemm(a, b, c, clear_accum=True)
            T.copy(c, C)

    rng = np.random.default_rng(3)
    a = rng.standard_normal((4, 16), np.float32).astype(DType("bfloat16").numpy)
    table = rng.standard_normal(16).astype(a.dtype)
    words = rng.integers(-(2**31), 2**31, (16 // depth, 64)).astype(np.int32)
    rows = np.arange(16)
    codes = (words[rows // depth] >> np.array([bits(k) for k in range(16)])[:, None]) & 15
    wanted = a.astype(np.float64) @ table[codes].astype(np.float64)
    found = np.full((4, 64), np.nan, np.float32)
    runtime.load(compile(main, here(path), store=artifacts))(a, words, table, found)
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    if shifts in ("pairs", "two"):  # one permutation for both rows
        assert "vpermw" in instructions(compile(main, "avx512+avx512_bf16", store=artifacts))
