"""Elements that points update in turn belong to one thread; programs may say which."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import ALL_SCHEDULES, Schedule
from tilecore.errors import LayoutConflict
from tilecore.inference.gpu.distribution import from_owners, spread
from tilecore.interpreter import run as interpret

pytestmark = pytest.mark.covering
TARGETS = ("sm_80", "h100", "gfx942")
SCHEDULES = (*ALL_SCHEDULES, Schedule(seed=3), Schedule(seed=8))


def program(body, out, dtype="float32"):
    """A fragment of 16 x 64 elements and one of results, all 1, that ``body`` updates."""

    @T.prim_func
    def main(A: T.Tensor((16, 64), dtype), B: T.Tensor(out, dtype)):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((16, 64), dtype)
            total = T.alloc_fragment(out, dtype)
            T.copy(A, x)
            T.fill(total, 1)
            body(x, total)
            T.copy(total, B)

    return main


@T.macro
def largest(x, total):
    for i, j in T.Parallel(16, 64):
        total[i] = T.max(total[i], x[i, j])


@T.macro
def some(x, total):
    for i, j in T.Parallel(16, 64):
        if x[i, j] > 4:
            total[i] += x[i, j]


@T.macro
def groups(x, total):
    for i, j in T.Parallel(16, 64):
        total[i, j // 8] += x[i, j]


@T.macro
def remainders(x, total):
    for i, j in T.Parallel(16, 64):
        total[i, j % 8] += x[i, j]


@T.macro
def columns_of_named_groups(x, total):
    for i, j in T.Parallel(16, 64):
        column = j // 16
        total[column] += x[i, j] * i


@T.macro
def whole(x, total):
    for i, j in T.Parallel(16, 64):
        total[0] += x[i, j]


@T.macro
def windows(x, total):
    for i in T.Parallel(16):
        for k in T.serial(4):
            total[i + k] += x[i, k]


@T.macro
def histogram(x, total):
    for i, j in T.Parallel(16, 64):
        total[T.cast(x[i, j], "int32")] += 1


EXPECTED = {
    "largest": (largest, (16,), lambda a: np.maximum(1, a.max(1))),
    "some": (some, (16,), lambda a: 1 + np.where(a > 4, a, 0).sum(1)),
    "groups": (groups, (16, 8), lambda a: 1 + a.reshape(16, 8, 8).sum(2)),
    "remainders": (remainders, (16, 8), lambda a: 1 + a.reshape(16, 8, 8).sum(1)),
    "names": (
        columns_of_named_groups, (4,),
        lambda a: 1 + (a * np.arange(16)[:, None]).reshape(16, 4, 16).sum((0, 2)),
    ),
    "whole": (whole, (1,), lambda a: 1 + a.sum(keepdims=True)[0]),
    "windows": (
        windows, (19,),
        lambda a: 1 + sum(np.pad(a[:, k], (k, 3 - k)) for k in range(4)),
    ),
    "histogram": (histogram, (10,), lambda a: 1 + np.bincount(a.astype(int).ravel(), minlength=10)),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", EXPECTED)
def test_updates_in_turn(name, target):
    body, out, expected = EXPECTED[name]
    func = program(body, out)
    a = np.random.default_rng(0).integers(0, 9, (16, 64)).astype(np.float32)
    b, oracle = np.zeros((2, *out), np.float32)
    run_emulated(func, target, [a, b], SCHEDULES)
    np.testing.assert_array_equal(b, expected(a))
    interpret(func, a, oracle)
    np.testing.assert_array_equal(oracle, b)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", TARGETS)
def test_the_place_of_the_largest(target):
    @T.prim_func
    def main(A: T.Tensor((8, 64), "float32"), B: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment((8, 64), "float32")
            best = T.alloc_fragment((8,), "float32")
            where = T.alloc_fragment((8,), "int32")
            T.copy(A, x)
            T.fill(best, -1)
            for i, j in T.Parallel(8, 64):
                if x[i, j] > best[i]:
                    best[i] = x[i, j]
                    where[i] = j
            T.copy(where, B)

    a = np.random.default_rng(1).integers(0, 99, (8, 64)).astype(np.float32)
    b = np.zeros(8, np.int32)
    run_emulated(main, target, [a, b], SCHEDULES)
    np.testing.assert_array_equal(b, a.argmax(1))


@pytest.mark.few(1)
@pytest.mark.parametrize("target", TARGETS)
def test_a_variable_and_a_shared_tile(target):
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment((64,), "float32")
            tile = T.alloc_shared((4,), "float32")
            total = T.alloc_var("float32")
            total = 0.0
            T.copy(A, x)
            T.clear(tile)
            for i in T.Parallel(64):
                total = total + x[i]
                B[i] = total
            for i in T.Parallel(64):
                if A[i] > 2:
                    tile[i // 16] += A[i]
            for i in T.Parallel(4):
                B[i] += tile[i]

    a = np.random.default_rng(2).integers(0, 9, 64).astype(np.float32)
    b = np.zeros(64, np.float32)
    run_emulated(main, target, [a, b], SCHEDULES)
    expected = np.cumsum(a)
    expected[:4] += np.where(a > 2, a, 0).reshape(4, 16).sum(1)
    np.testing.assert_array_equal(b, expected)


def test_a_mark_that_one_of_many_points_sets():
    """Threads that hold a copy each would not learn of it."""

    @T.prim_func
    def main(A: T.Tensor((8, 64), "float32"), B: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment((8, 64), "float32")
            where = T.alloc_fragment((8,), "int32")
            T.copy(A, x)
            T.fill(where, -1)
            for i, j in T.Parallel(8, 64):
                if x[i, j] == 99:
                    where[i] = j
            T.copy(where, B)

    rng = np.random.default_rng(3)
    a = rng.integers(0, 9, (8, 64)).astype(np.float32)
    marks = rng.integers(0, 64, 8)
    a[np.arange(8), marks] = 99
    for target in TARGETS:
        b = np.zeros(8, np.int32)
        run_emulated(main, target, [a, b], SCHEDULES, is_ordered=False)  # no proof: one per row
        np.testing.assert_array_equal(b, marks)


def annotated(reducer, x_layout=None):
    """The sums of 8 columns by 8 rows, as far as the threads of a layout have them."""

    @T.prim_func
    def main(A: T.Tensor((32, 64), "float32"), B: T.Tensor((2,), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((32, 64), "float32")
            part = T.alloc_fragment((2, 64), "float32")
            total = T.alloc_fragment((2,), "float32")
            T.annotate_layout({
                x: x_layout or T.Fragment((32, 64), forward_fn=lambda i, j: (
                    (i * 64 + j) // 4 % 128, i * 64 // 512 * 4 + j % 4)),
                part: reducer,
            })  # fmt: skip
            T.copy(A, x)
            T.clear(part)
            for i, j in T.Parallel(32, 64):
                block = (i % 8 * 32 + j % 32) // 4
                part[j // 32, block] = T.max(part[j // 32, block], x[i, j])
            T.reduce_max(part, total, dim=1)
            T.copy(total, B)

    return main


OWNERS = T.Fragment((2, 64), forward_fn=lambda i, k: (i * 8 + k // 8 * 16 + k % 8, 0))
OTHERS = T.Fragment((2, 64), forward_fn=lambda i, k: (i * 64 + k, 0))
ODD = T.Fragment((32, 64), forward_fn=lambda i, j: ((i * 64 + j) * 7 % 128, (i * 64 + j) // 128))


@pytest.mark.few(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["owners", "others", "odd"])
def test_layouts_of_fragments(name, target):
    """As in per_block_cast of TileKernels; else one thread updates all in turn."""
    layout = {"owners": (OWNERS,), "others": (OTHERS,), "odd": (OWNERS, ODD)}[name]
    func = annotated(*layout)
    a = np.random.default_rng(4).integers(0, 999, (32, 64)).astype(np.float32)
    b = np.zeros(2, np.float32)
    plan = run_emulated(func, target, [a, b], SCHEDULES)
    np.testing.assert_array_equal(b, a.reshape(32, 2, 32).max((0, 2)))
    held = {t.name for launch in plan.launches.values() for t in launch.fragments}
    assert ({"x", "part"} <= held) is (name != "others")


def test_a_layout_that_puts_two_elements_in_one_place():
    bad = T.Fragment((2, 64), forward_fn=lambda i, k: (i * 64 + k // 2, 0))
    with pytest.raises(LayoutConflict, match="two elements in one place"):
        lowered(annotated(bad), "h100")


def test_distributions_from_owners():
    for shape, runs in (((4, 32), None), ((16, 8), (1, 4)), ((2, 3, 64), None), ((1,), None)):
        made = spread(shape, 64, 2 if shape[-1] > 8 else 1, runs=runs)
        table = np.indices(shape)
        owners = np.broadcast_to(made.owner(list(table))[0], shape)
        found = from_owners(owners, 64)
        assert found is not None
        np.testing.assert_array_equal(found.owner(list(table))[0], owners)
        assert found.slots == made.slots
    for bad in (np.arange(64) + 1, np.arange(96), np.arange(64) * 7 % 64, np.arange(8)[::-1]):
        assert from_owners(np.asarray(bad), 64) is None


@pytest.mark.few(1)
@pytest.mark.parametrize("target", TARGETS)
def test_what_points_write_and_read_is_no_copys(target):
    """Found by a random program: threads that hold copies of sums read what one of them wrote."""

    @T.prim_func
    def main(
        X: T.Tensor((32, 32), "float16"), Y: T.Tensor((32, 64), "float32"),
        Z: T.Tensor((32, 64), "float16"),
    ):  # fmt: skip
        with T.Kernel(1, threads=384):
            x = T.alloc_shared((32, 32), "float16")
            w = T.alloc_shared((32, 64), "float16")
            s = T.alloc_shared((32, 64), "float16")
            f = T.alloc_fragment((32, 64), "float32")
            T.copy(X, x)
            T.fill(w, 1)
            T.fill(s, 1)
            T.clear(f)
            T.gemm(x, w, f)
            for i, j in T.Parallel(32, 64):
                s[i, j] = s[i, j] + T.cast(i, "float16")
                f[i, j] = f[i, j] + s[i, j]
            T.copy(f, Y)
            T.copy(s, Z)

    x = np.ones((32, 32), np.float16)
    y, z = np.zeros((32, 64), np.float32), np.zeros((32, 64), np.float16)
    run_emulated(main, target, [x, y, z], SCHEDULES)
    np.testing.assert_array_equal(z, np.broadcast_to(np.arange(32)[:, None] + 1, (32, 64)))
    np.testing.assert_array_equal(y, z.astype(np.float32) + 32)
