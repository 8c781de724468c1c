"""ProgramToolbox: programs and inputs that travel as files, with and without torch."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import tilecore.language as T
from recommender.workload import Workload
from tilecore.ir.nodes import PrimFunc
from tilecore.profiler import Tolerance
from tilecore.tile_config import TileConfig
from tilecore.tuning import Candidate
from workers.program_toolbox import CASES, TORCH_CASES, ProgramToolbox

WORKLOAD = Workload.of("script:program", {"X": "float32", "X[0]": 32})


def in_place(factor: float) -> PrimFunc:
    @T.prim_func
    def main(X: T.Tensor((32,), "float32")):
        with T.Kernel(4) as b:
            for i in T.Parallel(8):
                X[b * 8 + i] = X[b * 8 + i] * factor

    return main


def toolbox(folder: Path) -> ProgramToolbox:
    return ProgramToolbox(folder, "digest", "llvm", (), Tolerance(max_mismatched_ratio=0.0))


@pytest.fixture
def x() -> np.ndarray:
    return np.arange(32, dtype=np.float32)


@pytest.mark.parametrize("has_torch", [True, False])
def test_a_program_written_in_place_is_checked_on_its_first_inputs(
    has_torch, x, tmp_path, monkeypatch
):
    if has_torch:
        pytest.importorskip("torch")
    else:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    tools = toolbox(tmp_path)
    configs = [TileConfig.of(factor=f) for f in (2, 3)]
    tools.write(
        [
            Candidate(config=c, program=in_place(float(c["factor"])), inputs=[x], expected=[x * 2])
            for c in configs
        ]
    )
    assert (tmp_path / (TORCH_CASES if has_torch else CASES)).exists()
    problem = tools.problem(WORKLOAD)
    right, wrong = (tools.compile(WORKLOAD, c, tmp_path / "store") for c in configs)
    assert right.digest != wrong.digest
    call = problem.bind(Path(right.path))
    for _ in range(3):  # each time from the inputs as they were
        assert problem.check(call).passed
        call()
    report = problem.check(problem.bind(Path(wrong.path)))
    assert not report.passed
    assert "31 of 32 elements differ" in report.detail


def test_without_an_expectation_a_run_is_all_there_is_to_check(x, tmp_path):
    tools = toolbox(tmp_path)
    config = TileConfig.of(factor=5)
    tools.write([Candidate(config=config, program=in_place(5.0), inputs=[x])])
    problem = tools.problem(WORKLOAD)
    call = problem.bind(Path(tools.compile(WORKLOAD, config, tmp_path / "store").path))
    assert problem.check(call).passed
    np.testing.assert_array_equal(call.results[0], x * 5)
    assert problem.rival() is None


def test_inputs_that_do_not_fit_are_the_candidates_failure(x, tmp_path):
    from tilecore.errors import ArgumentError

    tools = toolbox(tmp_path)
    config = TileConfig.of(factor=5)
    tools.write([Candidate(config=config, program=in_place(5.0), inputs=[x[:8]])])
    path = Path(tools.compile(WORKLOAD, config, tmp_path / "store").path)
    with pytest.raises(ArgumentError, match="shape"):
        tools.problem(WORKLOAD).bind(path)
