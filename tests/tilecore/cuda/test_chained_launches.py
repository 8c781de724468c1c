"""Launches that begin before those before have ended, and wait for them (T.pdl_sync, sm_90)."""

import json

import numpy as np
import pytest
import torch

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tests.tilecore.cuda.test_tile_programs import close, random
from tilecore.artifact import ArtifactStore
from tilecore.codegen.cubin import read_features
from tilecore.compiler import compile
from tilecore.emulator import ALL_SCHEDULES, EmulatedDriver
from tilecore.ir.document import digest, read, write
from tilecore.runtime.cuda import CudaKernel
from tilecore.target import parse_target

M, N, K = 192, 128, 96


def twice(waits=True):
    """C = (2 A) B by two launches."""

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        doubled = T.alloc_global((M, K), "float16")
        with T.Kernel(M // 32, threads=128) as b:
            T.pdl_trigger()
            for i, k in T.Parallel(32, K):
                doubled[b * 32 + i, k] = A[b * 32 + i, k] * 2.0
        with T.Kernel(M // 64, threads=128) as b:
            a = T.alloc_shared((64, 32), "float16")
            other = T.alloc_shared((32, N), "float16")
            c = T.alloc_fragment((64, N), "float32")
            T.clear(c)
            if waits:
                T.pdl_sync()
            for step in T.Pipelined(K // 32, num_stages=2):
                T.copy(doubled[b * 64, step * 32], a)
                T.copy(B[step * 32, 0], other)
                T.gemm(a, other, c)
            T.copy(c, C[b * 64, 0])

    return main


@pytest.mark.parametrize(("target", "is_there"), [("h100", True), ("b200", True), ("sm_80", False)])
def test_a_launch_waits_before_it_reads_anything(target, is_there):
    func = twice()
    rng = np.random.default_rng(3)
    a, b, c = random(rng, (M, K), "float16"), random(rng, (K, N), "float16"), np.zeros((M, N), "f4")
    run_emulated(func, target, [a, b, c], ALL_SCHEDULES)
    close(c, 2.0 * a.astype(np.float64) @ b.astype(np.float64), "float32")
    source = lowered(func, target)[2]
    assert [e.is_chained for e in source.entries] == [False, is_there]
    first, second = source.text.split('extern "C"')[-2:]
    assert ("tc_launch_dependents();" in first) == is_there
    assert ("__restrict__" in first) == (not is_there)  # else loads might overtake the wait
    if not is_there:
        assert "tc_await_launches" not in source.text
        return
    wait = second.index("tc_await_launches();")
    assert wait < min(second.index(what) for what in ("if (", "tc_tma_load", "tc_barrier_init"))


def test_the_machine_code_has_both_instructions(tmp_path):
    artifact = compile(twice(), parse_target("h100"), store=ArtifactStore(tmp_path))
    first, second = read_features(artifact.library.read_bytes(), "sm_90a").values()
    found = [(k.opcodes.get("PREEXIT", 0), k.opcodes.get("ACQBULK", 0)) for k in (first, second)]
    assert sorted(found) == [(0, 1), (1, 0)]


def test_the_driver_is_told_which_launches_are_chained(tmp_path):
    asked = []

    class Told(EmulatedDriver):
        def launcher(self, *given):
            asked.append(given[-1])
            return super().launcher(*given)

    for waits in (True, False):
        func = twice(waits)
        artifact = compile(func, parse_target("h100"), store=ArtifactStore(tmp_path))
        manifest = json.loads((artifact.path / "manifest.json").read_text())
        assert [e["is_chained"] for e in manifest["device"]["entries"]] == [False, waits]
        kernel = CudaKernel(artifact, Told(lowered(func, "h100")[2]))
        a, b = torch.randn(M, K).half(), torch.randn(K, N).half()
        c = torch.zeros(M, N)
        kernel(a, b, c)
        torch.testing.assert_close(c, 2 * a.float() @ b.float(), rtol=1e-2, atol=1e-2)
    assert asked == [False, True, False, False]


def test_a_program_as_data_says_it_too():
    func = twice()
    again, _ = read(write(func))
    assert digest(again) == digest(func) != digest(twice(waits=False))
