"""elementwise and reduction of the library against float64 and torch."""

import numpy as np
import pytest
import torch

from tilecore import kernels, runtime
from tilecore.compiler import compile
from tilecore.kernels.activations import ACTIVATIONS
from workers.correctness import compare, tolerance

SHAPES = [(5, 7), (33, 100), (20, 1003), (1, 5000), (3000, 2)]


def built(definition, problem, artifacts, **knobs):
    program = definition.program(problem, {**definition.default_config(), **knobs})
    return runtime.load(compile(program, store=artifacts))


def check(name, artifacts, fields, **knobs):
    definition = kernels.get(name)
    problem = definition.parse_problem(fields)
    inputs = definition.inputs(problem, np.random.default_rng(0))
    expected = definition.reference(problem, inputs)[0]
    found = np.full(expected.shape, np.nan, inputs[0].dtype)
    built(definition, problem, artifacts, **knobs)(*inputs, found)
    rtol, atol = tolerance(problem["dtype"], "float32", definition.reduction_length(problem))
    report = compare(found, expected, rtol, atol)
    assert report.passed, report.detail


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("combine", ["gate", "add"])
def test_elementwise(combine, activation, m, n, dtype, artifacts):
    fields = {"m": m, "n": n, "dtype": dtype, "activation": activation, "combine": combine}
    check("elementwise", artifacts, fields, block_M=4, block_N=256)


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("axis", ["m", "n"])
@pytest.mark.parametrize("splits", [1, 3])
def test_reduction(splits, axis, op, m, n, dtype, artifacts):
    fields = {"m": m, "n": n, "dtype": dtype, "op": op, "axis": axis}
    check("reduction", artifacts, fields, splits=splits, block_M=4, block_N=64)


@pytest.mark.few(1)
@pytest.mark.parametrize("op", ["sum", "max", "min"])
@pytest.mark.parametrize("axis", ["m", "n"])
def test_extremes_are_torchs(axis, op, artifacts):
    definition = kernels.get("reduction")
    x = torch.randn(6, 40)
    x[0, 3], x[1, 4], x[2, 5], x[3] = torch.inf, -torch.inf, torch.nan, -torch.inf
    x[4, 0], x[5] = 1e-40, torch.inf
    x[5, 3] = -torch.inf
    problem = definition.parse_problem({"m": 6, "n": 40, "op": op, "axis": axis})
    y = torch.empty(6 if axis == "n" else 40)
    built(definition, problem, artifacts, block_M=1, block_N=64)(x, y)
    call = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}[op]
    torch.testing.assert_close(y, call(x, 1 if axis == "n" else 0), equal_nan=True)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        *(
            ("elementwise", {"activation": a, "combine": c})
            for a in ACTIVATIONS
            for c in ("gate", "add")
        ),
        *(("reduction", {"op": o, "axis": a}) for o in ("sum", "mean", "max", "min") for a in "mn"),
    ],
)
def test_the_rival_computes_the_same(name, fields):
    definition = kernels.get(name)
    problem = definition.parse_problem({"m": 9, "n": 50, **fields})
    inputs = definition.inputs(problem, np.random.default_rng(0))
    found = definition.rival(problem, inputs)()
    np.testing.assert_allclose(found, definition.reference(problem, inputs)[0], atol=1e-5)


def test_counts():
    elementwise, reduction = kernels.get("elementwise"), kernels.get("reduction")
    problem = elementwise.parse_problem({"m": 10, "n": 4, "dtype": "float16"})
    assert elementwise.traffic_bytes(problem) == 3 * 2 * 40
    assert elementwise.work_flop(problem) == 3 * 40
    problem = reduction.parse_problem({"m": 10, "n": 4, "axis": "m"})
    assert reduction.traffic_bytes(problem) == 4 * 44
    assert reduction.work_flop(problem) == 40
