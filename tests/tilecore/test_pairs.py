"""Weights that products alone read are rounded to bfloat16 in pairs of vectors."""

from __future__ import annotations

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.x86_paths import here
from tilecore import runtime
from tilecore.codegen.llvm import generate
from tilecore.compiler import compile, lower
from tilecore.ir.dtype import DType
from tilecore.target import parse_target

TILES = "avx512+amx_bf16+amx_tile"
BFLOAT = DType("bfloat16").numpy


def weighed(keys):
    @T.prim_func
    def main(
        S: T.Tensor((32, keys), "float32"),
        V: T.Tensor((keys, 32), "bfloat16"),
        Sums: T.Tensor((32,), "float32"),
        O: T.Tensor((32, 32), "float32"),  # noqa: E741
    ):
        with T.Kernel(1) as _:
            scores = T.alloc_fragment((32, keys), "float32")
            weights = T.alloc_fragment((32, keys), "bfloat16")
            v = T.alloc_shared((keys, 32), "bfloat16")
            sums = T.alloc_fragment((32,), "float32")
            out = T.alloc_fragment((32, 32), "float32")
            T.copy(S, scores)
            T.copy(V, v)
            for i, j in T.Parallel(32, keys):
                scores[i, j] = T.exp2(scores[i, j])
            T.reduce_sum(scores, sums, dim=1)
            T.copy(scores, weights)
            T.gemm(weights, v, out, clear_accum=True)
            T.copy(sums, Sums)
            T.copy(out, O)

    return main


def test_one_instruction_rounds_two_vectors():
    target = parse_target(TILES)
    for keys, name in ((64, "vcvtne2ps2bf16"), (48, "vcvtneps2bf16")):
        _, tir = lower(weighed(keys), target, {})
        assert f"\t{name}\t" in generate(tir, target).inspect_source("asm")


@pytest.mark.few(1)
@pytest.mark.parametrize("keys", [32, 48, 64, 96, 160])
def test_weights_keep_their_places(artifacts, keys):
    rng = np.random.default_rng(keys)
    scores = rng.standard_normal((32, keys), np.float32)
    scores[3, 7], scores[5, keys - 1], scores[9, 20] = np.inf, np.nan, -np.inf
    v = rng.standard_normal((keys, 32), np.float32).astype(BFLOAT)
    sums, out = np.zeros(32, np.float32), np.zeros((32, 32), np.float32)
    runtime.load(compile(weighed(keys), here(TILES), store=artifacts))(scores, v, sums, out)
    exact = np.exp2(scores.astype(np.float64))
    np.testing.assert_allclose(sums, exact.sum(1), rtol=1e-5)
    with np.errstate(invalid="ignore"):
        expected = exact.astype(np.float32).astype(BFLOAT).astype(np.float64) @ v.astype(np.float64)
    rows = np.isfinite(expected).all(1)
    assert rows.sum() == 30
    np.testing.assert_allclose(out[rows], expected[rows], rtol=1e-2, atol=1e-2)
    assert np.isnan(out[5]).all()
    np.testing.assert_array_equal(out[3], expected[3])
