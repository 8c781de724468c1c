"""linear_attention of the library against float64 and torch."""

import numpy as np
import pytest

from tilecore import kernels, runtime
from tilecore.compiler import compile
from workers.correctness import compare, tolerance

LINEAR = kernels.get("linear_attention")
SHAPES = {
    "tails": {"seq_len": 100, "dim": 40, "dim_v": 24},
    "shorter than a chunk": {"seq_len": 5, "dim": 32, "dim_v": 32},
    "whole chunks": {"seq_len": 128, "dim": 32, "dim_v": 64},
}


def problem_of(name, **more):
    return LINEAR.parse_problem({"batch": 2, "heads": 3, **SHAPES[name], **more})


def run(problem, inputs, artifacts):
    found = np.full(LINEAR.reference(problem, inputs)[0].shape, np.nan, inputs[0].dtype)
    program = LINEAR.program(problem, {**LINEAR.default_config(), "chunk": 32, "block_DV": 32})
    runtime.load(compile(program, store=artifacts))(*inputs, found)
    return found


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_against_float64(name, dtype, artifacts):
    problem = problem_of(name, dtype=dtype)
    inputs = LINEAR.inputs(problem, np.random.default_rng(0))
    length, rounded = LINEAR.reduction_length(problem), LINEAR.rounded_dtype(problem)
    limits = tolerance(dtype, "float32", length, rounded)
    expected = LINEAR.reference(problem, inputs)[0]
    report = compare(run(problem, inputs, artifacts), expected, *limits)
    assert report.passed, report.detail


def test_the_rival_computes_the_same():
    problem = problem_of("whole chunks")
    inputs = LINEAR.inputs(problem, np.random.default_rng(0))
    expected = LINEAR.reference(problem, inputs)[0]
    np.testing.assert_allclose(LINEAR.rival(problem, inputs)(), expected, atol=1e-5)
    assert LINEAR.rival(problem_of("tails"), inputs) is None


def test_nan_reaches_later_rows_only(artifacts):
    problem = problem_of("tails")
    q, k, v = LINEAR.inputs(problem, np.random.default_rng(0))
    k[1, 2, 40, 3] = np.nan  # of the second chunk of 32, whose rows from 40 on see it
    found = run(problem, (q, k, v), artifacts)
    assert np.isnan(found[1, 2, 40:]).all()
    found[1, 2, 40:] = 0
    assert not np.isnan(found).any()


def test_counts():
    problem = problem_of("whole chunks")
    assert LINEAR.work_flop(problem) == 2 * 6 * 128 * (64 * (32 + 64) + 2 * 32 * 64)
    assert LINEAR.traffic_bytes(problem) == 4 * 2 * 6 * 128 * (32 + 64)
