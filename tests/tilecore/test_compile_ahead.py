"""Kernels are compiled by another process while this one goes on; without it as well."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import numpy as np
import pytest

import tilecore
import tilecore.language as T
from tilecore import compiler, jit_compile
from tilecore.artifact import ArtifactStore
from tilecore.compile_ahead import LEAST, Helper


def scaled(factor, extent=64):
    @T.prim_func
    def program(x: T.Tensor((extent,), "float32"), y: T.Tensor((extent,), "float32")):
        with T.Kernel(1):
            for i in T.Parallel(extent):
                y[i] = x[i] * factor

    return program


@pytest.fixture
def helper():
    found = Helper(idle_s=30.0)
    yield found
    found.close()


def pid_of(helper):
    return helper._process.pid


def ended(pid, limit_s=10.0):
    """Whether a process that is not ours to wait for ends in time."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] in "ZX":
                    return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_what_is_asked_for_lies_in_the_store(helper, tmp_path):
    store = ArtifactStore(tmp_path)
    programs = [scaled(factor) for factor in (2.0, 3.0, 4.0)]
    assert all(compiler.stored(p, "llvm", {}, store) is None for p in programs)
    numbers = [helper.ask(p, "llvm", {"micro_m": 4}, store) for p in programs]
    for number, program in zip(numbers, programs, strict=True):
        helper.wait(number)
        assert compiler.stored(program, "llvm", {"micro_m": 4}, store) is not None
    assert compiler.stored(programs[0], "llvm", {}, store) is None  # another config
    assert helper.pays(1)


def test_a_fault_of_the_program_is_told_by_who_compiles_it_next(helper, tmp_path):
    @T.prim_func
    def faulty(x: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            tile = T.alloc_shared((4,), "float32")
            for i in T.Parallel(8):
                tile[i] = x[i]

    store = ArtifactStore(tmp_path)
    helper.wait(helper.ask(faulty, "llvm", {}, store))
    with pytest.raises(tilecore.TileError):
        compiler.compile(faulty, "llvm", {}, store)
    fine = scaled(2.0)
    helper.wait(helper.ask(fine, "llvm", {}, store))  # it goes on
    assert compiler.stored(fine, "llvm", {}, store) is not None


@pytest.mark.exhaustive
def test_a_process_that_ends_holds_nobody_up(helper, tmp_path):
    store, program = ArtifactStore(tmp_path), scaled(2.0)
    first = helper.ask(program, "llvm", {}, store)
    os.kill(pid_of(helper), signal.SIGKILL)
    helper.wait(first)
    again = helper.ask(program, "llvm", {}, store)
    helper.wait(again)
    helper.wait(first)
    assert compiler.stored(program, "llvm", {}, store) is not None


@pytest.mark.exhaustive
def test_it_ends_when_it_has_nothing_to_do(tmp_path):
    helper, store = Helper(idle_s=0.1), ArtifactStore(tmp_path)
    helper.wait(helper.ask(scaled(2.0), "llvm", {}, store))
    assert ended(pid_of(helper))
    helper.wait(helper.ask(scaled(3.0), "llvm", {}, store))
    assert compiler.stored(scaled(3.0), "llvm", {}, store) is not None
    helper.close()


def test_where_none_can_be_started_nothing_is_lost(helper, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no such file"))
    assert helper.ask(scaled(2.0), "llvm", {}, ArtifactStore(tmp_path)) == 0
    helper.wait(0)


@pytest.mark.exhaustive
def test_a_program_that_cannot_be_sent_is_compiled_here(helper, tmp_path):
    program, store = scaled(2.0), ArtifactStore(tmp_path)
    unsendable = replace(program, attrs={**program.attrs, "made by": lambda: None})
    assert helper.ask(unsendable, "llvm", {}, store) == 0
    helper.wait(helper.ask(program, "llvm", {}, store))  # others go on
    assert compiler.stored(program, "llvm", {}, store) is not None


def test_what_is_stored_is_not_asked_for(monkeypatch):
    from tilecore import compile_ahead

    options = jit_compile.options_of({"target": "llvm"})
    jit_compile.build(scaled(2.0), options)
    monkeypatch.setattr(compile_ahead.HELPER, "ask", lambda *_: pytest.fail("it is there"))
    jit_compile.begin(scaled(2.0), options)()


def run(code, home):
    """Run a program in a process of its own, with no kernel on disk; return what it prints."""
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False,
        env={**os.environ, "HOME": str(home), "TILECORE_DATA_DIR": str(home)},
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    return said.stdout


MODEL = """
    import sys, torch, tilecore
    from tilecore import compile_ahead
    BEFORE
    widths = [40 + 8 * i for i in range(1 + LEAST)]
    weights = [torch.randn(rows, columns) for rows, columns in zip(widths, widths[1:])]
    def model(x):
        for w in weights:
            x = torch.softmax(x @ w, -1)
        return x
    x = torch.randn(24, 40)
    assert torch.allclose(tilecore.compute(model)(x), model(x), atol=1e-5)
    process = compile_ahead.HELPER._process
    print("tvm" in sys.modules, process is not None)
    print(process and process.pid)
""".replace("LEAST", str(LEAST))


@pytest.mark.exhaustive
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core compiles no earlier")
def test_computations_of_several_kernels_do_without_the_compiler_here(tmp_path):
    here, pid = run(MODEL.replace("BEFORE", ""), tmp_path).split("\n")[:2]
    assert here == "False True"
    assert ended(int(pid))  # with its owner
    assert run(MODEL.replace("BEFORE", ""), tmp_path).split("\n")[0] == "False False"  # all on disk


@pytest.mark.exhaustive
def test_computations_without_another_process(tmp_path):
    before = "compile_ahead.HELPER._start = lambda: (_ for _ in ()).throw(OSError())"
    assert run(MODEL.replace("BEFORE", before), tmp_path).split("\n")[0] == "True False"


def test_numbers_of_a_program_that_was_compiled_elsewhere(helper):
    program, options = scaled(7.0, 96), jit_compile.options_of({"target": "llvm"})
    marked = jit_compile._asked(program, options)
    helper.wait(helper.ask(*marked, compiler.default_store()))
    x, y = np.arange(96, dtype=np.float32), np.empty(96, np.float32)
    jit_compile.build(program, options)(x, y)
    np.testing.assert_array_equal(y, x * 7)
