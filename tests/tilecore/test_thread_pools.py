"""Grids run on torch's threads where torch is, on their own elsewhere; both tell their failures."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import tilecore as tilelang
import tilecore.language as T
from tilecore import kernels, runtime
from tilecore.compiler import compile
from tilecore.errors import AssertionFailed

CORES = len(os.sched_getaffinity(0))


@tilelang.jit
def doubled(A, limit: T.int32, block: int = 64):
    """Twice A; each block checks its own index."""
    N = T.const("N")
    A: T.Tensor[[N], T.float32]
    B = T.empty([N], T.float32)
    with T.Kernel(T.ceildiv(N, block)) as b:
        assert b < limit, "a block beyond the limit"
        for i in T.Parallel(block):
            B[b * block + i] = A[b * block + i] * 2.0
    return B


@pytest.fixture(autouse=True)
def as_before():
    runtime.share_threads(True)
    yield
    runtime.share_threads(False)
    runtime.set_num_threads(CORES)


def tasks() -> int:
    return len(os.listdir("/proc/self/task"))


def run(*lines: str) -> str:
    """Return what a script prints in a process of its own; it ends with all that it started."""
    process = subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, err
    return out.strip()


@pytest.mark.few(1)
@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("cores", [1, 2, 5])
def test_grids_of_any_size_on_any_number_of_threads(is_shared, cores):
    runtime.share_threads(is_shared)
    runtime.set_num_threads(cores)
    assert runtime.num_threads() == min(cores, CORES)
    for n in (1, 64, 65, 129, 1000, 64 * 64 + 1):
        x = torch.randn(n)
        torch.testing.assert_close(doubled(x, 1000), x * 2)


@pytest.mark.exhaustive
def test_torchs_threads_are_the_ones_that_run():
    """Kernels start no thread where torch has as many already."""
    found = run(
        "import torch",
        "from tests.tilecore.test_thread_pools import CORES, doubled, runtime, tasks",
        "runtime.pin_own_threads(range(CORES))",  # none is left out of launches
        "torch.set_num_threads(2); runtime.set_num_threads(2)",
        "x = torch.randn(1 << 20); x.exp(); before = tasks()",
        "doubled(x, 1 << 20); x.exp(); doubled(x, 1 << 20)",
        "shared = tasks(); runtime.share_threads(False); doubled(x, 1 << 20)",
        "print(shared - before, tasks() > shared)",
    )
    assert found == "0 True"


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("limit", [0, 31, 63])
def test_a_failure_in_any_block_is_told_to_the_caller(is_shared, cores, limit):
    runtime.share_threads(is_shared)
    runtime.set_num_threads(cores)
    x = torch.randn(64 * 64)
    for _ in range(3):
        with pytest.raises(AssertionFailed, match="a block beyond the limit"):
            doubled(x, limit)
        torch.testing.assert_close(doubled(x, 64), x * 2)


@pytest.mark.parametrize("callers", [4])
def test_calls_of_many_threads_at_once(callers):
    x = torch.randn(64 * 300)
    wrong: list[int] = []

    def calls() -> None:
        right = [torch.equal(doubled(x, 1000), x * 2) for _ in range(50)]
        wrong.append(right.count(False))

    workers = [threading.Thread(target=calls) for _ in range(callers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == [0] * callers


@pytest.mark.exhaustive
def test_kernels_that_were_called_before_torch_came():
    gemm = kernels.get("gemm")
    problem = gemm.parse_problem({"m": 300, "n": 400, "k": 50})
    artifact = compile(gemm.program(problem, dict(gemm.default_config())))
    found = run(
        "import sys, numpy as np",
        "sys.modules['torch'] = None  # not installed; tvm_ffi would import it",
        "from tilecore.runtime import load, threads",
        f"kernel = load({str(artifact.path)!r})",
        "a, b = np.ones((300, 50), 'float32'), np.ones((50, 400), 'float32')",
        "c = np.zeros((300, 400), 'float32')",
        "kernel(a, b, c)",
        "assert (c == 50).all() and not threads.is_shared()",
        "del sys.modules['torch']",
        "import torch",
        "d = torch.zeros(300, 400)",
        "kernel(a, b, d)",
        "print((d == 50).all().item(), threads.is_shared())",
    )
    assert found == "True True"


def test_kernels_use_as_many_threads_as_torch():
    found = run(
        "import torch",
        "from tests.tilecore.test_thread_pools import CORES, doubled, runtime, tasks",
        "runtime.pin_own_threads(range(CORES))",  # none is left out of launches
        "torch.set_num_threads(1)",
        "x = torch.randn(1 << 20); x.exp(); doubled(x, 1 << 20); before = tasks()",
        "doubled(x, 1 << 20); print(runtime.num_threads(), tasks() - before)",
        "torch.set_num_threads(2); doubled(x, 1 << 20)",
        "print(runtime.num_threads(), tasks() - before)",
        "runtime.set_num_threads(2); torch.set_num_threads(1); print(runtime.num_threads())",
    )
    many = min(2, CORES)
    assert found.split() == ["1", "0", str(many), str(many - 1), str(many)]


@pytest.mark.parametrize("with_torch", [True, False])
def test_the_environment_says_how_many_threads(with_torch):
    gemm = kernels.get("gemm")
    problem = gemm.parse_problem({"m": 300, "n": 400, "k": 50})
    artifact = compile(gemm.program(problem, dict(gemm.default_config())))
    found = run(
        "import os, sys",
        "os.environ['OMP_NUM_THREADS'] = '1'",
        "import torch" if with_torch else "sys.modules['torch'] = None",
        "import numpy as np",
        "from tilecore import runtime",
        f"kernel = runtime.load({str(artifact.path)!r})",
        "before = len(os.listdir('/proc/self/task'))",
        "a, b = np.ones((300, 50), 'float32'), np.ones((50, 400), 'float32')",
        "c = np.zeros((300, 400), 'float32')",
        "kernel(a, b, c)",
        "assert (c == 50).all()",
        "print(runtime.num_threads(), len(os.listdir('/proc/self/task')) - before)",
    )
    assert found == "1 0"


def test_kernels_know_how_many_threads_there_are():
    """With torch and without: it decides between versions of a launch."""
    gemm = kernels.get("gemm")
    problem = gemm.parse_problem({"m": 300, "n": 400, "k": 50})
    artifact = compile(gemm.program(problem, dict(gemm.default_config())))
    found = run(
        "import ctypes, sys",
        "sys.modules['torch'] = None  # not installed; tvm_ffi would import it",
        "from tilecore.runtime import load, set_num_threads",
        f"kernel = load({str(artifact.path)!r})",
        f"library = ctypes.CDLL({str(artifact.library)!r})",
        "print(library.tilecore_threads())",
        "set_num_threads(1)",
        "print(library.tilecore_threads())",
        "del sys.modules['torch']",
        "import torch",
        f"kernel = load({str(artifact.path)!r})",
        "print(library.tilecore_threads())",
    )
    assert [int(n) for n in found.split()] == [CORES, 1, 1]


def test_libraries_of_kernels_have_no_memory_per_thread():
    """The loader ended processes in which there were 60 of them, when they imported TVM."""
    gemm = kernels.get("gemm")
    problem = gemm.parse_problem({"m": 30, "n": 40, "k": 50})
    text = compile(gemm.program(problem, dict(gemm.default_config()))).library.read_bytes()
    first, size, count = (int.from_bytes(text[at : at + n], "little")
                          for at, n in ((32, 8), (54, 2), (56, 2)))  # fmt: skip
    kinds = [int.from_bytes(text[first + i * size :][:4], "little") for i in range(count)]
    load, per_thread = 1, 7  # PT_LOAD, PT_TLS
    assert load in kinds
    assert per_thread not in kinds


def own_threads() -> int:
    time.sleep(0.1)  # until those that were started have their name
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return names.count("tilecore")


def test_arrays_of_numpy_are_computed_on_threads_of_kernels_own():
    """Those of NumPy's BLAS go on spinning after a product: torch's would wait for their core."""
    found = run(
        "import numpy as np, torch",
        "from tests.tilecore.test_thread_pools import CORES, doubled, own_threads, runtime, tasks",
        "runtime.pin_own_threads(range(CORES))",  # none is left out of launches
        "torch.set_num_threads(2); runtime.set_num_threads(2)",
        "x = torch.randn(1 << 20); a = x.numpy(); x.exp()",
        "doubled(x, 1 << 20); print(own_threads())",
        "assert (doubled(a, 1 << 20) == 2 * a).all(); print(own_threads())",
        "doubled(x, 1 << 20); print(own_threads())",
    )
    assert found.split() == ["0", str(min(2, CORES) - 1), str(min(2, CORES) - 1)]


def test_pieces_are_taken_by_who_has_time():
    """The last blocks of the grid take longest; each block is computed once."""

    @T.prim_func
    def uneven(X: T.Tensor((301,), "int32"), Y: T.Tensor((301,), "int32")):
        with T.Kernel(301, threads=1) as b:
            total = T.alloc_var("int32")
            total = 0
            for i in T.serial(b * 30):
                total = (total * 31 + X[i % 301]) % 1000003
            Y[b] = Y[b] + total

    def expected(x, b):
        total = 0
        for i in range(b * 30):
            total = (total * 31 + x[i % 301]) % 1000003
        return total

    x = torch.arange(301, dtype=torch.int32)
    wanted = [expected(x.tolist(), b) for b in range(301)]
    kernel = tilelang.compile(uneven)
    for is_shared in (True, False):
        runtime.share_threads(is_shared)
        for cores in (1, 2, 5):
            runtime.set_num_threads(cores)
            y = torch.zeros(301, dtype=torch.int32)
            kernel(x, y)
            assert y.tolist() == wanted


def test_more_callers_than_the_own_threads_serve_at_once():
    """They run their grids alone."""
    runtime.share_threads(False)
    runtime.set_num_threads(2)
    test_calls_of_many_threads_at_once(callers=9)


@pytest.mark.exhaustive
def test_a_forked_child_has_threads_of_its_own():
    """OpenMP would wait in it for threads that the parent has."""
    found = run(
        "import os, torch",
        "from tests.tilecore.test_thread_pools import doubled",
        "x = torch.randn(64 * 300); want = doubled(x, 1000).numpy()",
        "child = os.fork()",
        "if child == 0: os._exit(0 if (doubled(x, 1000).numpy() == want).all() else 3)",
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
    )
    assert found == "0"
