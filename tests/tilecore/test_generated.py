"""Random programs: compiled code gives what the interpreter says the program means.

Each on one of the paths of x86 code, drawn too; those not native to this machine are emulated.
"""

from __future__ import annotations

import runpy

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilecore.language as T
from tests.tilecore.nest_generator import nests, where_some_is_inside
from tests.tilecore.program_generator import Program, programs
from tests.tilecore.rows_generator import rows
from tests.tilecore.x86_paths import CLIENT, TILES, VECTOR, here
from tilecore import runtime
from tilecore.compiler import compile
from tilecore.interpreter import run

PATHS = st.sampled_from([VECTOR, TILES, CLIENT, "avx512", "avx2"])


def check(program: Program, path: str, artifacts, tmp_path) -> None:
    file = tmp_path / f"program{abs(hash(program.source))}.py"
    file.write_text(program.source)
    func = runpy.run_path(str(file), {"T": T})["main"]
    wanted = [array.copy() for array, _ in program.outputs]
    run(func, *[x.copy() for x in program.inputs], *wanted, seed=5)
    kernel = runtime.load(compile(func, here(path), store=artifacts))
    for _ in range(2):  # the second time in memory that the first has used
        found = [array.copy() for array, _ in program.outputs]
        kernel(*program.inputs, *found)
        for got, want, (_, tolerance) in zip(found, wanted, program.outputs, strict=True):
            difference = np.abs(got.astype(np.float64) - want.astype(np.float64))
            assert difference.max(initial=0.0) <= tolerance, (path, program)


FIXTURES = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=6, suppress_health_check=FIXTURES)
@given(program=programs(), path=PATHS)
def test_compiled_code_agrees_with_the_oracle(
    program: Program, path: str, artifacts, tmp_path
) -> None:
    check(program, path, artifacts, tmp_path)


@pytest.mark.exhaustive
@settings(max_examples=40, suppress_health_check=FIXTURES)
@given(program=programs(), path=PATHS)
def test_more_compiled_code_agrees_with_the_oracle(
    program: Program, path: str, artifacts, tmp_path
) -> None:
    check(program, path, artifacts, tmp_path)


@settings(max_examples=12, suppress_health_check=FIXTURES)
@given(program=nests(), path=PATHS)
def test_nests_over_tensors_agree_with_the_oracle(
    program: Program, path: str, artifacts, tmp_path
) -> None:
    with where_some_is_inside():
        check(program, path, artifacts, tmp_path)


@pytest.mark.exhaustive
@settings(max_examples=250, suppress_health_check=FIXTURES)
@given(program=nests(), path=PATHS)
def test_more_nests_over_tensors_agree_with_the_oracle(
    program: Program, path: str, artifacts, tmp_path
) -> None:
    with where_some_is_inside():
        check(program, path, artifacts, tmp_path)


@settings(max_examples=12, suppress_health_check=FIXTURES)
@given(program=rows(), path=PATHS)
def test_folds_of_rows_agree_with_the_oracle(
    program: Program, path: str, artifacts, tmp_path
) -> None:
    check(program, path, artifacts, tmp_path)


@pytest.mark.exhaustive
@settings(max_examples=250, suppress_health_check=FIXTURES)
@given(program=rows(), path=PATHS)
def test_more_folds_of_rows_agree_with_the_oracle(
    program: Program, path: str, artifacts, tmp_path
) -> None:
    check(program, path, artifacts, tmp_path)
