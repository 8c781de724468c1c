"""batched_gemm and split_k_gemm of the library against float64 and torch."""

import numpy as np
import pytest

from tilecore import kernels, runtime
from tilecore.compiler import compile
from workers.correctness import compare, tolerance

BLOCKS = {"block_M": 32, "block_N": 48, "block_K": 64}


def check(name, artifacts, config, **values):
    definition = kernels.get(name)
    problem = definition.parse_problem(values)
    inputs = definition.inputs(problem, np.random.default_rng(0))
    (expected,) = definition.reference(problem, inputs)
    program = definition.program(problem, {**definition.default_config(), **config})
    found = np.full(expected.shape, np.nan, inputs[0].dtype)
    runtime.load(compile(program, store=artifacts))(*inputs, found)
    dtype = str(problem["dtype"])
    rtol, atol = tolerance(dtype, "float32", definition.reduction_length(problem))
    report = compare(found, expected, rtol, atol)
    assert report.passed, report.detail
    rival = definition.rival(problem, inputs)().float().numpy()
    np.testing.assert_allclose(rival, expected, rtol=max(rtol, 1e-4), atol=max(atol, 1e-3))


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("batch", "m", "n", "k"), [(3, 33, 50, 70), (1, 5, 100, 129)])
def test_batches(batch, m, n, k, dtype, transposed, artifacts):
    flags = dict(zip(("transpose_a", "transpose_b"), transposed, strict=True))
    kinds = {"dtype": dtype, "out_dtype": dtype}
    check("batched_gemm", artifacts, BLOCKS, batch=batch, m=m, n=n, k=k, **kinds, **flags)


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(("splits", "k"), [(2, 1000), (4, 130), (8, 100)])
def test_parts_of_k(splits, k, transposed, artifacts):
    """Of 100 products in steps of 64, six of eight parts get none."""
    flags = dict(zip(("transpose_a", "transpose_b"), transposed, strict=True))
    check("split_k_gemm", artifacts, {**BLOCKS, "splits": splits}, m=20, n=70, k=k, **flags)


def test_parts_of_k_in_bfloat16(artifacts):
    kinds = {"dtype": "bfloat16", "out_dtype": "bfloat16"}
    check("split_k_gemm", artifacts, {**BLOCKS, "splits": 4}, m=33, n=40, k=500, **kinds)
