"""attention_backward of the library against float64 and torch's autograd."""

import numpy as np
import pytest

from tilecore import kernels, runtime
from tilecore.compiler import compile
from workers.correctness import compare, tolerance

BACKWARD = kernels.get("attention_backward")
SHAPES = {
    "tails": {"heads": 2, "kv_heads": 2, "seq_q": 100, "seq_kv": 77, "dim": 40},
    "groups": {"heads": 4, "kv_heads": 2, "seq_q": 33, "seq_kv": 70, "dim": 32},
    "whole blocks": {"heads": 1, "kv_heads": 1, "seq_q": 64, "seq_kv": 64, "dim": 64},
}
CONFIG = {"block_M": 32, "block_N": 32}


def problem_of(name, **more):
    return BACKWARD.parse_problem({"batch": 2, **SHAPES[name], **more})


def run(problem, inputs, artifacts):
    shapes = [x.shape for x in BACKWARD.reference(problem, inputs)]
    found = [np.full(shape, np.nan, inputs[0].dtype) for shape in shapes]
    kernel = runtime.load(compile(BACKWARD.program(problem, CONFIG), store=artifacts))
    kernel(*inputs, *found)
    return found


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize(
    ("name", "causal"),
    [
        (name, causal)
        for name, shape in SHAPES.items()
        for causal in (False, True)
        if not causal or shape["seq_q"] <= shape["seq_kv"]  # every query sees a key
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_against_float64(name, causal, dtype, artifacts):
    problem = problem_of(name, causal=causal, dtype=dtype)
    inputs = BACKWARD.inputs(problem, np.random.default_rng(0))
    expected = BACKWARD.reference(problem, inputs)
    length, rounded = BACKWARD.reduction_length(problem), BACKWARD.rounded_dtype(problem)
    limits = tolerance(dtype, "float32", length, rounded)
    for gradient, wanted in zip(run(problem, inputs, artifacts), expected, strict=True):
        report = compare(gradient, wanted, *limits)
        assert report.passed, report.detail


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["groups", "whole blocks"])
def test_the_rival_computes_the_same(name, causal):
    problem = problem_of(name, causal=causal)
    inputs = BACKWARD.inputs(problem, np.random.default_rng(0))
    expected = BACKWARD.reference(problem, inputs)
    for found, wanted in zip(BACKWARD.rival(problem, inputs)(), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_scores_of_any_size(artifacts):
    problem = problem_of("groups", causal=True)
    inputs = list(BACKWARD.inputs(problem, np.random.default_rng(0)))
    inputs[0], inputs[1] = inputs[0] * 10, inputs[1] * 10
    inputs = BACKWARD.inputs(problem, _Given([*inputs[:3], inputs[5]]))
    expected = BACKWARD.reference(problem, inputs)
    for found, wanted in zip(run(problem, inputs, artifacts), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-2, rtol=1e-3)


class _Given:
    """A generator that returns given arrays."""

    def __init__(self, arrays):
        self.arrays = iter(arrays)

    def standard_normal(self, shape, dtype):
        array = next(self.arrays)
        assert array.shape == shape
        assert array.dtype == dtype
        return array


@pytest.mark.exhaustive
def test_nan_reaches_what_depends_on_it(artifacts):
    problem = problem_of("groups")
    inputs = list(BACKWARD.inputs(problem, np.random.default_rng(0)))
    inputs[5][0, 1, 3, 2] = np.nan  # one element of the gradient of O
    dq, dk, dv = run(problem, inputs, artifacts)
    assert np.isnan(dq[0, 1, 3]).all()
    assert np.isnan(dq).any(axis=-1).sum() == 1
    assert np.isnan(dk[0, 0]).all()
    assert np.isnan(dv[0, 0, :, 2]).all()
    assert not np.isnan(dk[:, 1]).any()
    assert not np.isnan(dv[..., 3]).any()


def test_counts():
    problem = problem_of("groups")
    assert BACKWARD.work_flop(problem) == 10 * 32 * 2 * 4 * 33 * 70
    elements = 2 * 32 * (4 * 4 * 33 + 4 * 2 * 70)
    assert BACKWARD.traffic_bytes(problem) == 4 * elements + 4 * 2 * 4 * 33
