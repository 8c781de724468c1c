"""@autotune and AutoTuner for GPUs: measured where the device is, recommended where it is not."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
import torch

import tilecore as tilelang
import tilecore.language as T
from tilecore.autotuner import AutoTuner
from tilecore.codegen.nvrtc import load_nvrtc
from tilecore.errors import ToolchainMissing, TuningFailed, UnknownTarget
from workers.devices import gpu_devices

pytestmark = [
    pytest.mark.skipif(load_nvrtc() is None, reason="NVRTC is not installed"),
    pytest.mark.skipif(bool(gpu_devices()), reason="this machine has a GPU"),
]
CONFIGS = [
    {"block_M": 32, "block_N": 32, "threads": 128},
    {"block_M": 64, "block_N": 64, "threads": 128},
    {"block_M": 1024, "block_N": 1024, "threads": 128},  # fits no device
]
M, N, K = 64, 96, 64


@pytest.fixture(scope="module", autouse=True)
def data_dir(tmp_path_factory):
    """One database for the tests of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILECORE_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield


def matmul(block_M: int, block_N: int, threads: int, factor: float = 1.0):
    @T.prim_func
    def main(
        A: T.Tensor((M, K), "bfloat16"),
        B: T.Tensor((K, N), "bfloat16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            a = T.alloc_shared((block_M, 32), "bfloat16")
            b = T.alloc_shared((32, block_N), "bfloat16")
            c = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(c)
            for k in T.Pipelined(K // 32, num_stages=2):
                T.copy(A[by * block_M, k * 32], a)
                T.copy(B[k * 32, bx * block_N], b)
                T.gemm(a, b, c)
            for i, j in T.Parallel(block_M, block_N):
                c[i, j] *= factor
            T.copy(c, C[by * block_M, bx * block_N])

    return main


def tuner(target, configs=CONFIGS, **profile):
    made = AutoTuner.from_kernel(matmul, configs).set_compile_args(out_idx=[-1], target=target)
    return made.set_profile_args(ref_prog=lambda a, b: a.float() @ b.float(), **profile)


@pytest.mark.exhaustive
def test_what_ran_on_the_emulator_is_told_apart_and_remembered():
    configs = [{**CONFIGS[0], "factor": 1.5}, *CONFIGS]
    found = tuner("emulated h200", configs).run()
    assert found.is_measured
    assert not found.is_stored
    assert found.config in CONFIGS[:2]
    assert found.latency > 0
    (wrong, why), (large, reason) = found.failures
    assert (wrong, "WRONG_RESULT" in why) == (configs[0], True)
    assert (large, "TC303" in reason) == (CONFIGS[2], True)
    a, b = torch.randn(M, K).bfloat16(), torch.randn(K, N).bfloat16()
    torch.testing.assert_close(found.kernel(a, b), a.float() @ b.float(), rtol=1e-3, atol=1e-3)
    again = tuner("emulated h200", configs).run()
    assert (again.is_stored, again.config, again.latency) == (True, found.config, found.latency)


@pytest.mark.parametrize("target", ["h100", "cuda"])
def test_without_the_device_the_recommended_config_is_compiled(target, caplog):
    @tilelang.autotune(configs=CONFIGS)
    @tilelang.jit(out_idx=[-1], target=target)
    def kernel(block_M: int = 32, block_N: int = 32, threads: int = 128):
        return matmul(block_M, block_N, threads)

    with caplog.at_level(logging.WARNING, "tilecore.autotuner"):
        made = kernel()
    (result,) = kernel.results.values()
    assert result.kernel is made
    assert not result.is_measured
    assert math.isnan(result.latency)
    assert made.latency is None
    assert result.config in CONFIGS[:2]
    assert "nothing was measured" in caplog.text
    assert "this machine has no NVIDIA" in caplog.text
    assert "mma" in made.get_kernel_source()
    with pytest.raises(ToolchainMissing, match=r"TC306[^\n]*\n.*kernel\.emulated\(\)"):
        made(torch.zeros(M, K).bfloat16(), torch.zeros(K, N).bfloat16())


def test_nothing_that_compiles_is_no_recommendation():
    with pytest.raises(TuningFailed, match=r"TC503.*shared memory"):
        tuner("h100", CONFIGS[2:]).run()


def test_a_target_that_is_emulated_runs_on_this_machine():
    kernel = tilelang.compile(matmul(**CONFIGS[0]), out_idx=[-1], target="emulated h200")
    rng = np.random.default_rng(0)
    a, b = (torch.from_numpy(rng.standard_normal(s, np.float32)) for s in ((M, K), (K, N)))
    expected = a.bfloat16().float() @ b.bfloat16().float()
    torch.testing.assert_close(kernel(a.bfloat16(), b.bfloat16()), expected, rtol=1e-3, atol=1e-3)
    assert "mma" in kernel.get_kernel_source()
    for name in ("emulated z80", "emulated avx1024"):
        with pytest.raises(UnknownTarget, match="TC304"):
            tilelang.compile(matmul(**CONFIGS[0]), target=name)
