"""softmax, rms_norm and layer_norm of the library against float64 and torch."""

import numpy as np
import pytest
import torch

from tilecore import kernels, runtime
from tilecore.compiler import compile
from workers.correctness import compare, tolerance

NAMES = ("softmax", "rms_norm", "layer_norm")


def built(definition, problem, artifacts, **knobs):
    program = definition.program(problem, {**definition.default_config(), **knobs})
    return runtime.load(compile(program, store=artifacts))


@pytest.mark.few(1)
@pytest.mark.covering("name dtype", "name m", "dtype m")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("m", "n", "block"), [(5, 7, 4), (33, 100, 1), (20, 1003, 64)])
@pytest.mark.parametrize("name", NAMES)
def test_ragged_shapes(name, m, n, block, dtype, artifacts):
    definition = kernels.get(name)
    problem = definition.parse_problem({"rows": m, "columns": n, "dtype": dtype})
    inputs = definition.inputs(problem, np.random.default_rng(0))
    expected = definition.reference(problem, inputs)[0]
    found = np.full(expected.shape, np.nan, inputs[0].dtype)
    built(definition, problem, artifacts, block_M=block)(*inputs, found)
    rtol, atol = tolerance(dtype, "float32", definition.reduction_length(problem))
    report = compare(found, expected, rtol, atol)
    assert report.passed, report.detail


@pytest.mark.parametrize("name", NAMES)
def test_the_rival_computes_the_same(name):
    definition = kernels.get(name)
    problem = definition.parse_problem({"m": 9, "n": 50})
    inputs = definition.inputs(problem, np.random.default_rng(0))
    found = definition.rival(problem, inputs)()
    found = found[0] if isinstance(found, tuple) else found
    np.testing.assert_allclose(found, definition.reference(problem, inputs)[0], atol=2e-6)


def test_softmax_of_extreme_rows_is_torchs(artifacts):
    definition = kernels.get("softmax")
    x = torch.zeros(6, 40)
    x[0, 3:] = -torch.inf
    x[1] = -torch.inf
    x[2, 5] = torch.inf
    x[3, 7] = torch.nan
    x[4] = torch.linspace(-1e30, 1e30, 40)
    x[5, 0] = 1e-40
    y = torch.empty_like(x)
    built(definition, definition.parse_problem({"m": 6, "n": 40}), artifacts)(x, y)
    torch.testing.assert_close(y, torch.softmax(x, 1), equal_nan=True)


def test_counts():
    problem = kernels.get("layer_norm").parse_problem({"m": 10, "n": 4, "dtype": "float16"})
    assert kernels.get("layer_norm").traffic_bytes(problem) == 2 * (2 * 40 + 8)
    assert kernels.get("softmax").work_flop(problem) == 200
