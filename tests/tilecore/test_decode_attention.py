"""decode_attention of the library against float64."""

import numpy as np
import pytest

from tilecore import interpreter, kernels, runtime
from tilecore.compiler import compile
from workers.correctness import compare, tolerance

DECODE = kernels.get("decode_attention")
SHAPES = {
    "one query": {"heads": 2, "kv_heads": 2, "seq_q": 1, "seq_kv": 130, "dim": 64},
    "groups": {"heads": 6, "kv_heads": 2, "seq_q": 1, "seq_kv": 77, "dim": 40},
    "queries": {"heads": 4, "kv_heads": 2, "seq_q": 3, "seq_kv": 64, "dim": 32},
    "many queries": {"heads": 8, "kv_heads": 1, "seq_q": 2, "seq_kv": 100, "dim": 64},
    "short cache": {"heads": 2, "kv_heads": 1, "seq_q": 2, "seq_kv": 3, "dim": 32},
}
CONFIG = {"splits": 2, "streams": 4, "block_N": 16}


def problem_of(name, **more):
    return DECODE.parse_problem({"batch": 2, **SHAPES[name], **more})


def run(problem, inputs, artifacts, **config):
    program = DECODE.program(problem, {**CONFIG, **config})
    shape = DECODE.reference(problem, inputs)[0].shape
    found = np.full(shape, np.nan, inputs[0].dtype)
    runtime.load(compile(program, store=artifacts))(*inputs, found)
    return found


@pytest.mark.few(1)
@pytest.mark.covering("dtype causal")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_against_float64(name, causal, dtype, artifacts):
    problem = problem_of(name, causal=causal, dtype=dtype)
    inputs = DECODE.inputs(problem, np.random.default_rng(0))
    expected = DECODE.reference(problem, inputs)[0]
    rtol, atol = tolerance(dtype, "float32", DECODE.reduction_length(problem))
    if dtype == "bfloat16":  # of many queries weights are rounded to it before the second product
        atol = 2**-8
    report = compare(run(problem, inputs, artifacts), expected, rtol, atol)
    assert report.passed, report.detail


def test_the_oracle_agrees():
    problem = problem_of("short cache", causal=True)
    inputs = DECODE.inputs(problem, np.random.default_rng(0))
    found = np.empty(DECODE.reference(problem, inputs)[0].shape, np.float32)
    interpreter.run(DECODE.program(problem, CONFIG), *inputs, found)
    np.testing.assert_allclose(found, DECODE.reference(problem, inputs)[0], atol=1e-5)


def test_scores_of_any_size(artifacts):
    problem = problem_of("groups")
    q, k, v = DECODE.inputs(problem, np.random.default_rng(0))
    q, k = q * 100, k * 100
    expected = DECODE.reference(problem, [q, k, v])[0]
    found = run(problem, [q, k, v], artifacts)
    np.testing.assert_allclose(found, expected, atol=2e-3)  # scores of 1e4 have 1e-3 in float32


def test_nan_reaches_the_rows_that_see_it(artifacts):
    problem = problem_of("queries", causal=True)
    q, k, v = DECODE.inputs(problem, np.random.default_rng(0))
    k[0, 0, -1, 5] = np.nan  # the last key: only the last query sees it
    found = run(problem, [q, k, v], artifacts)
    is_nan = np.isnan(found).all(axis=-1)
    expected = np.zeros_like(is_nan)
    expected[0, :2, -1] = True
    np.testing.assert_array_equal(is_nan, expected)
    np.testing.assert_array_equal(np.isnan(found).any(axis=-1), expected)


@pytest.mark.few(1)
@pytest.mark.parametrize("streams", [1, 4, 16])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_of_any_number_of_streams_stay_in_registers(streams, dtype, artifacts):
    problem = problem_of("one query", dtype=dtype)
    program = DECODE.program(problem, {**CONFIG, "streams": streams})
    notes = compile(program, store=artifacts).manifest.notes
    assert any(note.endswith("products stays in registers") for note in notes)
