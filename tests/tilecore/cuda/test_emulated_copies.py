"""Copies, barriers, warps and atomic updates on the emulator against NumPy."""

import ml_dtypes
import numpy as np
import pytest

from tests.tilecore.cuda.text_kernels import Kernel, pointer, run, source, tensor_map
from tilecore.emulator import ALL_SCHEDULES, TensorMap, build, emulate
from tilecore.errors import EmulationError
from tilecore.lowering.cuda import instructions as I

BARRIER = [I.barrier_init(), I.barrier_expect(), I.barrier_wait(), I.fence_barrier_init()]


@pytest.mark.few(1)
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_tma_loads_and_stores_boxes_across_the_edge(rank):
    shape, box, at = (5, 4, 3, 6, 16)[-rank:], (2, 3, 2, 4, 8)[-rank:], (-1, 2, 1, -2, 12)[-rank:]
    a = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    seen, c = np.full(box, np.nan, np.float32), np.zeros(shape, np.float32)
    total = np.zeros(shape, np.float32)
    to = tuple(max(0, x) for x in at)  # loads alone may begin below 0
    coordinates, places = (", ".join(str(x) for x in y[::-1]) for y in (at, to))
    load_, store_, add = I.tma_load(rank), I.tma_store(rank), I.tma_reduce(rank, "add")
    size = seen.size
    body = f"""
      unsigned char* bar = smem + 8192;
      if (threadIdx.x == 0) {{
        tc_barrier_init(bar, 1); tc_fence_barrier_init(); tc_barrier_expect(bar, {size * 4});
        {load_.name}(smem, (unsigned long long)&a, bar, {coordinates});
      }}
      __syncthreads();
      tc_barrier_wait(bar, 0);
      for (int i = threadIdx.x; i < {size}; i += 32) seen[i] = ((float*)smem)[i];
      __syncthreads();
      for (int i = threadIdx.x; i < {size}; i += 32) ((float*)smem)[i] += 1.0f;
      tc_fence_async(); __syncthreads();
      if (threadIdx.x == 0) {{
        {store_.name}((unsigned long long)&c, smem, {places});
        {add.name}((unsigned long long)&total, smem, {places});
        {add.name}((unsigned long long)&total, smem, {places});
        tc_bulk_commit(); tc_bulk_wait_0();
      }}"""
    used = [*BARRIER, load_, store_, add, I.fence_async(), I.bulk_commit(), I.bulk_wait(0)]
    arguments = {
        "a": TensorMap(a, box),
        "seen": seen,
        "c": TensorMap(c, box),
        "total": TensorMap(total, box),
    }
    parameters = tuple(tensor_map(n) if n != "seen" else pointer(n, "float") for n in arguments)
    made = build(source([Kernel("k", body, parameters, shared_bytes=8200)], used))
    emulate(made, arguments, ALL_SCHEDULES)
    padded = np.zeros([n + 32 for n in shape], np.float32)
    padded[tuple(slice(16, 16 + n) for n in shape)] = a
    window = tuple(slice(16 + x, 16 + x + b) for x, b in zip(at, box, strict=True))
    np.testing.assert_array_equal(seen, padded[window])
    inside = np.zeros_like(padded)
    there = tuple(slice(16 + x, 16 + x + b) for x, b in zip(to, box, strict=True))
    inside[there] = padded[window] + 1
    inside = inside[tuple(slice(16, 16 + n) for n in shape)]
    np.testing.assert_array_equal(c, inside)
    np.testing.assert_array_equal(total, 2 * inside)


def test_multicast_and_remote_arrivals_in_a_cluster():
    """Block 0 loads for all four blocks; block 1 tells it when they have read."""
    a, out = np.arange(64, dtype=np.float32), np.zeros((4, 2, 64), np.float32)
    load_ = I.tma_load(1, multicast=True)
    body = f"""
      unsigned char *full = smem + 1024, *empty = smem + 1032;
      int rank = tc_cluster_rank();
      if (threadIdx.x == 0) {{
        tc_barrier_init(full, 1); tc_barrier_init(empty, 4); tc_fence_barrier_init();
      }}
      tc_cluster_arrive(); tc_cluster_wait();
      for (int step = 0; step < 2; ++step) {{
        if (threadIdx.x == 0) {{
          tc_barrier_expect(full, 256);
          if (rank == 0) {{
            if (step) tc_barrier_wait(empty, 0);
            {load_.name}(smem, (unsigned long long)&a, full, 0, 15);
          }}
        }}
        tc_barrier_wait(full, step);
        for (int i = threadIdx.x; i < 64; i += 32)
          out[(rank * 2 + step) * 64 + i] = ((float*)smem)[i] + rank;
        __syncthreads();
        if (threadIdx.x == 0) tc_barrier_arrive_remote(empty, 0);
      }}
      tc_cluster_arrive(); tc_cluster_wait();"""
    used = [*BARRIER, load_, I.cluster_rank(), I.cluster_arrive(), I.cluster_wait(),
            I.barrier_arrive_remote()]  # fmt: skip
    kernel = Kernel(
        "k", body, (tensor_map("a"), pointer("out", "float")), grid=4, cluster=4, shared_bytes=1040
    )
    made = build(source([kernel], used))
    # The second expect may come before the first phase's data have been read elsewhere: rank 0
    # waits for all blocks, so no schedule may change the result.
    emulate(made, {"a": TensorMap(a, (64,)), "out": out}, ALL_SCHEDULES)
    expected = a + np.arange(4)[:, None, None] + np.zeros((4, 2, 1))
    np.testing.assert_array_equal(out, expected)


def test_blocks_of_a_cluster_read_and_write_each_others_memory():
    out = np.zeros((2, 32), np.int32)
    body = """
      int rank = tc_cluster_rank(), t = threadIdx.x, *mine = (int*)smem;
      mine[t] = 100 * rank + t;
      ((int*)tc_cluster_address(mine + 32 + t, 1 - rank))[0] = 1000 * rank + t;
      tc_cluster_arrive(); tc_cluster_wait();
      out[rank * 32 + t] = tc_cluster_load_int32(mine + 31 - t, 1 - rank) + mine[32 + t];
      tc_cluster_arrive(); tc_cluster_wait();"""
    used = [I.cluster_rank(), I.cluster_address(), I.cluster_load("int32"),
            I.cluster_arrive(), I.cluster_wait()]  # fmt: skip
    for schedule in ALL_SCHEDULES:
        run(body, {"out": out}, used, schedule, grid=2, cluster=2, shared_bytes=256)
        t = np.arange(32)
        np.testing.assert_array_equal(out[0], 100 + 31 - t + 1000 + t)
        np.testing.assert_array_equal(out[1], 31 - t + t)
    racy = body.replace("tc_cluster_arrive(); tc_cluster_wait();", "", 1)
    with pytest.raises(EmulationError, match=r"race: thread .* of block"):
        run(racy, {"out": out}, used, grid=2, cluster=2, shared_bytes=256)


def test_cp_async_fills_with_zeros_and_tells_a_barrier():
    a, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    copy = I.cp_async(16, has_size=True)
    body = f"""
      unsigned char* bar = smem + 512;
      if (threadIdx.x == 0) tc_barrier_init(bar, 32);
      __syncthreads();
      int bytes = threadIdx.x % 3 == 0 ? 16 : threadIdx.x % 3 == 1 ? 8 : 0;
      {copy.name}(smem + threadIdx.x * 16, a + threadIdx.x * 4, bytes);
      tc_cp_async_arrive(bar);
      tc_barrier_wait(bar, 0);
      for (int i = threadIdx.x; i < 128; i += 32) out[i] = ((float*)smem)[i];"""
    used = [copy, I.cp_async_arrive(), I.barrier_init(), I.barrier_wait()]
    for schedule in ALL_SCHEDULES:
        run(body, {"a": a, "out": out}, used, schedule, shared_bytes=520)
        keep = np.array([4, 2, 0])[np.arange(32) % 3]
        expected = np.where(np.arange(4) < keep[:, None], a.reshape(32, 4), 0)
        np.testing.assert_array_equal(out, expected.ravel())


def test_bulk_copies():
    a, out = np.arange(64, dtype=np.float32), np.full(64, 3, np.float32)
    body = """
      unsigned char* bar = smem + 512;
      if (threadIdx.x == 0) {
        tc_barrier_init(bar, 1); tc_fence_barrier_init(); tc_barrier_expect(bar, 256);
        tc_bulk_load(smem, a, 256, bar);
        tc_barrier_wait(bar, 0);
        tc_bulk_store(out, smem, 128); tc_bulk_commit(); tc_bulk_wait_read_0();
      }"""
    used = [*BARRIER, I.bulk_load(), I.bulk_store(), I.bulk_commit(), I.bulk_wait(0, True)]
    run(body, {"a": a, "out": out}, used, shared_bytes=520)
    np.testing.assert_array_equal(out, np.where(np.arange(64) < 32, a, 3))


def test_named_barriers_pass_tiles_between_groups():
    out = np.zeros(64, np.int32)
    body = """
      int t = threadIdx.x;
      for (int step = 0; step < 3; ++step) {
        if (t < 64) {
          if (step) tc_bar_sync(2, 128);
          ((int*)smem)[t] = 10 * step + t;
          tc_bar_arrive(1, 128);
        } else {
          tc_bar_sync(1, 128);
          out[t - 64] += ((int*)smem)[127 - t];
          if (step < 2) tc_bar_arrive(2, 128);
        }
      }"""
    for schedule in ALL_SCHEDULES:
        out[...] = 0
        run(body, {"out": out}, [I.bar_sync(), I.bar_arrive()], schedule, threads=128,
            shared_bytes=256)  # fmt: skip
        np.testing.assert_array_equal(out, 30 + 3 * np.arange(63, -1, -1))


def test_shuffles_and_votes():
    x = np.random.default_rng(3).integers(-50, 50, 32).astype(np.int32)
    out = np.zeros((16, 32), np.int32)
    instructions = [
        I.shuffle("xor", "int32"), I.shuffle("down", "int32", 8), I.shuffle("up", "int32"),
        I.shuffle("idx", "int32", 16), I.vote("any"), I.vote("all"), I.vote("ballot"),
        I.elect(), I.warp_index(), I.shuffle("xor", "float16"),
    ]  # fmt: skip
    names = [i.name for i in instructions]
    calls = [
        f"{names[0]}(v, 5)", f"{names[1]}(v, 3)", f"{names[2]}(v, 4)", f"{names[3]}(v, 18)",
        f"{names[4]}(v > 40)", f"{names[5]}(v > -60)", f"(int){names[6]}(v > 0)",
        f"{names[7]}()", f"{names[8]}()", f"(int){names[9]}(half(v), 1)",
    ]  # fmt: skip
    body = "int t = threadIdx.x, v = x[t];\n" + "\n".join(
        f"out[{32 * i} + t] = {call};" for i, call in enumerate(calls)
    )
    run(body, {"x": x, "out": out}, instructions)
    lanes = np.arange(32)
    expected = [
        x[lanes ^ 5], x[np.where(lanes % 8 + 3 < 8, lanes + 3, lanes)],
        x[np.where(lanes >= 4, lanes - 4, lanes)], x[lanes // 16 * 16 + 2],
        int((x > 40).any()), 1, np.int64(sum(1 << j for j in lanes if x[j] > 0)).astype(np.int32),
        lanes == out[7].argmax(), 0, x[lanes ^ 1],
    ]  # fmt: skip
    for i, want in enumerate(expected):
        np.testing.assert_array_equal(out[i], np.broadcast_to(want, 32), calls[i])


def test_masked_shuffles_in_branches():
    out = np.zeros(32, np.int32)
    body = """
      int t = threadIdx.x;
      if (t < 16) out[t] = __shfl_xor_sync(0x0000ffffu, t, 1);
      else out[t] = __shfl_sync(0xffff0000u, 100 + t, 20);"""
    run(body, {"out": out})
    np.testing.assert_array_equal(out[:16], np.arange(16) ^ 1)
    assert (out[16:] == 120).all()


@pytest.mark.parametrize("schedule", ALL_SCHEDULES[:3:2], ids=str)
def test_atomic_updates(schedule):
    total = np.zeros(2, np.int32)
    large, small = np.full(1, -np.inf, np.float32), np.full(1, np.inf, np.float64)
    brains, turns = np.zeros(2, ml_dtypes.bfloat16), np.zeros(1, np.uint32)
    used = [
        I.atomic("add", "int32"), I.atomic("max", "float32"), I.atomic("min", "float64"),
        I.atomic("add", "bfloat16"), I.atomic("inc", "uint32"), I.atomic("or", "int32"),
    ]  # fmt: skip
    body = """
      int i = blockIdx.x * 64 + threadIdx.x;
      tc_atomic_add_int32(total, i);
      tc_atomic_or_int32(total + 1, 1 << i % 31);
      tc_atomic_max_float32(large, 0.5f * i); tc_atomic_min_float64(small, 3.0 - i);
      tc_atomic_add_bfloat16(brains + 1, nv_bfloat16(1.0f));
      tc_atomic_inc_uint32(turns, 9);"""
    arguments = {
        "total": total, "large": large, "small": small, "brains": brains, "turns": turns,
    }  # fmt: skip
    run(body, arguments, used, schedule, threads=64, grid=2)
    assert total.tolist() == [sum(range(128)), (1 << 31) - 1]
    assert (large[0], small[0]) == (63.5, -124.0)
    assert float(brains[1]) == 128
    assert turns[0] == 128 % 10


def test_blocks_that_wait_for_each_other_run_together():
    out = np.zeros(4, np.int32)
    flag = np.zeros(1, np.int32)
    load_, add = I.load_ordered("int32"), I.atomic("add", "int32")
    body = f"""
      if (threadIdx.x == 0) {{
        while ({load_.name}(flag) != 3 - (int)blockIdx.x) ;
        out[blockIdx.x] = flag[0];
        {add.name}(flag, 1);
      }}"""
    run(body, {"out": out, "flag": flag}, [load_, add], grid=4, options={"resident": 4})
    np.testing.assert_array_equal(out, [3, 2, 1, 0])


def test_conversions():
    rng = np.random.default_rng(4)
    x = (rng.standard_normal(64) * 100).astype(np.float32)
    x[:6] = [0, 1e-8, 1e9, -1e9, 448.1, 0.001]
    halves, tf32 = np.zeros((2, 64), np.uint16), np.zeros(64, np.float32)
    body = """
      int t = threadIdx.x;
      ((unsigned*)halves)[t] = tc_pack_float16(x[2 * t], x[2 * t + 1]);
      ((unsigned*)halves)[32 + t] = tc_pack_bfloat16(x[2 * t], x[2 * t + 1]);
      tf32[t] = tc_round_tf32(x[t]); tf32[32 + t] = tc_round_tf32(x[32 + t]);"""
    used = [I.pack("float16"), I.pack("bfloat16"), I.round_tfloat32()]
    run(body, {"x": x, "halves": halves, "tf32": tf32}, used)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(halves[0], x.astype(np.float16).view(np.uint16))
    np.testing.assert_array_equal(halves[1], x.astype(ml_dtypes.bfloat16).view(np.uint16))
    assert np.abs(tf32 / np.where(x == 0, 1, x) - 1)[1:].max() <= 2.0**-11
