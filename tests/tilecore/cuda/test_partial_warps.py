"""Shuffles and votes of some lanes of a warp, which name each other by a mask."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import ALL_SCHEDULES
from tilecore.errors import EmulationError, TypeMismatch
from tilecore.interpreter import run as interpret


def exchanges(exchange, count=16):
    """The first ``count`` lanes of each warp exchange values; the others have gone on."""

    @T.prim_func
    def main(A: T.Tensor((64,), "int32"), B: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            if tx % 32 < count:
                B[tx] = T.cast(exchange(A[tx]), "int32")
            else:
                B[tx] = -A[tx]

    return main


def arguments():
    return [np.random.default_rng(0).integers(1, 100, 64).astype(np.int32), np.zeros(64, np.int32)]


CASES = {
    "xor": lambda a: T.shfl_xor(a, 3, mask=0xFFFF),
    "down in groups": lambda a: T.shfl_down(a, 1, width=4, mask=0xFFFF),
    "up": lambda a: T.shfl_up(a, 2, width=16, mask=0xFFFF),
    "of a lane": lambda a: T.shfl_sync(a, 5, mask=T.cast(T.get_warp_idx() * 0 + 65535, "uint32")),
    "any": lambda a: T.any_sync(a > 95, mask=0xFFFF),
    "all": lambda a: T.all_sync(a > 3, mask=0xFFFF),
    "ballot": lambda a: T.ballot_sync(a > 50, mask=0xFFFF),
    "TVM's": lambda a: T.tvm_warp_shuffle(0xFFFF, a, 7, 32, 32),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", ["h100", "sm_80", "gfx942"])
def test_some_lanes_exchange(name, target):
    func = exchanges(CASES[name])
    a, b = arguments()
    run_emulated(func, target, [a, b], ALL_SCHEDULES)
    expected = np.zeros_like(b)
    interpret(func, a, expected)
    np.testing.assert_array_equal(b, expected)
    assert "_masked" in lowered(func, target)[2].text


def test_a_mask_names_the_lanes_that_come_by():
    """Without it the lanes would wait for others, which never come."""
    whole = exchanges(lambda a: T.shfl_xor(a, 1))
    with pytest.raises(EmulationError, match="deadlock"):
        run_emulated(whole, "h100", arguments())
    other = exchanges(lambda a: T.shfl_xor(a, 1, mask=0xFF))
    with pytest.raises(EmulationError, match="not in its own mask"):
        run_emulated(other, "h100", arguments())


def test_lanes_of_a_wavefront_exchange_in_a_branch_of_theirs():
    """AMD's run in step, nothing waits: a kernel with 32 lanes a row may end within a wavefront."""

    @T.prim_func
    def main(
        A: T.Tensor((96,), "int32"), rows: T.Tensor((1,), "int32"), B: T.Tensor((3,), "int32")
    ):
        with T.Kernel(1, threads=(32, 4)):
            lane, row = T.get_thread_binding(0), T.get_thread_binding(1)
            if row < rows[0]:
                total = T.alloc_local((1,), "int32")
                total[0] = A[row * 32 + lane]
                for k in T.serial(5):
                    total[0] += T.shfl_xor(total[0], 16 >> k)
                if lane == 0:
                    B[row] = total[0]

    a, b = np.arange(96, dtype=np.int32), np.zeros(3, np.int32)
    run_emulated(main, "gfx942", [a, np.array([3], np.int32), b], ALL_SCHEDULES)
    np.testing.assert_array_equal(b, a.reshape(3, 32).sum(1))


@pytest.mark.parametrize("mask", [0, 1 << 40, 1.5])
def test_bad_masks(mask):
    with pytest.raises(TypeMismatch, match=r"a mask of 32 lanes for T\.shfl_xor"):
        exchanges(lambda a: T.shfl_xor(a, 1, mask=mask))
