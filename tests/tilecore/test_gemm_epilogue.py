"""gemm_epilogue of the library against float64, torch and the oracle."""

import numpy as np
import pytest

from tilecore import kernels, runtime
from tilecore.compiler import compile, lower
from tilecore.errors import InvalidProblem
from tilecore.interpreter import run
from tilecore.kernels.gemm_epilogue import ACTIVATIONS
from tilecore.target import parse_target
from workers.correctness import compare, tolerance

DEFINITION = kernels.get("gemm_epilogue")
BLOCK = {"block_M": 16, "block_N": 32, "block_K": 16}


def built(problem, artifacts, **knobs):
    config = {**DEFINITION.default_config(), **BLOCK, **knobs}
    return runtime.load(compile(DEFINITION.program(problem, config), config=knobs, store=artifacts))


def check(found, problem, inputs):
    k = DEFINITION.reduction_length(problem)
    bounds = tolerance(problem["out_dtype"], "float32", k)
    report = compare(found, DEFINITION.reference(problem, inputs)[0], *bounds)
    assert report.passed, report.detail


@pytest.mark.few(1)
@pytest.mark.covering("dtype shape")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("shape", "trans_b", "bias", "residual"),
    [
        ((37, 50, 45), True, True, False),
        ((16, 64, 33), False, False, True),
        ((3, 7, 5), True, True, True),
    ],
)
def test_activations_of_ragged_products(
    activation, dtype, shape, trans_b, bias, residual, artifacts
):
    problem = DEFINITION.parse_problem(
        dict(zip("mnk", shape, strict=True), dtype=dtype, out_dtype=dtype, bias=bias,
             transpose_b=trans_b, activation=activation, residual=residual)
    )  # fmt: skip
    inputs = DEFINITION.inputs(problem, np.random.default_rng(0))
    found = np.full(shape[:2], np.nan, inputs[0].dtype)
    built(problem, artifacts)(*inputs, found)
    check(found, problem, inputs)


def test_the_oracle_and_the_rival_agree():
    for activation in ACTIVATIONS:
        problem = DEFINITION.parse_problem(
            {"m": 9, "n": 21, "k": 18, "activation": activation, "residual": True}
        )
        inputs = DEFINITION.inputs(problem, np.random.default_rng(1))
        found = np.full((9, 21), np.nan, np.float32)
        run(DEFINITION.program(problem, {**DEFINITION.default_config(), **BLOCK}), *inputs, found)
        check(found, problem, inputs)
        check(DEFINITION.rival(problem, inputs)().numpy(), problem, inputs)


def test_what_is_not_asked_for_may_be_none(artifacts):
    problem = DEFINITION.parse_problem({"m": 20, "n": 40, "k": 8, "bias": False})
    inputs = DEFINITION.inputs(problem, np.random.default_rng(2))
    found = np.full((20, 40), np.nan, np.float32)
    built(problem, artifacts)(*inputs[:2], None, None, found)
    check(found, problem, inputs)


def test_nan_and_infinity_pass_through(artifacts):
    problem = DEFINITION.parse_problem(
        {"m": 4, "n": 32, "k": 4, "activation": "relu", "bias": False}
    )
    a, b, *rest = DEFINITION.inputs(problem, np.random.default_rng(3))
    a[1, 2], a[2, 0] = np.inf, -np.inf
    found = np.full((4, 32), np.nan, np.float32)
    built(problem, artifacts)(a, b, *rest, found)
    np.testing.assert_allclose(found, np.maximum(a @ b, 0), rtol=1e-5, atol=1e-6)


def test_the_epilogue_runs_in_vectors_where_the_sums_are():
    problem = DEFINITION.parse_problem({"m": 32, "n": 64, "k": 16})
    program = DEFINITION.program(problem, {**DEFINITION.default_config(), **BLOCK})
    plan, tir = lower(program, parse_target("avx512"), {})
    assert "accumulated in the output itself" in plan.explain()
    assert "tilecore_erf_float32_x16" in str(tir)


def test_an_unknown_activation_is_named():
    with pytest.raises(InvalidProblem, match=r"activation.*one of none, relu.*'swish'"):
        DEFINITION.parse_problem({"m": 1, "n": 1, "k": 1, "activation": "swish"})


def test_counts():
    problem = DEFINITION.parse_problem({"m": 4, "n": 6, "k": 8, "residual": True})
    assert DEFINITION.traffic_bytes(problem) == 4 * (32 + 48 + 24 + 6 + 24)
    assert DEFINITION.work_flop(problem) == 2 * 4 * 6 * 8
