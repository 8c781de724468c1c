"""What the emulator says about kernels that do what a GPU does not define."""

import numpy as np
import pytest

from tests.tilecore.cuda.programs import gemm_sm80
from tests.tilecore.cuda.text_kernels import run
from tilecore.codegen.cuda import CudaSource, generate
from tilecore.emulator import LATE, TensorMap, build, emulate, random_order
from tilecore.errors import CompileFailed, EmulationError
from tilecore.lowering.cuda import instructions as I
from tilecore.target import parse_target

WARP = {"threads": 32, "shared_bytes": 1024}
BLOCK = {"threads": 128, "shared_bytes": 1024}
# Name: (body, instructions, shape, message).
FAULTS = {
    "a barrier that some threads do not reach": (
        "if (threadIdx.x < 64) __syncthreads();", [], BLOCK,
        r"deadlock:\n  block \(0, 0, 0\)\n    threads 0 to 63: __syncthreads, line \d+\n"
        r"    threads 64 to 127: exited",
    ),
    "a warp that does not stay together": (
        "if (threadIdx.x < 16) __syncwarp(); else __shfl_xor_sync(~0u, 1, 1);", [], WARP,
        "divergent warp: one lane is at shfl.bfly, another one at __syncwarp",
    ),
    "lanes that do not take part": (
        "if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, 20);", [], WARP,
        "reads lane 20, which does not take part",
    ),
    "a lane outside its own mask": ("__syncwarp(0xffu);", [], WARP, "not in its own mask 0xff"),
    "a race between warps": (
        "((int*)smem)[threadIdx.x] = 1; out[threadIdx.x] = ((int*)smem)[127 - threadIdx.x];", [],
        BLOCK, r"race: thread \d+ (reads|writes) shared memory at byte \d+, which thread \d+ ",
    ),
    "two values in one place": (
        "((int*)smem)[threadIdx.x / 2] = threadIdx.x;", [], BLOCK,
        "write different values to shared memory at byte",
    ),
    "reading while another one writes": (
        "((int*)smem)[threadIdx.x] = 1; __syncthreads();"
        "int v = ((int*)smem)[127 - threadIdx.x]; ((int*)smem)[threadIdx.x] = v;", [], BLOCK,
        r"race: thread \d+ (writes|reads) .*, which thread \d+ (reads|writes)",
    ),
    "shared memory that the block does not have": (
        "((int*)smem)[224 + threadIdx.x] = 1;", [], BLOCK,
        "a store: shared memory at byte 1024, 4 bytes; the block has 1024",
    ),
    "a vector at an odd address": (
        "float4 v = {1, 2, 3, 4}; *(float4*)(out + threadIdx.x) = v;", [], WARP,
        "a store: misaligned address, expected a multiple of 16",
    ),
    "a store behind the end": (
        "out[97 + threadIdx.x] = 1;", [], WARP,
        "a store: global memory out of bounds, byte 512 of `out`, which has 512",
    ),
    "a load before the begin": (
        "out[threadIdx.x] = out[(int)threadIdx.x - 1];", [], WARP, "byte -4 of `out`",
    ),
    "an atomic update behind the end": (
        "atomicAdd(out + 128, 1.0f);", [], WARP, "an atomic update: global memory out of bounds",
    ),
    "a barrier nobody initialised": (
        "tc_barrier_arrive(smem);", [I.barrier_arrive()], WARP, "no barrier was initialised",
    ),
    "a barrier that is initialised twice": (
        "if (threadIdx.x == 0) { tc_barrier_init(smem, 1); tc_barrier_init(smem, 1); }",
        [I.barrier_init()], WARP, "initialised before",
    ),
    "more arrivals than expected": (
        "if (threadIdx.x == 0) { tc_barrier_init(smem, 2); tc_barrier_expect(smem, 16);"
        "tc_barrier_arrive(smem); tc_barrier_arrive(smem); }",
        [I.barrier_init(), I.barrier_arrive(), I.barrier_expect()], WARP, "more arrivals than",
    ),
    "a wait that never ends": (
        "if (threadIdx.x == 0) { tc_barrier_init(smem, 1); tc_barrier_wait(smem, 0); }",
        [I.barrier_init(), I.barrier_wait()], WARP,
        r"threads 0 to 0: mbarrier at byte 0, parity 0, line \d+\n    threads 1 to 31: exited",
    ),
    "a named barrier of different sizes": (
        "tc_bar_sync(1, threadIdx.x < 32 ? 64 : 128);", [I.bar_sync()], BLOCK,
        "divergent barrier 1: one thread expects 64 threads, another one 128",
    ),
    "a spin without end": (
        "while (tc_load_acquire_gpu_int32(out) == 0) ;", [I.load_ordered("int32")], WARP,
        "threads 0 to 31: spinning",
    ),
    "a trap": ("if (threadIdx.x == 7) __trap();", [], WARP, r"__trap\(\).*thread 7"),
    "local addresses for ldmatrix": (
        "alignas(16) unsigned r[4]; tc_ldmatrix_x1(r, r);", [I.ldmatrix(1)], WARP, "shared memory",
    ),
    "cp.async to an odd address": (
        "tc_cp_async_cg_16(smem + 8, out);", [I.cp_async(16)], WARP, "expected a multiple of 16",
    ),
    "half a warpgroup": ("tc_wgmma_fence();", [I.wgmma_fence()], WARP, "128 threads is needed"),
    "static memory beyond the limit": (
        "__shared__ float big[60000]; big[threadIdx.x] = 1;", [], WARP, "is more than 232448",
    ),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_reported(name):
    body, instructions, shape, message = FAULTS[name]
    with pytest.raises(EmulationError, match=message):
        run(body, {"out": np.zeros(128, np.float32)}, instructions, **shape)


# What threads of a block do to one element of a tensor, and whether that is in order.
ON_ONE_ELEMENT = {
    "a barrier": ("out[threadIdx.x] = 1; __syncthreads(); out[(threadIdx.x + 1) % 128] = 2;", True),
    "one value": ("out[0] = 3;", True),
    "atomic updates": ("atomicAdd(out, 1.0f); __syncthreads(); out[threadIdx.x] += out[0];", False),
    "an atomic update and a load": ("out[1 + threadIdx.x % 64] = atomicAdd(out, 1.0f) * 0;", True),
    "a warp that waits": (
        "out[threadIdx.x] = 1; __syncwarp(); out[threadIdx.x ^ 1] = 2;", True,
    ),
    "a warp that does not wait": ("out[threadIdx.x] = 1; out[threadIdx.x ^ 1] = 2;", False),
    "an update without an order": ("out[5] += 1;", False),
    "bytes side by side": ("((unsigned char*)out)[threadIdx.x] = threadIdx.x;", True),
    "a wide load": (
        "out[threadIdx.x] = 1; if (threadIdx.x % 32 == 31)"
        " { float4 v = *(float4*)(out + threadIdx.x - 3); ((float*)smem)[threadIdx.x] = v.y; }",
        False,
    ),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ON_ONE_ELEMENT)
def test_races_in_global_memory(name):
    body, is_ordered = ON_ONE_ELEMENT[name]
    given = {"out": np.zeros(128, np.float32)}
    for schedule in (LATE, random_order(1)):
        if is_ordered:
            run(body, given, schedule=schedule, **BLOCK)
        else:
            with pytest.raises(EmulationError, match=r"race: thread \d+ .*`out` at byte \d+"):
                run(body, given, schedule=schedule, **BLOCK)


def test_what_other_blocks_store_is_not_in_question():
    out = np.full(128, np.nan, np.float32)
    body = "out[threadIdx.x] = blockIdx.x;"
    run(body, {"out": out}, grid=3, options={"resident": 3}, **BLOCK)
    assert set(out) <= {0.0, 1.0, 2.0}


def test_threads_may_write_one_value_to_one_place():
    out = np.zeros(128, np.float32)
    body = "((int*)smem)[0] = 7; __syncthreads(); out[threadIdx.x] = ((int*)smem)[0];"
    run(body, {"out": out}, **BLOCK)
    assert (out == 7).all()


def test_shared_memory_begins_as_nan():
    out = np.zeros(128, np.float32)
    run("out[threadIdx.x] = ((float*)smem)[threadIdx.x];", {"out": out}, **BLOCK)
    assert np.isnan(out).all()


def test_static_arrays_lie_behind_dynamic_memory():
    out = np.zeros(128, np.float32)
    body = """
      __shared__ float a[128]; __shared__ __align__(256) double b[4];
      a[threadIdx.x] = threadIdx.x; if (threadIdx.x < 4) b[threadIdx.x] = 0.5;
      ((float*)smem)[threadIdx.x] = 1; __syncthreads();
      out[threadIdx.x] = a[127 - threadIdx.x] + b[threadIdx.x % 4] + ((float*)smem)[threadIdx.x];
      if ((unsigned long long)b % 256) __trap();"""
    run(body, {"out": out}, **BLOCK)
    np.testing.assert_array_equal(out, 128.5 - np.arange(128))


def test_results_that_depend_on_the_order_are_reported():
    body = "if (threadIdx.x % 32 == 0) out[0] = out[0] * 2.0f + threadIdx.x;"
    from tests.tilecore.cuda.text_kernels import Kernel, pointer, source

    made = build(source([Kernel("k", body, (pointer("out", "float"),), threads=128)], []))
    schedules = (LATE, *map(random_order, range(1, 6)))
    with pytest.raises(EmulationError, match=r"`out`\[0\] is .* under late delivery and"):
        emulate(made, {"out": np.ones(1, np.float32)}, schedules, finds_races=False)


def test_inline_assembly_of_unknown_origin_is_refused():
    made = CudaSource("", 'extern "C" __global__ void k() { asm("nop;"); }', (), "sm_80")
    with pytest.raises(EmulationError, match="no emulation of"):
        build(made)


def test_text_that_is_no_program():
    with pytest.raises(CompileFailed, match="for the emulator"):
        build(CudaSource("", 'extern "C" __global__ void k() { nonsense }', (), "sm_80"))


def test_limits_of_a_launch():
    func = gemm_sm80(64, 64, 64, stages=24)
    made = build(generate(func, parse_target("rtx3090")))
    arrays = {n: np.zeros((64, 64), np.float16) for n in "ABC"}
    with pytest.raises(EmulationError, match="196608 bytes of shared memory, sm_86 has 101376"):
        made.run(arrays)
    with pytest.raises(EmulationError, match="no value was given for `B`"):
        build(generate(gemm_sm80(64, 64, 64), parse_target("a100"))).run({"A": arrays["A"]})


def test_what_the_driver_refuses_of_a_tensor_map():
    a = np.zeros((8, 40), np.float16)
    faults = {
        "16 bytes": TensorMap(a[:, 1:], (8, 8)), "256 elements": TensorMap(a, (8, 512)),
        "does not fit a swizzle": TensorMap(a, (8, 32), 32),
        "contiguous elements": TensorMap(a.T, (8, 8)),
        "row of the box": TensorMap(a, (8, 4)), "as many of the box": TensorMap(a, (8,)),
    }  # fmt: skip
    for message, made in faults.items():
        with pytest.raises(EmulationError, match=message):
            made.encode()
