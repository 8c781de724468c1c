"""Random programs on emulated GPUs: they give what the interpreter says the program means."""

from __future__ import annotations

import math
import runpy

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tests.tilecore.nest_generator import nests, where_some_is_inside
from tests.tilecore.program_generator import Program, programs
from tests.tilecore.rows_generator import rows
from tilecore.emulator import LATE, Schedule
from tilecore.interpreter import run
from tilecore.pass_config import FLOAT32_PRODUCTS

TARGETS = st.sampled_from(["sm_75", "sm_80", "h100", "gfx942"])
MOST_BLOCKS = 12  # the emulator runs each thread by itself
FIXTURES = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]


def check(program: Program, target: str, tmp_path) -> None:
    file = tmp_path / f"program{abs(hash(program.source))}.py"
    file.write_text(program.source)
    func = runpy.run_path(str(file), {"T": T})["main"]
    wanted = [array.copy() for array, _ in program.outputs]
    run(func, *[x.copy() for x in program.inputs], *wanted, seed=5)
    found = [array.copy() for array, _ in program.outputs]
    arguments = [*program.inputs, *found]
    schedules = (LATE, Schedule(seed=7))
    run_emulated(func, target, arguments, schedules, knobs={FLOAT32_PRODUCTS: "exact"})
    for got, want, (_, tolerance) in zip(found, wanted, program.outputs, strict=True):
        difference = np.abs(got.astype(np.float64) - want.astype(np.float64))
        assert difference.max(initial=0.0) <= tolerance, (target, program)


@settings(max_examples=4, suppress_health_check=FIXTURES)
@given(program=programs(), target=TARGETS)
def test_emulated_code_agrees_with_the_oracle(program: Program, target: str, tmp_path) -> None:
    assume(math.prod(program.grid) <= MOST_BLOCKS)
    check(program, target, tmp_path)


@pytest.mark.exhaustive
@settings(max_examples=40, suppress_health_check=FIXTURES)
@given(program=programs(), target=TARGETS)
def test_more_emulated_code_agrees_with_the_oracle(program: Program, target: str, tmp_path) -> None:
    assume(math.prod(program.grid) <= MOST_BLOCKS)
    check(program, target, tmp_path)


@settings(max_examples=12, suppress_health_check=FIXTURES)
@given(program=nests(), target=TARGETS)
def test_nests_over_tensors_agree_with_the_oracle(program: Program, target: str, tmp_path) -> None:
    with where_some_is_inside():
        check(program, target, tmp_path)


@pytest.mark.exhaustive
@settings(max_examples=250, suppress_health_check=FIXTURES)
@given(program=nests(), target=TARGETS)
def test_more_nests_over_tensors_agree_with_the_oracle(
    program: Program, target: str, tmp_path
) -> None:
    with where_some_is_inside():
        check(program, target, tmp_path)


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("target", ["sm_80", "h100", "gfx942"])
@pytest.mark.parametrize(("shape", "dim"), [((1, 1), 0), ((1, 5), 0), ((7, 1), 1), ((7, 1), 0)])
def test_a_scan_along_an_axis_of_one_element(shape, dim, target):
    """Found by a random program: it ended in a ValueError."""

    @T.prim_func
    def main(X: T.Tensor(shape, "float32"), Y: T.Tensor(shape, "float32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_shared(shape, "float32")
            y = T.alloc_fragment(shape, "float32")
            T.copy(X, x)
            T.cumsum(x, y, dim=dim)
            T.copy(y, Y)

    x = np.arange(1, 1 + math.prod(shape), dtype=np.float32).reshape(shape)
    y = np.zeros_like(x)
    run_emulated(main, target, [x, y], (LATE,))
    np.testing.assert_array_equal(y, np.cumsum(x, axis=dim))


@settings(max_examples=6, suppress_health_check=FIXTURES)
@given(program=rows(), target=TARGETS)
def test_folds_of_rows_agree_with_the_oracle(program: Program, target: str, tmp_path) -> None:
    check(program, target, tmp_path)


@pytest.mark.exhaustive
@settings(max_examples=100, suppress_health_check=FIXTURES)
@given(program=rows(), target=TARGETS)
def test_more_folds_of_rows_agree_with_the_oracle(program: Program, target: str, tmp_path) -> None:
    check(program, target, tmp_path)
