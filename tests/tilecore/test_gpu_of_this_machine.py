"""What "auto" is on a machine with a GPU, and how programs are timed there: torch stands in."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tilecore as tilelang
import tilecore.language as T
from tilecore import gpu_target, profiler
from tilecore.carver import arch
from tilecore.codegen.nvrtc import load_nvrtc
from tilecore.compat.__main__ import main as compat
from tilecore.gpu_target import GpuTarget, find_gpu_target
from tilecore.jit_compile import options_of
from tilecore.recommending import device_name
from tilecore.target import Target, gpu_programs_on_cpu, parse_target


@pytest.fixture
def h200(monkeypatch):
    """A machine with an H200 and a torch that can use it."""
    found = find_gpu_target("h200")
    monkeypatch.setattr(gpu_target, "local_device", lambda: found)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    return found


def test_auto_is_the_gpu_of_a_machine_that_has_one(h200):
    assert parse_target("auto") is h200
    assert device_name("auto") == "cuda"
    assert options_of({"target": None}).target == "auto"  # TileLang's default
    assert arch.get_arch().name == "h200"
    assert arch.driver.get_num_sms() == 132
    assert isinstance(parse_target("llvm"), Target)


def test_auto_is_the_cpu_for_programs_that_run_there_and_for_a_torch_without_cuda(
    h200, monkeypatch
):
    with gpu_programs_on_cpu(""):
        assert isinstance(parse_target("auto"), Target)
    with gpu_programs_on_cpu("a100"):
        found = parse_target("auto")
        assert isinstance(found, GpuTarget)
        assert found.device == "a100"
    monkeypatch.setattr(torch.version, "cuda", None)
    assert isinstance(parse_target("auto"), Target)


@tilelang.jit
def doubled(A):
    """Twice a tensor, in the eager style."""
    n = T.const("n")
    A: T.Tensor((n,), "float32")
    B = T.empty((n,), "float32")
    with T.Kernel(T.ceildiv(n, 64), threads=64) as bx:
        for i in T.Parallel(64):
            B[bx * 64 + i] = A[bx * 64 + i] * 2
    return B


@pytest.mark.skipif(load_nvrtc() is None, reason="NVRTC is not installed")
def test_tensors_decide_where_a_program_runs_that_leaves_it_open(h200):
    kernel = doubled.compile(n=100)
    assert kernel.artifact.manifest.isa == "h200"
    a = torch.arange(100, dtype=torch.float32)
    assert torch.equal(kernel(a), 2 * a)
    assert torch.equal(doubled(a), 2 * a)
    b = np.ones(100, np.float32)
    assert (kernel(b) == 2).all()


class Event:
    """An event of a device whose calls take 2.5 ms each."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        """Note nothing: the device's clock is ours."""

    def synchronize(self):
        """There is nothing to wait for."""

    def elapsed_time(self, end):
        """Return the milliseconds of a call."""
        return 2.5


def test_calls_on_a_device_are_timed_by_its_events(monkeypatch):
    written = []
    cold = SimpleNamespace(zero_=lambda: written.append(1))
    cuda = SimpleNamespace(is_initialized=lambda: True, Event=Event)
    made = SimpleNamespace(cuda=cuda, empty=lambda size, dtype, device: cold, uint8="uint8")
    monkeypatch.setitem(sys.modules, "torch", made)
    calls = []
    assert profiler.do_bench(lambda: calls.append(1), n_warmup=2, n_repeat=5) == 2.5
    assert len(calls) == 1 + 1 + 2 + 5  # the first, one to know how long, warm-up, measured
    assert len(written) == 6  # what caches hold is gone before each that is timed


def test_a_process_without_a_device_is_timed_by_the_clock():
    assert profiler.do_bench(lambda: None, n_warmup=1, n_repeat=3) < 1.0


def test_programs_run_on_a_device_only_where_there_is_one(tmp_path, capsys):
    program = tmp_path / "program.py"
    program.write_text("raise SystemExit(0)\n")
    assert compat(["--device", str(program)]) == 2
    assert "TC306" in capsys.readouterr().err


def test_inputs_of_a_kernel_lie_where_it_wants_them():
    moved = []

    class Tensor:
        def to(self, device):
            moved.append(device)
            return self

    assert profiler.on_device([Tensor(), 3], "cpu")[1] == 3
    assert not moved
    assert profiler.on_device([Tensor(), 3], "cuda")[1] == 3
    assert moved == ["cuda"]
