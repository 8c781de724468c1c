"""Elements that data looks up, and variables read behind a nest: right where iterations meet."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import LATE, Schedule
from tilecore.errors import UnsupportedOnTarget
from tilecore.interpreter import run as interpret
from tilecore.ir.dtype import DType
from tilecore.ir.live_out import left_behind
from tilecore.ir.nodes import Atomic, Parallel
from tilecore.ir.visitor import walk
from tilecore.passes import looked_up
from tilecore.target import parse_target

pytestmark = pytest.mark.few(1)  # a case takes long

TARGETS = ("sm_80", "h100", "gfx942")
SCHEDULES = (LATE, Schedule("random", 3))
N, BINS = 192, 12
RNG = np.random.default_rng(20261125)


def histogram(body, scope, dtype="float32"):
    """A program that updates elements of ``bins``, 2 at first, as ``body`` says of each point."""

    @T.prim_func
    def main(X: T.Tensor((N,), dtype), K: T.Tensor((N,), "int32"), Y: T.Tensor((BINS,), dtype)):
        with T.Kernel(1, threads=128):
            if scope == "shared":
                bins = T.alloc_shared((BINS,), dtype)
                T.fill(bins, 2)
                body(bins, X, K)
                T.copy(bins, Y)
            else:
                T.fill(Y, 2)
                body(Y, X, K)

    return main


@T.macro
def added(bins, x, i):
    for n in T.Parallel(N):
        bins[i[n]] += x[n]


@T.macro
def subtracted(bins, x, i):
    for n in T.Parallel(N):
        k = i[n]
        bins[k] = bins[k] - x[n]


@T.macro
def largest(bins, x, i):
    for n in T.Parallel(N):
        if x[n] < 90:
            bins[i[n]] = T.max(x[n], bins[i[n]])


@T.macro
def smallest_of_rows(bins, x, i):
    for n, m in T.Parallel(N // 4, 4):
        bins[i[4 * n + m]] = T.min(bins[i[4 * n + m]], x[4 * n + m])


@T.macro
def two_at_a_time(bins, x, i):
    for n in T.Parallel(N // 2):
        for m in T.serial(2):
            bins[i[2 * n + m]] = x[2 * n + m] + bins[i[2 * n + m]]


@T.macro
def halved(bins, x, i):
    for n in T.Parallel(N):
        bins[i[n]] = bins[i[n]] * 0.5 + x[n]


@T.macro
def compared(bins, x, i):
    for n in T.Parallel(N):
        if x[n] > bins[i[n]]:
            bins[i[n]] = x[n]


@T.macro
def groups(bins, x, i):
    for n in T.Parallel(N):
        if i[n] > 5:
            bins[n // 16] += x[n]


BODIES = {
    "added": added, "subtracted": subtracted, "largest": largest,
    "smallest_of_rows": smallest_of_rows, "two_at_a_time": two_at_a_time, "halved": halved,
    "compared": compared, "groups": groups,
}  # fmt: skip
IN_TURN = ("halved", "compared", "groups")  # no one atomic update does this


@pytest.mark.covering
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("scope", ["shared", "global"])
@pytest.mark.parametrize("name", BODIES)
def test_no_update_is_lost(name, scope, target):
    func = histogram(BODIES[name], scope)
    x = RNG.integers(0, 99, N).astype(np.float32)
    i = RNG.integers(0, BINS, N).astype(np.int32)
    y, oracle = np.zeros((2, BINS), np.float32)
    interpret(func, x, i, oracle)
    run_emulated(func, target, [x, i, y], SCHEDULES)
    np.testing.assert_array_equal(y, oracle)
    # The emulator does not see races in global memory: the form of the code must say it.
    atomics = [s for s in walk(looked_up.run(func).body) if isinstance(s, Atomic)]
    assert len(atomics) == (0 if name in IN_TURN else 1)
    if name in IN_TURN:
        plan, _, _ = lowered(func, target)
        (launch,) = plan.launches.values()
        (nest,) = (p for s, p in launch.nests.items() if isinstance(s, Parallel))
        assert not any(d.in_thread for axis in nest.distribution.axes for d in axis) or (
            name == "groups" and nest.distribution.axes[0][-1].extent == 16
        )


TYPES = ("float16", "bfloat16", "float64", "int8", "uint8", "int16", "int32", "uint32", "int64")


@pytest.mark.covering
@pytest.mark.parametrize("scope", ["shared", "global"])
@pytest.mark.parametrize("dtype", TYPES)
def test_types_of_updates(dtype, scope):
    func = histogram(added, scope, dtype)
    kind = DType(dtype).numpy
    x = RNG.integers(0, 4, N).astype(kind)
    i = RNG.integers(0, BINS, N).astype(np.int32)
    y, oracle = np.zeros(BINS, kind), np.zeros(BINS, kind)
    interpret(func, x, i, oracle)
    assert any(isinstance(s, Atomic) for s in walk(looked_up.run(func).body))
    run_emulated(func, "h100", [x, i, y], SCHEDULES)
    assert (y == oracle).all()


def test_other_updates_stay_as_they_are():
    """Not looked up, looked up once for all points, read elsewhere, or of a narrow float."""

    @T.prim_func
    def main(
        X: T.Tensor((8, 64), "float32"), K: T.Tensor((8,), "int32"),
        Z: T.Tensor((64,), "float8_e4m3fn"), J: T.Tensor((64,), "int32"), D: T.int32,
    ):  # fmt: skip
        with T.Kernel(8, threads=64) as bx:
            row = K[bx]
            for j in T.Parallel(64):
                X[row, j] += 1.0
            for j in T.Parallel(64):
                X[j % D, j // D] += 1.0
            for j in T.Parallel(64):
                X[0, J[j]] = X[0, J[j]] + X[1, j]
            for j in T.Parallel(64):
                Z[J[j]] += T.cast(1, "float8_e4m3fn")

    assert looked_up.run(main) is main


def test_rows_that_data_looks_up_are_spread_along_their_columns():
    @T.prim_func
    def main(S: T.Tensor((9, 128), "float32"), K: T.Tensor((16,), "int32")):
        with T.Kernel(1, threads=128):
            for i, j in T.Parallel(16, 128):
                S[K[i], j] = S[K[i], j] * 0.5 + j

    s = RNG.standard_normal((9, 128)).astype(np.float32)
    oracle, i = s.copy(), RNG.integers(0, 9, 16).astype(np.int32)
    interpret(main, oracle, i)
    run_emulated(main, "sm_80", [s, i], SCHEDULES)
    np.testing.assert_array_equal(s, oracle)
    plan, _, _ = lowered(main, "sm_80")
    (launch,) = plan.launches.values()
    (nest,) = launch.nests.values()
    rows, columns = nest.distribution.axes
    assert not any(d.in_thread for d in rows)
    assert any(d.in_thread for d in columns)


# --- variables -----------------------------------------------------------------------------------


def found(where):
    """The place of 99, by one of the points of a nest, told to all."""

    @T.prim_func
    def main(X: T.Tensor((N,), "int32"), Y: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=64):
            place = T.alloc_var("int32", init=-1)
            x = T.alloc_fragment((N,), "int32")
            T.copy(X, x)
            if where == "tensor":
                for i in T.Parallel(N):
                    if X[i] == 99:
                        place = i
            elif where == "fragment":
                for i in T.Parallel(N):
                    if x[i] == 99:
                        place = i
            else:
                for k in T.serial(3):
                    if place < 0:
                        for i in T.Parallel(N // 3):
                            if X[k * (N // 3) + i] == 99:
                                place = k * (N // 3) + i
            for i in T.Parallel(N):
                Y[i] = place + x[i]

    return main


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("where", ["tensor", "fragment", "loop"])
def test_a_variable_that_one_point_sets_is_known_to_all_threads(where, target):
    func = found(where)
    x = RNG.integers(0, 9, N).astype(np.int32)
    x[131] = 99
    y, oracle = np.zeros((2, N), np.int32)
    interpret(func, x, oracle)
    run_emulated(func, target, [x, y], SCHEDULES)
    np.testing.assert_array_equal(y, 131 + x)
    np.testing.assert_array_equal(oracle, y)


def test_which_variables_nests_leave_behind():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            own = T.alloc_var("float32")
            again = T.alloc_var("float32", init=0.0)
            last = T.alloc_var("float32", init=0.0)
            total = T.alloc_var("float32", init=0.0)
            for _ in T.serial(2):
                for i in T.Parallel(64):  # 0
                    own = X[i]
                    again = X[i]
                    last = X[i]
                    Y[i] = own
                again = 1.0
                Y[0] = again
                if Y[1] > 0:
                    for i in T.Parallel(64):  # 1: what it adds up, the next turn goes on with
                        total += X[i]
            for i in T.Parallel(64):  # 2
                last = X[i]
                Y[i] = last
            for i in T.Parallel(64):  # 3
                if Y[i] > 3:
                    last = X[i]
            Y[3] = last

    (launch,) = (s for s in walk(main.body) if type(s).__name__ == "KernelLaunch")
    nests = [s for s in walk(launch) if isinstance(s, Parallel)]
    left = {nests.index(n): {b.name for b in v} for n, v in left_behind(launch.body).items()}
    assert left == {1: {"total"}, 2: {"last"}, 3: {"last"}}


def test_one_that_depends_on_memory_updated_in_turn_is_refused():
    @T.prim_func
    def main(
        X: T.Tensor((N,), "float32"), K: T.Tensor((N,), "int32"), Y: T.Tensor((4,), "float32")
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            last = T.alloc_var("float32", init=0.0)
            bins = T.alloc_shared((4,), "float32")
            T.clear(bins)
            for i in T.Parallel(N):
                bins[K[i]] = bins[K[i]] * 0.5 + X[i]
                last = bins[K[i]]
            Y[3] = last

    with pytest.raises(UnsupportedOnTarget, match=r"`bins` in turn and leaves a value in `last`"):
        lowered(main, parse_target("h100").name)
