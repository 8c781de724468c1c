"""Random programs whose threads share memory in branches and loops of their own, on this CPU."""

from __future__ import annotations

import runpy

import numpy as np
import pytest

import tilecore
import tilecore.language as T
from tests.tilecore.thread_program_generator import NUMBER, thread_program
from tilecore.errors import ScopeError


def check(seed: int, tmp_path) -> None:
    program = thread_program(seed)
    file = tmp_path / f"program{seed}.py"
    file.write_text(program.source)
    func = runpy.run_path(str(file), {"T": T})["main"]
    b, c = np.zeros_like(program.b), np.zeros_like(program.c)
    kernel, refusal = None, ""
    try:
        kernel = tilecore.compile(func)
    except ScopeError as error:
        refusal = str(error)
    if kernel is None:
        assert "of a loop in which threads wait for each other" in refusal
        assert "break" in program.source or "continue" in program.source
        return
    kernel(program.a, b, c, NUMBER)
    np.testing.assert_array_equal(b, program.b)
    np.testing.assert_array_equal(c, program.c)


@pytest.mark.parametrize("seed", [5, 8, 12, 13, 16, 18, 22, 24, 29, 191])
def test_threads_give_what_they_do_in_step(seed, tmp_path):
    """Threads went through loops that they run differently often one after the other."""
    check(seed, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(100, 300))
def test_more_threads_give_what_they_do_in_step(seed, tmp_path):
    check(seed, tmp_path)
