"""grouped_gemm and conv2d of the library against float64, the oracle and torch."""

import numpy as np
import pytest

from tilecore import kernels, runtime
from tilecore.compiler import compile
from tilecore.errors import InvalidProblem
from tilecore.interpreter import run
from workers.correctness import compare, tolerance

pytestmark = pytest.mark.few(1)  # a case takes long

GROUPED, CONV = kernels.get("grouped_gemm"), kernels.get("conv2d")
SMALL = {"block_M": 8, "block_N": 32}


def check(definition, problem, inputs, found):
    k = definition.reduction_length(problem)
    bounds = tolerance(problem["out_dtype"], "float32", k)
    report = compare(found, definition.reference(problem, inputs)[0], *bounds)
    assert report.passed, report.detail


def checked(definition, problem, inputs, artifacts, **knobs):
    config = {**definition.default_config(), **knobs}
    lowering = {k: v for k, v in config.items() if k == "pack_b"}
    expected = definition.reference(problem, inputs)[0]
    found = np.full(expected.shape, np.nan).astype(inputs[0].dtype)
    program = definition.program(problem, config)
    runtime.load(compile(program, config=lowering, store=artifacts))(*inputs, found)
    check(definition, problem, inputs, found)


@pytest.mark.covering("dtype trans_b", "trans_b pack_b")
@pytest.mark.parametrize("pack_b", ["auto", "none"])
@pytest.mark.parametrize("trans_b", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("sizes", [(4, 70, 50, 33), (1, 5, 64, 16), (9, 3, 20, 40)])
def test_groups_of_any_size(dtype, trans_b, pack_b, sizes, artifacts):
    fields = dict(zip(("experts", "m", "n", "k"), sizes, strict=True))
    problem = GROUPED.parse_problem(
        {**fields, "transpose_b": trans_b, "dtype": dtype, "out_dtype": dtype}
    )
    inputs = GROUPED.inputs(problem, np.random.default_rng(0))
    checked(GROUPED, problem, inputs, artifacts, **SMALL, pack_b=pack_b)


@pytest.mark.parametrize("trans_b", [True, False])
def test_few_rows_of_a_group_read_its_matrix_where_it_lies(trans_b, artifacts):
    """Asked for: how many rows use a tile is data."""
    problem = GROUPED.parse_problem(
        {"experts": 3, "m": 9, "n": 64, "k": 64, "transpose_b": trans_b}
    )

    def told(block, pack_b):
        config = {**GROUPED.default_config(), "block_M": block, "block_N": 32}
        func = GROUPED.program(problem, config)
        return "\n".join(compile(func, config={"pack_b": pack_b}, store=artifacts).manifest.notes)

    assert "b is read in place" in told(4, "none")
    assert "packed in every block" in told(4, "auto")
    assert "packed in every block" in told(64, "none")


@pytest.mark.parametrize("trans_b", [True, False])
def test_groups_of_every_form_of_few_rows_and_of_many(trans_b, artifacts):
    sizes = [1, 0, 2, 4, 5, 8, 9, 16, 17, 24, 25, 32, 33, 48, 49, 64, 65, 69, 73, 80]
    m = sum(sizes)
    problem = GROUPED.parse_problem(
        {"experts": len(sizes), "m": m, "n": 40, "k": 20, "transpose_b": trans_b}
    )
    a, b, _ = GROUPED.inputs(problem, np.random.default_rng(3))
    ends = np.cumsum([0, *sizes]).astype(np.int32)
    checked(GROUPED, problem, [a, b, ends], artifacts, block_M=16, block_N=32)


def test_empty_groups_and_one_that_has_all(artifacts):
    problem = GROUPED.parse_problem({"experts": 4, "m": 30, "n": 40, "k": 20})
    a, b, _ = GROUPED.inputs(problem, np.random.default_rng(1))
    for ends in ([0, 0, 30, 30, 30], [0, 0, 0, 0, 30], [0, 7, 15, 16, 30]):
        checked(GROUPED, problem, [a, b, np.array(ends, np.int32)], artifacts, **SMALL)


def test_rows_of_no_group_stay(artifacts):
    problem = GROUPED.parse_problem({"experts": 2, "m": 20, "n": 40, "k": 20})
    a, b, _ = GROUPED.inputs(problem, np.random.default_rng(2))
    found = np.full((20, 40), 7, np.float32)
    program = GROUPED.program(problem, {**GROUPED.default_config(), **SMALL})
    runtime.load(compile(program, store=artifacts))(a, b, np.array([2, 9, 18], np.int32), found)
    assert (found[:2] == 7).all()
    assert (found[18:] == 7).all()
    np.testing.assert_allclose(found[2:9], a[2:9] @ b[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[9:18], a[9:18] @ b[1], rtol=1e-4, atol=1e-4)


@pytest.mark.covering("sizes block_k")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("block_k", [16, 32])
@pytest.mark.parametrize(
    "sizes",
    [
        {"batch": 2, "height": 9, "width": 7, "channels": 8, "filters": 10, "padding": 1},
        {"batch": 1, "height": 12, "width": 11, "channels": 3, "filters": 33, "stride": 2},
        {"batch": 1, "height": 13, "width": 13, "channels": 32, "filters": 16, "dilation": 2,
         "kernel": 5, "padding": 3, "stride": 3},
        {"batch": 3, "height": 4, "width": 4, "channels": 16, "filters": 8, "kernel": 1},
    ],
)  # fmt: skip
def test_windows_strides_and_padding(sizes, block_k, dtype, artifacts):
    problem = CONV.parse_problem({**sizes, "dtype": dtype, "out_dtype": dtype})
    inputs = CONV.inputs(problem, np.random.default_rng(3))
    checked(CONV, problem, inputs, artifacts, block_M=16, block_N=32, block_K=block_k)


def test_the_oracle_and_the_rivals_agree():
    image = {"batch": 1, "height": 5, "width": 6, "channels": 4, "filters": 7, "padding": 1}
    for definition, values, knobs in (
        (GROUPED, {"experts": 3, "m": 12, "n": 20, "k": 9}, SMALL),
        (CONV, image, {"block_M": 16, "block_N": 8, "block_K": 8}),
    ):
        problem = definition.parse_problem(values)
        inputs = definition.inputs(problem, np.random.default_rng(4))
        program = definition.program(problem, {**definition.default_config(), **knobs})
        found = np.zeros(definition.reference(problem, inputs)[0].shape, np.float32)
        run(program, *inputs, found)
        check(definition, problem, inputs, found)
        check(definition, problem, inputs, definition.rival(problem, inputs)().numpy())


def test_a_window_larger_than_the_image_is_refused():
    sizes = {"batch": 1, "height": 4, "width": 9, "channels": 1, "filters": 1, "kernel": 7}
    with pytest.raises(InvalidProblem, match=r"kernel.*reach of at most 4"):
        CONV.parse_problem(sizes)
    with pytest.raises(InvalidProblem, match=r"padding.*from 0 to"):
        CONV.parse_problem({**sizes, "padding": -1})


def test_counts():
    problem = GROUPED.parse_problem({"experts": 2, "m": 4, "n": 8, "k": 16})
    assert GROUPED.traffic_bytes(problem) == 4 * (64 + 256 + 32 + 3)
    assert GROUPED.work_flop(problem) == 2 * 4 * 8 * 16
    problem = CONV.parse_problem({"batch": 1, "height": 4, "width": 4, "channels": 2, "filters": 3})
    assert CONV.work_flop(problem) == 2 * 4 * 3 * 18
    assert CONV.traffic_bytes(problem) == 4 * (32 + 54 + 12)
