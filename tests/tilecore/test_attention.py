"""attention of the library against float64 and torch."""

import numpy as np
import pytest

from tilecore import kernels, runtime
from tilecore.codegen.llvm import generate
from tilecore.compiler import compile, lower
from tilecore.errors import InvalidProblem
from tilecore.target import parse_target
from workers.correctness import compare, tolerance

ATTENTION = kernels.get("attention")
SHAPES = {
    "tails": {"heads": 2, "kv_heads": 2, "seq_q": 100, "seq_kv": 77, "dim": 40},
    "groups": {"heads": 4, "kv_heads": 2, "seq_q": 33, "seq_kv": 70, "dim": 32},
    "one query": {"heads": 2, "kv_heads": 1, "seq_q": 1, "seq_kv": 130, "dim": 64},
}


def problem_of(name, **more):
    return ATTENTION.parse_problem({"batch": 2, **SHAPES[name], **more})


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
    inputs = ATTENTION.inputs(problem, np.random.default_rng(0))
    expected = ATTENTION.reference(problem, inputs)[0]
    program = ATTENTION.program(
        problem, {**ATTENTION.default_config(), "block_M": 16, "block_N": 32}
    )
    found = np.full(expected.shape, np.nan, inputs[0].dtype)
    runtime.load(compile(program, store=artifacts))(*inputs, found)
    rtol, atol = tolerance(dtype, "float32", ATTENTION.reduction_length(problem))
    if dtype == "bfloat16":  # weights are rounded to it before the second product
        atol = 2**-8
    report = compare(found, expected, rtol, atol)
    assert report.passed, report.detail


@pytest.mark.parametrize("causal", [False, True])
def test_the_rival_computes_the_same(causal):
    problem = problem_of("groups", causal=causal)
    inputs = ATTENTION.inputs(problem, np.random.default_rng(0))
    expected = ATTENTION.reference(problem, inputs)[0]
    np.testing.assert_allclose(ATTENTION.rival(problem, inputs)(), expected, atol=1e-5)


def test_scores_of_any_size(artifacts):
    problem = problem_of("groups", causal=True)
    q, k, v = ATTENTION.inputs(problem, np.random.default_rng(0))
    q, k = q * 100, k * 100
    expected = ATTENTION.reference(problem, [q, k, v])[0]
    found = np.empty(expected.shape, np.float32)
    program = ATTENTION.program(problem, dict(ATTENTION.default_config()))
    runtime.load(compile(program, store=artifacts))(q, k, v, found)
    np.testing.assert_allclose(found, expected, atol=2e-3)  # scores of 1e4 have 1e-3 in float32


def test_problems_without_a_meaning():
    with pytest.raises(InvalidProblem, match=r"kv_heads: expected a divisor of heads = 2, found 3"):
        ATTENTION.program(problem_of("tails", kv_heads=3), dict(ATTENTION.default_config()))
    with pytest.raises(InvalidProblem, match="every query sees a key"):
        ATTENTION.program(problem_of("tails", causal=True), dict(ATTENTION.default_config()))


def test_counts():
    problem = problem_of("groups", causal=True)
    pairs = 2 * 4 * sum(min(70, 70 - 33 + i + 1) for i in range(33))
    assert ATTENTION.work_flop(problem) == 4 * 32 * pairs
    assert ATTENTION.traffic_bytes(problem) == 4 * 2 * 32 * (2 * 4 * 33 + 2 * 2 * 70)


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nan_and_infinity_reach_the_rows_that_see_them(dtype, artifacts):
    problem = problem_of("groups", causal=True, dtype=dtype)
    q, k, v = (np.array(x) for x in ATTENTION.inputs(problem, np.random.default_rng(0)))
    k[0, 0, 60, 5] = np.nan  # of 70 keys: queries from 60 - (70 - 33) on see it
    q[1, 3, 7, 2] = np.inf  # scores of both signs: the largest is infinite
    found = np.empty(q.shape, q.dtype)
    program = ATTENTION.program(
        problem, {**ATTENTION.default_config(), "block_M": 16, "block_N": 32}
    )
    runtime.load(compile(program, store=artifacts))(q, k, v, found)
    expected = np.zeros(q.shape, bool)
    expected[0, :2, 60 - 37 :] = True
    expected[1, 3, 7] = True
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), expected)


def test_rounding_to_bfloat16_may_flush_operands_of_dots_only():
    problem = problem_of("groups", dtype="bfloat16")
    program = ATTENTION.program(
        problem, {**ATTENTION.default_config(), "block_M": 16, "block_N": 32}
    )
    for target, expected in (("avx512+amx_tile+amx_bf16", 1), ("avx512", 0)):
        plan, _ = lower(program, parse_target(target), {})
        tiles = [t for p in plan.launches.values() for t in p.tiles.values() if t.flushes]
        assert [t.buffer.dtype for t in tiles if t.source is None] == ["bfloat16"] * expected


def test_tiles_are_set_up_once_per_task():
    target = parse_target("avx512+amx_tile+amx_bf16")
    problem = problem_of("groups", dtype="bfloat16")
    program = ATTENTION.program(
        problem, {**ATTENTION.default_config(), "block_M": 16, "block_N": 32}
    )
    _, function = lower(program, target, {})
    assembly = generate(function, target).inspect_source("s")
    assert [assembly.count(word) for word in ("ldtilecfg", "tilerelease")] == [1, 1]
    assert assembly.count("tdpbf16ps") >= 2
