"""Groups of rows that meet all panels of the vector operand before the next group does."""

from __future__ import annotations

import numpy as np
import pytest

import tilecore.language as T
from tilecore import kernels, runtime
from tilecore.compiler import compile
from tilecore.interpreter import run

GEMM = kernels.get("gemm")


def product(m, n, k, **fields):
    knobs = {**GEMM.default_config(), "block_M": 40, "block_N": 256, "block_K": 64}
    return GEMM.program(GEMM.parse_problem({"m": m, "n": n, "k": k, **fields}), knobs)


def notes(func, artifacts, **config):
    return "\n".join(compile(func, "avx512", config, artifacts).manifest.notes)


@pytest.mark.few(1)
@pytest.mark.covering("pack_a pack_b", "pack_a shape", "trans pack_b")
@pytest.mark.parametrize("pack_a", ["none", "rows", "block"])
@pytest.mark.parametrize("pack_b", ["block", "grid"])
@pytest.mark.parametrize("shape", [(1, 300, 70), (41, 256, 64), (97, 517, 131)])
@pytest.mark.parametrize("trans", [(False, False), (False, True), (True, False)])
def test_wide_tiles_are_right_at_ragged_edges(artifacts, shape, pack_a, pack_b, trans):
    (m, n, k), (trans_a, trans_b) = shape, trans
    rng = np.random.default_rng(m)
    func = product(m, n, k, transpose_a=trans_a, transpose_b=trans_b)
    a = rng.standard_normal((k, m) if trans_a else (m, k), np.float32)
    b = rng.standard_normal((n, k) if trans_b else (k, n), np.float32)
    out, expected = (np.full((m, n), np.nan, np.float32) for _ in range(2))
    config = {"pack_a": pack_a, "pack_b": pack_b}
    runtime.load(compile(func, config=config, store=artifacts))(a, b, out)
    run(func, a, b, expected, seed=1)
    exact = (a.T if trans_a else a).astype(np.float64) @ (b.T if trans_b else b)
    np.testing.assert_allclose(out, exact, atol=2e-4)
    np.testing.assert_allclose(out, expected, atol=2e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_rows_are_widened_where_they_are_copied(artifacts, dtype):
    func = product(50, 300, 90, dtype=dtype, out_dtype="float32")
    a, b = GEMM.inputs(
        GEMM.parse_problem({"m": 50, "n": 300, "k": 90, "dtype": dtype}), np.random.default_rng(0)
    )
    out = np.full((50, 300), np.nan, np.float32)
    artifact = compile(func, "avx2", {"pack_a": "rows"}, artifacts)
    assert "by groups of rows" in "\n".join(artifact.manifest.notes)
    runtime.load(artifact)(a, b, out)
    np.testing.assert_allclose(out, a.astype(np.float64) @ b.astype(np.float64), atol=1e-4)


def test_groups_are_copied_where_enough_panels_use_them(artifacts):
    staged = "A_shared (shared): read from A, by groups of rows"
    wide, transposed = product(64, 256, 64), product(64, 256, 64, transpose_a=True)
    assert staged in notes(wide, artifacts)
    assert staged not in notes(wide, artifacts, micro_n=8, micro_m=2)  # two panels
    assert staged in notes(wide, artifacts, micro_n=8, micro_m=2, pack_a="rows")
    assert staged not in notes(transposed, artifacts, pack_a="rows")


def test_memory_need_not_be_aligned(artifacts):
    kernel = runtime.load(compile(product(45, 300, 70), config={"pack_a": "rows"}, store=artifacts))
    rng = np.random.default_rng(5)
    buffers = [rng.standard_normal(size + 1, np.float32) for size in (45 * 70, 70 * 300, 45 * 300)]
    a, b, out = (x[1:] for x in buffers)
    a, b, out = a.reshape(45, 70), b.reshape(70, 300), out.reshape(45, 300)
    kernel(a, b, out)
    np.testing.assert_allclose(out, a.astype(np.float64) @ b, atol=2e-4)


def test_nan_and_infinity_come_through(artifacts):
    a, b = np.ones((30, 200), np.float32), np.ones((200, 260), np.float32)
    a[3, 7], a[5, 150], b[9, 4], b[199, 259] = np.nan, np.inf, -np.inf, np.inf
    out = np.zeros((30, 260), np.float32)
    runtime.load(compile(product(30, 260, 200), store=artifacts))(a, b, out)
    with np.errstate(invalid="ignore"):
        exact = a.astype(np.float64) @ b
    np.testing.assert_array_equal(out, exact)


def test_two_products_share_a_tile_that_is_copied_whole(artifacts):
    @T.prim_func
    def main(
        A: T.Tensor((40, 48), "float32"),
        B: T.Tensor((48, 256), "float32"),
        D: T.Tensor((48, 256), "float32"),
        C: T.Tensor((40, 256), "float32"),
    ):
        with T.Kernel(1) as _:
            a = T.alloc_shared((40, 48), "float32")
            b = T.alloc_shared((48, 256), "float32")
            d = T.alloc_shared((48, 256), "float32")
            c = T.alloc_fragment((40, 256), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.copy(D, d)
            T.gemm(a, b, c, clear_accum=True)
            T.gemm(a, d, c)
            T.copy(c, C)

    rng = np.random.default_rng(2)
    a, b, d = (rng.standard_normal(s, np.float32) for s in ((40, 48), (48, 256), (48, 256)))
    out = np.full((40, 256), np.nan, np.float32)
    artifact = compile(main, store=artifacts)
    assert "by groups of rows" not in "\n".join(artifact.manifest.notes)
    runtime.load(artifact)(a, b, d, out)
    np.testing.assert_allclose(out, a.astype(np.float64) @ (b.astype(np.float64) + d), atol=2e-4)
