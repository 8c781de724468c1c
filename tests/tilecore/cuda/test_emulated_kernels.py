"""Kernels of GPUs that are called with CPU tensors: JITKernel.emulated, compat --emulate."""

from pathlib import Path

import numpy as np
import pytest
import torch

import tilecore as tilelang
import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tests.tilecore.cuda.tile_programs import gemm
from tilecore.compat import runner
from tilecore.compat.__main__ import main
from tilecore.compat.runner import Machine
from tilecore.emulator import ALL_SCHEDULES, EmulatedDriver
from tilecore.errors import UnsupportedOnTarget
from tilecore.gpu_compiler import lower_gpu, tensor_maps
from tilecore.profiler import do_bench
from tilecore.runtime import CudaKernel
from tilecore.target import gpu_programs_on_cpu, parse_gpu_target


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["sm_80", "h100"])
def test_a_kernel_of_a_gpu_on_cpu_tensors(target):
    program = gemm(96, 64, 96, (64, 64, 32), 2, "bfloat16", "bfloat16")
    kernel = tilelang.compile(program, out_idx=[-1], target=target)
    assert kernel.artifact.manifest.resources["resident_blocks"] > 0
    a = torch.randn(96, 96, dtype=torch.bfloat16)
    b = torch.randn(96, 64, dtype=torch.bfloat16)
    c = kernel.emulated(ALL_SCHEDULES)(a, b)
    torch.testing.assert_close(c.double(), a.double() @ b.double(), atol=0.1, rtol=0.01)


def test_a_kernel_of_a_cpu_is_not_emulated():
    kernel = tilelang.compile(gemm(32, 32, 32, (32, 32, 32), 1, "float32", "float32"))
    with pytest.raises(UnsupportedOnTarget, match=r"TC302 .*emulating `main` on target llvm"):
        kernel.emulated()


def _summed(source):
    @T.prim_func
    def main(
        W: T.Tensor((3, 3, 8, 32), "float16"),
        table: T.Tensor((1,), "int64"),
        C: T.Tensor((24, 32), "float32"),
    ):
        with T.Kernel(1, threads=128):
            if source == "view":
                flat = T.reshape(W, (72, 32))
            else:
                flat = T.make_tensor(table[0], (72, 32), "float16")
            part = T.alloc_shared((24, 32), "float16")
            total = T.alloc_fragment((24, 32), "float32")
            T.clear(total)
            for k in T.Pipelined(3, num_stages=2):
                T.copy(flat[k * 24, 0], part)
                for i, j in T.Parallel(24, 32):
                    total[i, j] += part[i, j]
            T.copy(total, C)

    return main


@pytest.mark.few(1)
@pytest.mark.parametrize(("source", "maps"), [("view", ["W"]), ("address", [])])
def test_maps_of_views_and_none_of_addresses(source, maps):
    """Once a map bore the name of its view, which no argument has, and addresses got maps too."""
    program = _summed(source)
    target = parse_gpu_target("h100")
    _, lowered, text = lower_gpu(program, target)
    assert [m.tensor for m in tensor_maps(lowered)] == maps
    w = torch.randn(3, 3, 8, 32, dtype=torch.float16)
    table = torch.tensor([w.data_ptr()])
    kernel = tilelang.compile(program, target="h100")
    for run in (kernel.emulated(), CudaKernel(kernel.artifact, EmulatedDriver(text))):
        c = torch.zeros(24, 32)
        run(w, table, c)
        torch.testing.assert_close(c, w.reshape(3, 24, 32).float().sum(0))


PROGRAM = """
import torch
import tilelang
import tilelang.language as T

@tilelang.jit(out_idx=[-1])
def double(n):
    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 64), threads=64) as bx:
            for i in T.Parallel(64):
                B[bx * 64 + i] = A[bx * 64 + i] * 2
    return main

kernel = double(100)
assert "__global__" in kernel.get_kernel_source()
assert torch.cuda.get_device_capability() == (8, 0)
a = torch.randn(100, device="cuda")
torch.testing.assert_close(kernel(a), a * 2)
"""


def test_programs_run_as_code_of_a_gpu(tmp_path: Path, capsys):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    assert runner.attempt(program, machine=Machine((8, 0), "a100")).kind == runner.CHECKED
    table = tmp_path / "table.md"
    survey = ["--emulate", "a100", "--survey", str(tmp_path), "--out", str(table)]
    assert main(survey) == 0
    assert "target a100, emulated; 1 programs" in table.read_text()
    assert "| passes its own check | 1 |" in table.read_text()
    assert main(["--emulate", "avx2", str(program)]) == 2
    assert "TC304" in capsys.readouterr().err


def test_one_call_is_timed_on_the_emulator():
    calls = []
    with gpu_programs_on_cpu("h100"):
        assert len(do_bench(lambda: calls.append(1), quantiles=[0.2, 0.5])) == 2
    assert len(calls) == 1


@pytest.mark.parametrize("target", ["sm_80", "h100"])
def test_private_arrays_are_each_threads_own(target):
    """Once threads shared out copies and fills of their own arrays, each doing a part."""

    @T.prim_func
    def main(A: T.Tensor((16, 64), "float32"), B: T.Tensor((16, 64), "float32")):
        with T.Kernel(2, threads=(8, 4)) as bx:
            row, part = T.get_thread_binding(0), T.get_thread_binding(1)
            own = T.alloc_local((16,), "float32")
            total = T.alloc_local((2,), "float32")
            T.clear(total)
            T.copy(A[bx * 8 + row, part * 16 : part * 16 + 16], own)
            for i in T.unroll(16):
                total[i % 2] += own[i]
            for i in T.unroll(16):
                own[i] = own[i] + total[i % 2]
            T.copy(own, B[bx * 8 + row, part * 16 : part * 16 + 16])

    a = np.random.default_rng(4).standard_normal((16, 64), dtype=np.float32)
    b = np.zeros_like(a)
    run_emulated(main, target, [a, b], ALL_SCHEDULES)
    parts = a.reshape(16, 4, 8, 2)
    expected = parts + parts.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(b, expected.reshape(16, 64), rtol=1e-5, atol=1e-5)


def test_three_warpgroups_multiply_what_their_registers_hold():
    """Once 3 warpgroups beside a producer got wgmma of 256 columns: ptxas refused (C7602)."""
    func = gemm(192, 256, 128, (192, 256, 64), 2, "float16", "float16", threads=384)
    kernel = tilelang.compile(func, target="h100")
    assert "wgmma.m64n128k16" in kernel.explain()
    assert kernel.artifact.manifest.resources["spill_bytes"] == 0
    a, b = torch.randn(192, 128).half(), torch.randn(128, 256).half()
    c = torch.zeros(192, 256).half()
    kernel.emulated()(a, b, c)
    torch.testing.assert_close(c.double(), a.double() @ b.double(), atol=0.05, rtol=0.01)
