"""Tile programs for AMD GPUs on the emulator: wavefronts of 64, matrix instructions by AMD's guide.

The TIR is the one that LLVM IR is made from. Nothing here ran on a device.
"""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tests.tilecore.cuda.test_tile_programs import (
    check_gemm,
    close,
    random,
    test_flash_attention,
    test_library_kernels,
)
from tests.tilecore.cuda.tile_programs import attention
from tests.tilecore.rocm.llvm_on_cpu import run_text
from tilecore.emulator import ALL_SCHEDULES
from tilecore.errors import EmulationError

pytestmark = pytest.mark.few(1)  # a case takes long

test_flash_attention.__test__ = test_library_kernels.__test__ = False


@pytest.mark.parametrize("trans", [(False, False), (False, True), (True, False), (True, True)])
def test_products_with_ragged_edges_and_all_transposes(trans):
    size = (136, 72, 136)
    assert check_gemm("mi300x", size, (64, 64, 64), 3, "float16", "float16", trans) == "mfma"


@pytest.mark.parametrize(
    ("target", "dtype", "out", "trans_b", "kind"),
    [
        ("gfx90a", "bfloat16", "float32", True, "mfma"),
        ("gfx90a", "int8", "int32", True, "mfma"),
        ("gfx942", "int8", "int32", False, "mfma"),
        ("gfx942", "float32", "float32", True, "mfma"),
        ("gfx942", "float8_e4m3fn", "float32", True, "mfma"),
        ("gfx942", "float8_e5m2fnuz", "float32", False, "mfma"),
    ],
)
def test_element_types_of_products(target, dtype, out, trans_b, kind):
    used = check_gemm(target, (64, 64, 128), (64, 64, 64), 2, dtype, out, (False, trans_b))
    assert used == kind


@pytest.mark.parametrize(("block", "threads"), [((64, 32), 256), ((128, 64), 128)])
def test_attention_keeps_weights_in_registers(block, threads):
    B, S, H, D = 1, 128, 1, 32
    rng = np.random.default_rng(1)
    q, k, v = (random(rng, (B, S, H, D), "bfloat16") for _ in range(3))
    out = np.zeros((B, S, H, D), q.dtype)
    func = attention(B, S, H, D, block, 2, threads, "bfloat16", False)
    plan = run_emulated(func, "gfx90a", [q, k, v, out])
    (launch,) = plan.launches.values()
    assert [g.a.source for g in launch.gemms.values()] == ["chunks", "registers"]
    assert not launch.notes  # nothing had to move to shared memory
    Q, K, V = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = Q @ K.swapaxes(-1, -2) / D**0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights @ V / weights.sum(-1, keepdims=True)
    close(out, expected.transpose(0, 2, 1, 3), "bfloat16")


@pytest.mark.parametrize(
    "name", ["attention_backward", "conv2d", "dequant_gemm", "layer_norm", "linear_attention"]
)
def test_library_kernels_on_wavefronts(name):
    test_library_kernels(name, "gfx942")


def test_warps_of_programs_are_halves_of_a_wavefront():
    @T.prim_func
    def main(X: T.Tensor((128,), "float32"), Y: T.Tensor((2, 128), "float32")):
        with T.Kernel(1, threads=128):
            t = T.get_thread_binding()
            Y[0, t] = T.shfl_xor(X[t], 16)
            Y[1, t] = T.warp_reduce_sum(X[t])

    rng = np.random.default_rng(5)
    x = rng.integers(0, 100, 128).astype(np.float32)
    y = np.zeros((2, 128), np.float32)
    run_emulated(main, "gfx942", [x, y])
    np.testing.assert_array_equal(y[0], x[np.arange(128) ^ 16])
    np.testing.assert_array_equal(y[1], x.reshape(4, 32).sum(1).repeat(32))


@pytest.mark.parametrize(("dim", "stages"), [(32, 2), (128, 1)])
def test_next_tiles_wait_in_registers(dim, stages):
    """In one tile of each kind where local data share has no room for two."""
    S = 128
    rng = np.random.default_rng(6)
    q, k, v = (random(rng, (1, S, 1, dim), "float16") for _ in range(3))
    out = np.zeros((1, S, 1, dim), q.dtype)
    func = attention(1, S, 1, dim, (128, 64), 2, 256, "float16", True)
    plan = run_emulated(func, "gfx942", [q, k, v, out], ALL_SCHEDULES)
    (launch,) = plan.launches.values()
    (pipeline,) = launch.pipelines.values()
    assert pipeline.in_registers
    assert pipeline.stages == stages
    Q, K, V = (x[0, :, 0].astype(np.float64) for x in (q, k, v))
    scores = np.where(np.tri(S, dtype=bool), Q @ K.T / dim**0.5, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    close(out[0, :, 0], weights @ V / weights.sum(-1, keepdims=True), "float16")


def test_barriers_that_inference_places_are_needed():
    rng = np.random.default_rng(3)
    arrays = [random(rng, (1, 128, 1, 64), "float16") for _ in range(4)]
    func = attention(1, 128, 1, 64, (64, 64), 2, 256, "float16", False)
    with pytest.raises(EmulationError):
        run_emulated(func, "gfx942", arrays, without="tc_sync_threads();")


def test_votes_are_those_of_half_a_wavefront():
    @T.prim_func
    def main(X: T.Tensor((128,), "int32"), Y: T.Tensor((3, 128), "int32")):
        with T.Kernel(1, threads=128):
            t = T.get_thread_binding()
            Y[0, t] = T.any_sync(X[t] > 90)
            Y[1, t] = T.all_sync(X[t] > 3)
            Y[2, t] = T.cast(T.ballot_sync(X[t] > 50), "int32")

    x = np.random.default_rng(8).integers(4, 100, 128).astype(np.int32)
    x[40], x[64:96] = 2, np.minimum(x[64:96], 90)
    warps = x.reshape(4, 32)
    ballots = ((warps > 50) << np.arange(32, dtype=np.int64)).sum(1)
    expected = [(warps > 90).any(1), (warps > 3).all(1), ballots.astype(np.uint32).view(np.int32)]
    for run in (run_emulated, run_text):
        y = np.zeros((3, 128), np.int32)
        run(main, "gfx942", [x, y])
        np.testing.assert_array_equal(y, np.array(expected).astype(np.int32).repeat(32, 1))


def test_half_a_wavefront_takes_a_branch_with_nothing_to_do_together():
    """It was taken for a role, and refused: the sums of a tree, unrolled."""

    @T.prim_func
    def main(X: T.Tensor((2, 128), "int32"), Y: T.Tensor((2,), "int32")):
        with T.Kernel(2, threads=128) as b:
            t = T.get_thread_binding()
            sums = T.alloc_shared((128,), "int32")
            sums[t] = X[b, t]
            for step in range(7):
                T.sync_threads()
                if t < 64 >> step:
                    sums[t] += sums[t + (64 >> step)]
            if t == 0:
                Y[b] = sums[0]

    x = np.random.default_rng(0).integers(-99, 99, (2, 128)).astype(np.int32)
    y = np.zeros(2, np.int32)
    run_emulated(main, "gfx942", [x, y], ALL_SCHEDULES)
    np.testing.assert_array_equal(y, x.sum(1))
