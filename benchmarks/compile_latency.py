"""What a user waits for: tracing, compiling, a hit of the cache, and the call itself.

    python benchmarks/compile_latency.py [--repeats 7] [--out benchmarks/results/NAME.json]

Programs: TileLang's quickstart (GEMM + ReLU, float16, 1024^3) and a flash attention forward
(float16, 1 x 512 x 8 x 64, causal), both in TileLang's language. Every repeat compiles into an
empty store, in a process that has imported everything; times are medians of wall and of process
CPU time. The call overhead is that of a kernel on 64 elements beside a bare ``torch.add`` into an
output of that size. benchmarks/tilelang_gpu.py builds GPU code beside TileLang.

For GPUs (--gpu, default a100 and h100; none is needed): the same programs to a cubin by NVRTC, and
how many candidates a core builds per second; the goals are 0.25 s (sm_80 GEMM), 0.4 s (sm_90a GEMM)
and 1 s (attention) of CPU time.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import tilecore as tilelang
import tilecore.language as T
from tilecore import runtime
from tilecore.artifact import ArtifactStore, compiler_versions
from tilecore.codegen.cubin import read_features
from tilecore.codegen.nvrtc import compile_cuda, load_nvrtc
from tilecore.compiler import compile, lower
from tilecore.frontend import source
from tilecore.gpu_compiler import lower_gpu
from tilecore.gpu_target import GpuTarget
from tilecore.ir.nodes import PrimFunc
from tilecore.target import parse_target


def quickstart() -> PrimFunc:
    """Return TileLang's quickstart program."""
    M, N, K, block_M, block_N, block_K = 1024, 1024, 1024, 128, 128, 32

    @T.prim_func
    def gemm_relu(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float16"),
    ) -> None:
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), "float16")
            B_shared = T.alloc_shared((block_K, block_N), "float16")
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(C_local)
            for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=3):
                T.copy(A[by * block_M, ko * block_K], A_shared)
                T.copy(B[ko * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            for i, j in T.Parallel(block_M, block_N):
                C_local[i, j] = T.max(C_local[i, j], 0)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return gemm_relu


def attention() -> PrimFunc:
    """Return a causal flash attention forward, as in TileLang's examples."""
    heads, length, dim, block_M, block_N = 8, 512, 64, 64, 64
    shape, scale = (1, length, heads, dim), (1.0 / 64) ** 0.5 * 1.44269504

    @T.prim_func
    def flash_attention(
        Q: T.Tensor(shape, "float16"),
        K: T.Tensor(shape, "float16"),
        V: T.Tensor(shape, "float16"),
        Output: T.Tensor(shape, "float16"),
    ) -> None:
        with T.Kernel(T.ceildiv(length, block_M), heads, 1, threads=128) as (bx, by, bz):
            Q_shared = T.alloc_shared((block_M, dim), "float16")
            K_shared = T.alloc_shared((block_N, dim), "float16")
            V_shared = T.alloc_shared((block_N, dim), "float16")
            acc_s = T.alloc_fragment((block_M, block_N), "float32")
            acc_s_cast = T.alloc_fragment((block_M, block_N), "float16")
            acc_o = T.alloc_fragment((block_M, dim), "float32")
            scores_max = T.alloc_fragment((block_M,), "float32")
            scores_max_prev = T.alloc_fragment((block_M,), "float32")
            scores_scale = T.alloc_fragment((block_M,), "float32")
            scores_sum = T.alloc_fragment((block_M,), "float32")
            logsum = T.alloc_fragment((block_M,), "float32")
            T.copy(Q[bz, bx * block_M : (bx + 1) * block_M, by, :], Q_shared)
            T.fill(acc_o, 0)
            T.fill(logsum, 0)
            T.fill(scores_max, -T.infinity("float32"))
            for k in T.Pipelined(bx + 1, num_stages=1):
                T.copy(K[bz, k * block_N : (k + 1) * block_N, by, :], K_shared)
                for i, j in T.Parallel(block_M, block_N):
                    acc_s[i, j] = T.if_then_else(
                        bx * block_M + i >= k * block_N + j, 0, -T.infinity("float32")
                    )
                T.gemm(Q_shared, K_shared, acc_s, transpose_B=True)
                T.copy(scores_max, scores_max_prev)
                T.reduce_max(acc_s, scores_max, dim=1, clear=False)
                for i in T.Parallel(block_M):
                    scores_scale[i] = T.exp2(scores_max_prev[i] * scale - scores_max[i] * scale)
                for i, j in T.Parallel(block_M, block_N):
                    acc_s[i, j] = T.exp2(acc_s[i, j] * scale - scores_max[i] * scale)
                T.reduce_sum(acc_s, scores_sum, dim=1)
                for i in T.Parallel(block_M):
                    logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]
                T.copy(acc_s, acc_s_cast)
                for i, j in T.Parallel(block_M, dim):
                    acc_o[i, j] *= scores_scale[i]
                T.copy(V[bz, k * block_N : (k + 1) * block_N, by, :], V_shared)
                T.gemm(acc_s_cast, V_shared, acc_o)
            for i, j in T.Parallel(block_M, dim):
                acc_o[i, j] /= logsum[i]
            T.copy(acc_o, Output[bz, bx * block_M : (bx + 1) * block_M, by, :])

    return flash_attention


def timed(call: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Return the medians of wall and process CPU time of a call, in ms."""
    wall, cpu = [], []
    for _ in range(repeats):
        start, start_cpu = time.perf_counter(), time.process_time()
        call()
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - start_cpu)
    return {"wall_ms": statistics.median(wall) * 1e3, "cpu_ms": statistics.median(cpu) * 1e3}


def trace_anew(program: Callable[[], PrimFunc]) -> PrimFunc:
    """Trace a program as on its first call: source read, parsed and rewritten."""
    source._load.cache_clear()
    return program()


def compile_anew(func: PrimFunc) -> None:
    """Compile into an empty store and load the result."""
    with tempfile.TemporaryDirectory() as folder:
        runtime.load(compile(func, store=ArtifactStore(Path(folder))))


def measure(program: Callable[[], PrimFunc], repeats: int) -> dict[str, dict[str, float]]:
    """Return the times of one program by phase."""
    func = program()
    compile_anew(func)  # what is imported late is imported now
    with tempfile.TemporaryDirectory() as folder:
        store = ArtifactStore(Path(folder))
        runtime.load(compile(func, store=store))
        return {
            "trace, first": timed(lambda: trace_anew(program), repeats),
            "trace, again": timed(program, repeats),
            "infer and lower": timed(lambda: lower(func, parse_target("llvm"), {}), repeats),
            "compile and load": timed(lambda: compile_anew(func), repeats),
            "cache hit and load": timed(lambda: runtime.load(compile(func, store=store)), repeats),
        }


def measure_gpu(program: Callable[[], PrimFunc], name: str, repeats: int) -> dict[str, Any]:
    """Return the times of one program by phase for a GPU, and what its machine code uses."""
    target = parse_target(name)
    assert isinstance(target, GpuTarget)
    func = program()
    text = lower_gpu(func, target)[2].text
    cubin = compile_cuda(text, target.arch)

    def build() -> None:
        with tempfile.TemporaryDirectory() as folder:
            compile(func, target, store=ArtifactStore(Path(folder)))

    build()
    phases = {
        "infer, lower, generate": timed(lambda: lower_gpu(func, target), repeats),
        "NVRTC": timed(lambda: compile_cuda(text, target.arch), repeats),
        "compile and store": timed(build, repeats),
        "static features": timed(lambda: read_features(cubin.data, target.arch), repeats),
    }
    (features,) = read_features(cubin.data, target.arch).values()
    return {
        "phases": phases,
        "candidates_per_s_per_core": 1e3 / phases["compile and store"]["cpu_ms"],
        "registers": features.registers,
        "spill_bytes": cubin.spills,
        "instructions": features.instructions,
    }


def call_overhead_us(calls: int = 20_000, rounds: int = 7) -> dict[str, float]:
    """Return the time of a call on 64 elements in us: ours through the kernel, and torch.add."""

    @T.prim_func
    def add(
        A: T.Tensor((64,), "float32"),
        B: T.Tensor((64,), "float32"),
        C: T.Tensor((64,), "float32"),
    ) -> None:
        with T.Kernel(1):
            for i in T.Parallel(64):
                C[i] = A[i] + B[i]

    kernel = tilelang.compile(add)
    a, b, c = (torch.ones(64) for _ in range(3))
    candidates: dict[str, Callable[[], Any]] = {
        "kernel": lambda: kernel(a, b, c),
        "torch.add": lambda: torch.add(a, b, out=c),
    }
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, call in candidates.items():
            start = time.perf_counter()
            for _ in range(calls):
                call()
            times[name].append((time.perf_counter() - start) / calls * 1e6)
    return {name: statistics.median(t) for name, t in times.items()}


def main() -> None:
    """Measure and print everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--gpu", nargs="*", default=["a100", "h100"], help="names of GPUs")
    args = parser.parse_args()
    record: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": platform.processor() or platform.machine(),
        "versions": {"torch": torch.__version__, **compiler_versions()},
    }
    for program in (quickstart, attention):
        record[program.__name__] = found = measure(program, args.repeats)
        for phase, times in found.items():
            print(
                f"{program.__name__:>11}  {phase:<20} {times['wall_ms']:8.1f} ms wall "
                f"{times['cpu_ms']:8.1f} ms CPU"
            )
    for name in args.gpu if load_nvrtc() is not None else ():
        for program in (quickstart, attention):
            key = f"{program.__name__}, {name}"
            record[key] = built = measure_gpu(program, name, args.repeats)
            for phase, times in built["phases"].items():
                print(
                    f"{key:>17}  {phase:<24} {times['wall_ms']:8.1f} ms wall "
                    f"{times['cpu_ms']:8.1f} ms CPU"
                )
            print(
                f"{key:>17}  {built['candidates_per_s_per_core']:.1f} candidates/s per core, "
                f"{built['registers']} registers, {built['spill_bytes']} bytes spilled, "
                f"{built['instructions']} instructions"
            )
    record["call_us"] = call_overhead_us()
    for name, microseconds in record["call_us"].items():
        print(f"       call  {name:<20} {microseconds:8.2f} us")
    if args.out is not None:
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
