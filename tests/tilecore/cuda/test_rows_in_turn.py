"""Points that read several rows in turn, of tensors and of fragments kept in shared memory."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import LATE, Schedule
from tilecore.inference.gpu.accesses.banks import bank_uses
from tilecore.interpreter import run
from tilecore.ir.dtype import DType

TARGETS = ("sm_75", "sm_80", "h100", "gfx942")


def mixed(channels, columns, block, threads, dtype="float16"):
    """Return a program that mixes channels, as the post-block of hyper-connections does."""

    @T.prim_func
    def main(
        A: T.Tensor((channels, channels), "float32"), B: T.Tensor((channels, columns), dtype),
        X: T.Tensor((channels, columns), dtype),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(columns, block), threads=threads) as bx:
            b, x = (T.alloc_fragment((channels, block), "float32") for _ in range(2))
            a = T.alloc_fragment((channels, channels), "float32")
            T.copy(A, a)
            T.copy(B[0, bx * block], b)
            for i, j in T.Parallel(channels, block):
                x[i, j] = 0
                for k in T.serial(channels):
                    x[i, j] += a[k, i] * b[k, j]
            T.copy(x, X[0, bx * block])

    return main


@pytest.mark.few(3)
@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
@pytest.mark.parametrize("threads", [32, 128])
@pytest.mark.parametrize(("columns", "block"), [(512, 512), (300, 256), (128, 64), (72, 24)])
@pytest.mark.parametrize("channels", [2, 4, 5, 8])
def test_channels_are_mixed(channels, columns, block, threads, dtype, target):
    func = mixed(channels, columns, block, threads, dtype)
    rng = np.random.default_rng(columns)
    a = rng.integers(-1, 2, (channels, channels)).astype(np.float32)
    b = rng.integers(-3, 4, (channels, columns)).astype(DType(dtype).numpy)
    found, wanted = np.zeros_like(b), np.zeros_like(b)
    run(func, a, b, wanted)
    np.testing.assert_array_equal(wanted, (a.T @ b.astype(np.float32)).astype(b.dtype))
    run_emulated(func, target, [a, b, found], (LATE, Schedule(seed=3)))
    np.testing.assert_array_equal(found, wanted)


def test_a_fragment_in_shared_memory_moves_by_16_bytes():
    """Each element was an access of its own, and all lanes of a warp met in four banks."""

    @T.prim_func
    def main(B: T.Tensor((4, 256), "float16"), X: T.Tensor((4, 256), "float16")):
        with T.Kernel(1, threads=128):
            b = T.alloc_fragment((4, 256), "float32")
            T.copy(B, b)
            first = b[0, 0]  # by which it has to lie where every thread finds it
            for i, j in T.Parallel(4, 256):
                total = T.alloc_var("float32")
                total = first
                for k in T.serial(4):
                    total += b[k, j]
                X[i, j] = T.cast(total, "float16")

    (launch,) = lowered(main, "h100")[0].launches.values()
    assert any(note.startswith("b: kept in shared memory") for note in launch.notes)
    uses = [u for u in bank_uses(launch) if u.buffer.name == "b"]
    assert {(u.is_store, u.bytes_per_lane) for u in uses} == {(True, 16), (False, 16)}
    assert max(u.ways for u in uses) <= 2
    x = np.random.default_rng(2).integers(-3, 4, (4, 256)).astype(np.float16)
    found = np.zeros_like(x)
    run_emulated(main, "h100", [x, found], (LATE, Schedule(seed=3)))
    np.testing.assert_array_equal(found, np.broadcast_to(x.sum(0) + x[0, 0], (4, 256)))


def stencil(rows, columns, taps, dtype):
    """Return a program that adds up rows around each row."""

    @T.prim_func
    def main(X: T.Tensor((rows, columns), dtype), Y: T.Tensor((rows, columns), dtype)):
        with T.Kernel(T.ceildiv(rows, 8), threads=64) as by:
            for i, j in T.Parallel(8, columns):
                total = T.alloc_var("float32")
                total = 0
                for k in T.serial(taps):
                    total += T.cast(X[by * 8 + i + k - taps // 2, j], "float32")
                Y[by * 8 + i, j] = T.cast(total, dtype)

    return main


@pytest.mark.few(3)
@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "uint8"])
@pytest.mark.parametrize("taps", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize(("rows", "columns"), [(16, 64), (13, 32), (8, 40), (5, 21)])
def test_rows_around_are_added(rows, columns, taps, dtype, target):
    func = stencil(rows, columns, taps, dtype)
    x = np.random.default_rng(taps).integers(0, 5, (rows, columns)).astype(dtype)
    found, wanted = np.zeros_like(x), np.zeros_like(x)
    run(func, x, wanted)
    run_emulated(func, target, [x, found], (LATE, Schedule(seed=3)))
    np.testing.assert_array_equal(found, wanted)


def test_few_rows_of_a_tensor_move_by_16_bytes():
    text = lowered(stencil(16, 64, 3, "float16"), "h100")[2].text.rpartition('extern "C"')[2]
    assert text.count("tc_copy_16((&(X") == 3


def squared(rows, columns, part, shift=0, dtype="float16"):
    """Return a program that multiplies a fragment and adds up its squares, ``part`` at a time."""

    @T.prim_func
    def main(
        X: T.Tensor((rows, columns), dtype), Y: T.Tensor((16, columns), dtype),
        C: T.Tensor((rows, 16), "float32"), S: T.Tensor((rows,), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment((rows, columns), dtype)
            y = T.alloc_shared((16, columns), dtype)
            sums = T.alloc_fragment((rows, 16), "float32")
            parts = T.alloc_fragment((rows, part), "float32")
            total = T.alloc_fragment((rows,), "float32")
            T.copy(X, x)
            T.copy(Y, y)
            T.clear(parts)
            for step in T.serial(columns // part):
                for i, j in T.Parallel(rows, part):
                    if step * part + j + shift < columns:
                        one = T.cast(x[i, step * part + j + shift], "float32")
                        parts[i, j] += one * one
            T.gemm(x, y, sums, transpose_B=True, clear_accum=True)
            T.reduce_sum(parts, total, dim=1)
            T.copy(sums, C)
            T.copy(total, S)

    return main


@pytest.mark.few(3)
@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("part", [1, 2, 4, 6, 8, 16, 32])
@pytest.mark.parametrize("shift", [0, 1, 4])
@pytest.mark.parametrize(("rows", "columns"), [(32, 96), (64, 192)])
def test_columns_of_an_operand_are_squared(rows, columns, shift, part, dtype, target):
    func = squared(rows, columns, part, shift, dtype)
    rng = np.random.default_rng(part)
    x, y = (rng.integers(-3, 4, (n, columns)).astype(dtype) for n in (rows, 16))
    c, s = np.zeros((rows, 16), np.float32), np.zeros(rows, np.float32)
    run_emulated(func, target, [x, y, c, s], (LATE, Schedule(seed=3)))
    wide = x.astype(np.float64)
    np.testing.assert_array_equal(c, wide @ y.astype(np.float64).T)
    np.testing.assert_array_equal(s, (wide[:, shift:] ** 2).sum(1))


@pytest.mark.parametrize(
    ("dtype", "part", "shift", "is_held"),
    [
        ("float16", 8, 0, True),  # pairs of two columns, of four threads
        ("float16", 16, 0, True),
        ("float16", 32, 0, True),
        ("float16", 96, 0, True),
        ("float16", 2, 0, False),  # another thread at each turn
        ("float16", 6, 0, False),
        ("float16", 8, 1, False),
        ("float32", 4, 0, True),
        ("float32", 8, 0, True),
    ],
)
def test_columns_by_steps_that_threads_have_alike_stay_in_registers(dtype, part, shift, is_held):
    (launch,) = lowered(squared(64, 96, part, shift, dtype), "sm_80")[0].launches.values()
    kept = [note for note in launch.notes if note.startswith("x: kept in shared memory")]
    assert (not kept) is is_held


@pytest.mark.parametrize(("columns", "is_written_out"), [(8 * 64, True), (8 * 65, False)])
def test_loops_that_pick_registers_are_written_out(columns, is_written_out):
    """By a number that is only known as it runs no register is named: memory would hold them."""
    lines = lowered(squared(32, columns, 8), "sm_80")[2].text.splitlines()
    loops = [n for n, line in enumerate(lines) if f" < {columns // 8}; ++" in line]
    assert loops
    assert all("#pragma unroll" in lines[n - 1] for n in loops) is is_written_out
