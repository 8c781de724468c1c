"""Random programs written per thread on emulated GPUs: they give what threads in step give."""

from __future__ import annotations

import runpy

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tests.tilecore.thread_program_generator import NUMBER, thread_program
from tilecore.emulator import ALL_SCHEDULES

TARGETS = ("h100", "sm_70", "sm_80", "gfx942")


def check(seed: int, tmp_path) -> None:
    program = thread_program(seed)
    file = tmp_path / f"program{seed}.py"
    file.write_text(program.source)
    func = runpy.run_path(str(file), {"T": T})["main"]
    for schedule in ALL_SCHEDULES:
        b, c = np.zeros_like(program.b), np.zeros_like(program.c)
        arguments = [program.a, b, c, NUMBER]
        run_emulated(func, TARGETS[seed % len(TARGETS)], arguments, (schedule,))
        np.testing.assert_array_equal(b, program.b)
        np.testing.assert_array_equal(c, program.c)


@pytest.mark.parametrize("seed", range(12))
def test_threads_give_what_they_do_in_step(seed, tmp_path):
    check(seed, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(12, 200))
def test_more_threads_give_what_they_do_in_step(seed, tmp_path):
    check(seed, tmp_path)
