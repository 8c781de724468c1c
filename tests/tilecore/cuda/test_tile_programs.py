"""Tile programs on GPUs: the generated CUDA runs on the emulator and agrees with float64.

Four schedules each: late and early delivery of asynchronous copies, and two random orders of the
threads; accesses of shared memory that no barrier orders are errors. Nothing here ran on a device.
"""

import dataclasses
import subprocess
import sys
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilecore
import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tests.tilecore.cuda.tile_programs import attention, gemm
from tilecore.codegen.cubin import read_features
from tilecore.codegen.nvrtc import compile_cuda
from tilecore.emulator import ALL_SCHEDULES, LATE
from tilecore.errors import EmulationError, InvalidConfig, UnsupportedOnTarget
from tilecore.gpu_compiler import plan_gpu
from tilecore.inference.gpu.accesses.banks import bank_uses, conflict_ways, offsets
from tilecore.inference.gpu.plan import SharedLayout
from tilecore.inference.gpu.products.registers import SPILLED
from tilecore.ir.analysis import output_positions
from tilecore.ir.substitute import Rebuilder
from tilecore.jit_compile import SpilledRegisters
from tilecore.kernels import KERNELS
from tilecore.lowering.cuda.memory import shared_offset
from tilecore.target import parse_target

NUMPY = {"bfloat16": ml_dtypes.bfloat16, "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
         "float8_e5m2": ml_dtypes.float8_e5m2}  # fmt: skip
# Of the largest value: results are rounded to the type once, sums are in float32.
TOLERANCE = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 2e-6, "int32": 0.0}


def random(rng, shape, dtype):
    kind = np.dtype(NUMPY.get(dtype, dtype))
    if "int" in dtype:
        return rng.integers(-128, 128, shape).astype(kind)
    return rng.standard_normal(shape, dtype=np.float32).astype(kind)


def close(found, expected, dtype):
    scale = np.abs(expected).max()
    np.testing.assert_allclose(
        found.astype(np.float64) / scale, expected / scale, atol=TOLERANCE[dtype], rtol=0
    )


def check_gemm(
    target, size, block, stages, dtype, out, trans=(False, False), threads=128, knobs=None
):
    M, N, K = size
    accum = "int32" if dtype == "int8" else "float32"
    func = gemm(M, N, K, block, stages, dtype, out, accum, trans, threads)
    rng = np.random.default_rng(0)
    a = random(rng, (K, M) if trans[0] else (M, K), dtype)
    b = random(rng, (N, K) if trans[1] else (K, N), dtype)
    c = np.full((M, N), 77, NUMPY.get(out, out))
    plan = run_emulated(func, target, [a, b, c], ALL_SCHEDULES, knobs=knobs)
    left, right = (x.astype(np.float64) for x in (a, b))
    close(c, (left.T if trans[0] else left) @ (right.T if trans[1] else right), out)
    (launch,) = plan.launches.values()
    (product,) = launch.gemms.values()
    return product.kind


@pytest.mark.few(1)
@pytest.mark.parametrize("trans", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize(("target", "kind"), [("sm_80", "mma"), ("h100", "wgmma")])
def test_gemm_with_ragged_edges_and_all_transposes(target, kind, trans):
    used = check_gemm(target, (72, 80, 200), (64, 64, 64), 3, "float16", "float16", trans)
    assert used == kind


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("target", "dtype", "out", "trans_b", "kind"),
    [
        ("sm_80", "bfloat16", "float32", False, "mma"),
        ("sm_80", "int8", "int32", True, "mma"),
        ("sm_80", "int8", "int32", False, "mma"),
        ("sm_80", "float32", "float32", False, "fma"),
        ("rtx4090", "float8_e4m3fn", "float32", True, "mma"),
        ("rtx2080", "float16", "float16", False, "mma"),
        ("v100", "float16", "float16", False, "quads"),
        ("h100", "bfloat16", "bfloat16", True, "wgmma"),
        ("h100", "int8", "int32", True, "wgmma"),
        ("h100", "float8_e4m3fn", "float32", True, "wgmma"),
        ("h100", "float8_e5m2", "float32", True, "wgmma"),
        ("h100", "float32", "float32", True, "fma"),
    ],
)
def test_gemm_element_types(target, dtype, out, trans_b, kind):
    used = check_gemm(
        target, (64, 128, 192), (64, 64, 64), 2, dtype, out, (False, trans_b),
        knobs={"float32_products": "exact"},
    )  # fmt: skip
    assert used == kind


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("block", "threads"), [((128, 256, 64), 256), ((64, 32, 32), 128), ((128, 64, 128), 256)]
)
def test_gemm_by_several_warpgroups_and_other_swizzles(block, threads):
    size = (2 * block[0], block[1], 320)
    check_gemm("h100", size, block, 2, "float16", "float16", threads=threads)


@pytest.mark.few(1)
@pytest.mark.parametrize("stages", [0, 1, 2, 4])
def test_gemm_of_fewer_steps_than_stages(stages):
    for target in ("sm_80", "h100"):
        check_gemm(target, (64, 64, 64), (64, 64, 32), stages, "float16", "float16")


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("target", "block", "threads", "dtype"),
    [
        ("sm_80", (64, 32), 128, "float16"),
        ("sm_80", (64, 64), 128, "bfloat16"),
        ("v100", (64, 32), 128, "float16"),
        ("h100", (128, 64), 256, "float16"),
        ("h100", (64, 64), 128, "bfloat16"),
    ],
)
def test_flash_attention(target, block, threads, dtype, causal):
    B, S, H, D = 1, 192, 2, 64
    rng = np.random.default_rng(1)
    q, k, v = (random(rng, (B, S, H, D), dtype) for _ in range(3))
    out = np.zeros((B, S, H, D), NUMPY.get(dtype, dtype))
    func = attention(B, S, H, D, block, 2, threads, dtype, causal)
    run_emulated(func, target, [q, k, v, out], ALL_SCHEDULES)
    Q, K, V = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = Q @ K.swapaxes(-1, -2) / D**0.5
    if causal:
        scores = np.where(np.tri(S, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights @ V / weights.sum(-1, keepdims=True)
    close(out, expected.transpose(0, 2, 1, 3), dtype)


PROBLEMS = {
    "gemm_epilogue": {"m": 96, "n": 80, "k": 72},
    "batched_gemm": {"batch": 3, "m": 40, "n": 48, "k": 32},
    "split_k_gemm": {"m": 40, "n": 48, "k": 300},
    "dequant_gemm": {"m": 5, "n": 64, "k": 128},
    "grouped_gemm": {"m": 50, "experts": 3, "n": 64, "k": 64},
    "conv2d": {"batch": 1, "height": 9, "width": 9, "channels": 8, "filters": 16, "kernel": 3},
    "attention_backward": {"batch": 1, "heads": 2, "kv_heads": 1, "seq_q": 64, "seq_kv": 64,
                           "dim": 32},
    "decode_attention": {"batch": 1, "heads": 4, "kv_heads": 2, "seq_q": 1, "seq_kv": 200,
                         "dim": 64},
    "linear_attention": {"batch": 1, "heads": 2, "seq_len": 100, "dim": 32, "dim_v": 32},
    "softmax": {"m": 10, "n": 200},
    "rms_norm": {"m": 10, "n": 200},
    "layer_norm": {"m": 10, "n": 200},
    "elementwise": {"m": 10, "n": 1500},
    "reduction": {"m": 10, "n": 200},
    "scaled_gemm": {"m": 50, "n": 80, "k": 72, "dtype": "int8", "bias": True},
}  # fmt: skip
KNOBS = {
    "attention_backward": {"block_M": 32, "block_N": 32},
    "gemm_epilogue": {"block_M": 64, "block_N": 64, "block_K": 32},
}


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("target", ["sm_80", "h100"])
@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_library_kernels(name, target):
    """The library's programs are tuned for CPUs; the same programs are right on GPUs."""
    definition = KERNELS[name]
    fields = {f.name for f in definition.fields}
    given = {k: v for k, v in PROBLEMS[name].items() if k in fields}
    given = {k: "bfloat16" for k in ("dtype", "out_dtype") if k in fields} | given
    problem = definition.parse_problem(given)
    knobs = {k.name: k.default for k in definition.knobs} | KNOBS.get(name, {})
    func = definition.program(problem, knobs)
    inputs = list(definition.inputs(problem, np.random.default_rng(2)))
    outputs = output_positions(func)
    given = iter(inputs)
    arguments = [
        np.zeros([int(e) for e in p.shape], p.dtype.numpy) if i in outputs else next(given)
        for i, p in enumerate(func.params)
    ]
    run_emulated(func, target, arguments, (LATE,))
    for position, expected in zip(outputs, definition.reference(problem, inputs), strict=True):
        dtype = str(func.params[position].dtype)
        close(arguments[position], np.asarray(expected, np.float64), dtype)


def test_recommended_tiles_keep_registers_and_use_the_units_of_hopper():
    _, _, source = lowered(
        gemm(4096, 4096, 4096, (128, 256, 64), 4, "float16", "float16", threads=256), "h100"
    )
    cubin = compile_cuda(source.text, source.arch)
    (features,) = read_features(cubin.data, source.arch).values()
    assert cubin.spills == 0
    assert features.opcodes["HGMMA"] > 0
    assert features.opcodes["UTMALDG"] > 0
    assert "C75" not in cubin.log  # wgmma is not serialised


@pytest.mark.few(1)
@pytest.mark.parametrize(("target", "opcode"), [("a100", "HMMA"), ("h100", "HGMMA")])
def test_attention_has_no_spills(target, opcode):
    func = attention(1, 4096, 8, 128, (128, 64), 2, 256, "float16", True)
    _, _, source = lowered(func, target)
    cubin = compile_cuda(source.text, source.arch)
    (features,) = read_features(cubin.data, source.arch).values()
    assert cubin.spills == 0
    assert features.opcodes[opcode] > 0


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("target", "removed"),
    [
        ("sm_80", "    tc_sync_threads();\n"),
        ("h100", "tc_bar_sync(1, 256);"),
        ("h100", "tc_fence_async();"),
        ("h100", "tc_wgmma_wait_0();"),
    ],
)
def test_what_inference_places_is_needed(target, removed):
    """Without one kind of barrier or wait the emulator finds a race or a wrong order."""
    func = attention(1, 128, 1, 64, (128, 64), 2, 256, "float16", False)
    _, _, source = lowered(func, target)
    assert removed in source.emulated
    rng = np.random.default_rng(3)
    arrays = [random(rng, (1, 128, 1, 64), "float16") for _ in range(4)]
    with pytest.raises(EmulationError):
        run_emulated(func, target, arrays, ALL_SCHEDULES, without=removed)


def test_too_much_shared_memory_names_the_tile():
    with pytest.raises(InvalidConfig, match="at most 166912 B in a block of sm_80") as caught:
        lowered(gemm(1024, 1024, 1024, (256, 256, 64), 4, "float16", "float16"), "sm_80")
    assert "A_s" in caught.value.hint or "B_s" in caught.value.hint
    assert "num_stages=2 instead of 4 needs 131072 B" in caught.value.hint


def test_fragments_that_no_registers_hold_are_named():
    def notes(block, threads, target):
        func = gemm(512, 512, 64, block, 0, "float16", "float16", threads=threads)
        _, plan = plan_gpu(func, parse_target(target))
        return [t for t in plan.explain().splitlines() if "of at most" in t]

    (note,) = notes((256, 128, 32), 64, "a100")
    assert note.startswith("C_l: 512 registers a thread, of at most 255 on a100: the rest is kept")
    assert note.endswith("(threads=256 can hold them)")
    assert notes((256, 128, 32), 256, "a100") == []
    (note,) = notes((256, 512, 32), 1024, "a100")
    assert "C_l: 128 registers a thread, of at most 64" in note
    assert note.endswith("(1/2 of the tile fits)")


def two_sums(threads):
    """Two products of one loop, 256 by 128 each."""

    @T.prim_func
    def main(
        A: T.Tensor((256, 256), "float16"), B: T.Tensor((256, 256), "float16"),
        C: T.Tensor((512, 128), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((256, 32), "float16")
            b = T.alloc_shared((32, 128), "float16")
            d = T.alloc_shared((32, 128), "float16")
            first = T.alloc_fragment((256, 128), "float32")
            second = T.alloc_fragment((256, 128), "float32")
            T.clear(first)
            T.clear(second)
            for k in T.serial(8):
                T.copy(A[0, k * 32], a)
                T.copy(B[k * 32, 0], b)
                T.copy(B[k * 32, 128], d)
                T.gemm(a, b, first)
                T.gemm(a, d, second)
            T.copy(first, C[0:256, 0:128])
            T.copy(second, C[256:512, 0:128])

    return main


@pytest.mark.parametrize("target", ["a100", "h100"])
def test_fragments_for_which_registers_do_not_suffice_together_are_named(target):
    """Each of them fits alone, so nothing was said of them."""
    with pytest.warns(SpilledRegisters, match="first 128, second 128; threads=512 can") as caught:
        kernel = tilecore.compile(two_sums(256), target=target)
    assert caught[0].filename == __file__
    (note,) = [n for n in kernel.explain().splitlines() if SPILLED in n]
    assert "of at most" not in kernel.explain()
    size = kernel.artifact.manifest.resources["spill_bytes"]
    assert note.startswith(f"main_kernel: {size} B of registers a thread")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel = tilecore.compile(
            gemm(256, 256, 64, (64, 64, 32), 2, "float16", "float16"), target=target
        )
    assert kernel.artifact.manifest.resources["spill_bytes"] == 0
    assert SPILLED not in kernel.explain()


@pytest.mark.parametrize("target", ["sm_75", "a100"])
def test_no_registers_are_left_for_a_second_block_where_fragments_take_them(target):
    """ptxas gave each of 512 threads 64 registers, and kept 6,380 B of them in memory."""
    _, _, source = lowered(two_sums(512), target)
    assert "__launch_bounds__(512, 1)" in source.text
    made = compile_cuda(source.text, source.arch)
    assert made.registers == 128
    free = compile_cuda(source.text.replace("(512, 1)", "(512)"), source.arch)
    assert made.spills < free.spills
    _, _, source = lowered(gemm(64, 64, 64, (64, 64, 32), 2, "float16", "float16"), target)
    assert "__launch_bounds__(128)" in source.text


def test_programs_say_how_many_blocks_registers_are_for():
    @T.prim_func
    def main(A: T.Tensor((1024,), "float32"), B: T.Tensor((1024,), "float32")):
        with T.Kernel(8, threads=128) as bx:
            T.annotate_min_blocks_per_sm(2)
            for i in T.Parallel(128):
                B[bx * 128 + i] = A[bx * 128 + i] * 2

    a = np.arange(1024, dtype=np.float32)
    b = np.zeros_like(a)
    run_emulated(main, "h100", [a, b])
    np.testing.assert_array_equal(b, 2 * a)
    assert "__launch_bounds__(128, 2)" in lowered(main, "h100")[2].text


def test_tiles_that_would_fit_are_named():
    def hint(block, target):
        func = gemm(512, 512, 512, block, 0, "float16", "float16")
        with pytest.raises(InvalidConfig, match=f"at most .* B in a block of {target}") as caught:
            lowered(func, target)
        return caught.value.hint

    assert "K in steps of 128 instead of 256 needs about 65536 B" in hint((128, 128, 256), "v100")
    plan_gpu(gemm(512, 512, 512, (128, 128, 128), 0, "float16", "float16"), parse_target("v100"))
    named = "a block of 384 x 384 instead of 768 x 768 needs about 43008 B, which fits"
    assert named in hint((768, 768, 24), "rtx2080")

    @T.prim_func
    def moved(A: T.Tensor((256, 256), "float32"), B: T.Tensor((256, 256), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((256, 256), "float32")
            T.copy(A, tile)
            T.copy(tile, B)

    with pytest.raises(InvalidConfig) as caught:
        lowered(moved, "v100")
    assert "`tile` takes 262144 B in 1 stages; there is room for one of 98304 B" in (
        caught.value.hint
    )
    lowered(gemm(1024, 1024, 1024, (256, 256, 64), 2, "float16", "float16"), "sm_80")


def test_too_many_threads():
    with pytest.raises(InvalidConfig, match="at most 1024 threads"):
        lowered(gemm(64, 64, 64, (64, 64, 32), 2, "float16", "float16", threads=2048), "sm_80")


def test_tile_operations_of_a_part_of_a_warp_are_refused():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            if tx < 20:
                for i in T.Parallel(64):
                    B[i] = A[i]

    with pytest.raises(UnsupportedOnTarget, match="a Parallel in a branch that only some threads"):
        lowered(main, "h100")


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["sm_80", "h100"])
def test_roles_of_warps_work_side_by_side(target):
    """A producer and two consumers that a program writes itself, ordered by mbarriers."""
    M, N, K, stages = 128, 64, 192, 2

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(1, threads=384):
            tx = T.get_thread_binding()
            A_s = T.alloc_shared((stages, M, 64), "float16")
            B_s = T.alloc_shared((stages, 64, N), "float16")
            full = T.alloc_barrier([128] * stages)
            empty = T.alloc_barrier([256] * stages)
            if tx >= 256:
                for k in T.serial(K // 64):
                    T.barrier_wait(empty[k % stages], (k // stages + 1) % 2)
                    T.copy(A[0, k * 64], A_s[k % stages, :, :])
                    T.copy(B[k * 64, 0], B_s[k % stages, :, :])
                    T.barrier_arrive(full[k % stages])
            else:
                C_l = T.alloc_fragment((M, N), "float32")
                T.clear(C_l)
                for k in T.serial(K // 64):
                    T.barrier_wait(full[k % stages], k // stages % 2)
                    T.gemm(A_s[k % stages, :, :], B_s[k % stages, :, :], C_l)
                    T.barrier_arrive(empty[k % stages])
                T.copy(C_l, C)

    rng = np.random.default_rng(5)
    a, b = random(rng, (M, K), "float16"), random(rng, (K, N), "float16")
    c = np.zeros((M, N), np.float32)
    plan = run_emulated(main, target, [a, b, c], ALL_SCHEDULES)
    close(c, a.astype(np.float64) @ b.astype(np.float64), "float32")
    (launch,) = plan.launches.values()
    assert [(t.first, t.count) for t in launch.teams.all] == [(256, 128), (0, 256)]
    assert {g.kind for g in launch.gemms.values()} == {"mma" if target == "sm_80" else "wgmma"}


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["sm_80", "h100"])
def test_main_paths_have_no_predicted_bank_conflicts(target):
    programs = (
        gemm(1024, 1024, 1024, (128, 128, 64), 3, "float16", "float16"),
        gemm(1024, 1024, 1024, (128, 128, 64), 3, "float16", "float16", trans=(True, True)),
        attention(1, 1024, 8, 128, (128, 64), 2, 256, "float16", True),
    )
    for func in programs:
        plan, _, _ = lowered(func, target)
        uses = [use for launch in plan.launches.values() for use in bank_uses(launch)]
        assert uses
        assert [u for u in uses if u.ways > 1] == []


def count_ways(address, exists, width):
    """Return the conflicts of accesses, counted request by request."""
    together = min(32, 128 // max(width, 4))
    passes, requests = 0, 0
    for turn in range(address.shape[1]):
        for start in range(0, address.shape[0], together):
            words = {
                (int(address[lane, turn]) + byte) // 4
                for lane in range(start, min(start + together, address.shape[0]))
                if exists[lane, turn]
                for byte in range(0, width, 4)
            }
            banks = [word % 32 for word in words]
            passes += max((banks.count(b) for b in set(banks)), default=0)
            requests += bool(words)
    return passes / requests if requests else 1.0


@pytest.mark.parametrize("width", [2, 4, 8, 16])
@pytest.mark.parametrize("missing", [0.0, 0.3, 1.0])
def test_bank_conflicts_are_those_of_each_request(width, missing):
    rng = np.random.default_rng(int(100 * missing) + width)
    for threads, turns in ((128, 4), (40, 3), (4, 1)):
        lanes = np.arange(threads)[:, None]
        for address in (
            rng.integers(0, 200, (threads, turns)) * width,
            lanes * width * 3 + np.arange(turns) * 64,
            (lanes % 8 ^ lanes // 8 % 4) * 16 + lanes // 8 * 128 + rng.integers(0, 2, turns) * 2,
        ):
            exists = rng.random((threads, turns)) >= missing
            assert conflict_ways(address, exists, width) == count_ways(address, exists, width)


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_tables_and_code_place_elements_alike(swizzle):
    layout = SharedLayout((16, 128), 2, swizzle, 136)
    row, column = np.meshgrid(np.arange(16), np.arange(128), indexing="ij")
    table = offsets(layout, [row, column])
    assert np.unique(table).size == table.size
    for r, c in ((0, 0), (3, 70), (15, 127), (9, 8)):
        assert shared_offset(layout, [r, c]) == table[r, c]


def test_columns_of_a_row_major_tile_conflict():
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float32"), B: T.Tensor((32, 64), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((64, 32), "float32")
            T.copy(A, tile)
            for i, j in T.Parallel(32, 64):
                B[i, j] = tile[j, i]
            B[0, 0] = tile[0, 0]  # outside of nests: else it were swizzled

    plan, _, _ = lowered(main, "sm_80")
    (launch,) = plan.launches.values()
    (read,) = (u for u in bank_uses(launch) if not u.is_store)
    assert read.ways == 16  # 16 threads read elements of one column, 2 columns at once


@pytest.mark.exhaustive
def test_the_example_for_hopper_runs():
    example = Path(__file__).parents[3] / "examples" / "gemm_for_hopper.py"
    done = subprocess.run(
        [sys.executable, str(example)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "wgmma.m64n256k16" in done.stdout
    assert "emulated under 4 schedules" in done.stdout
    assert "'spill_bytes': 0" in done.stdout


class _Same(Rebuilder):
    """Gives all tensors one name."""

    def buffer(self, buffer):
        if id(buffer) not in self._buffers and buffer.scope == "global":
            self._buffers[id(buffer)] = (buffer, dataclasses.replace(buffer, name="same"))
        return super().buffer(buffer)


def test_tensors_of_one_name_are_told_apart():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = A[i] * 2

    a, b = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    run_emulated(_Same().func(main), "sm_80", [a, b])
    np.testing.assert_array_equal(b, a * 2)
