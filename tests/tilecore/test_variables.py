"""Variables of nests are names where they can be, and hold what they held in any case."""

import numpy as np
import pytest

import tilecore.language as T
from tilecore.show import stage_texts
from tilecore.target import parse_target

N = 37


def straight():
    @T.prim_func
    def main(X: T.Tensor((4, N), "float32"), Y: T.Tensor((4, N), "float32")):
        with T.Kernel(4) as b:
            for i in T.Parallel(N):
                v = T.alloc_var("float32")
                v = X[b, i] * 2
                v = v + 1
                Y[b, i] = T.exp(v) * v

    return main, lambda x: np.exp(x * 2 + 1) * (x * 2 + 1)


def branches():
    @T.prim_func
    def main(X: T.Tensor((4, N), "float32"), Y: T.Tensor((4, N), "float32")):
        with T.Kernel(4) as b:
            for i in T.Parallel(N):
                v = T.alloc_var("float32", init=3.0)
                w = T.alloc_var("float32")
                w = X[b, i]
                if w > 0:
                    v = w * 2
                    w = v + 1
                elif w < -1:
                    w = 7.0
                Y[b, i] = T.exp(v) - w

    def expected(x):
        v = np.where(x > 0, x * 2, 3)
        w = np.where(x > 0, x * 2 + 1, np.where(x < -1, 7, x))
        return np.exp(v) - w

    return main, expected


def guarded():
    @T.prim_func
    def main(X: T.Tensor((4, N), "float32"), Y: T.Tensor((4, N), "float32")):
        with T.Kernel(T.ceildiv(N, 16), 4) as (bx, b):
            v = T.alloc_var("float32")
            for j in T.Parallel(16):
                i = bx * 16 + j
                if i < N:
                    v = X[b, i] + 0.5
                    if v > 0:
                        w = T.alloc_var("float32")
                        w = T.sqrt(v)
                        Y[b, i] = w
                    else:
                        v = v * v
                        Y[b, i] = v

    def expected(x):
        v = x + 0.5
        return np.where(v > 0, np.sqrt(np.maximum(v, 0)), v * v)

    return main, expected


def storing():
    """A branch that stores as well, and assigns what is used later."""

    @T.prim_func
    def main(X: T.Tensor((4, N), "float32"), Y: T.Tensor((4, N), "float32")):
        with T.Kernel(4) as b:
            for i in T.Parallel(N):
                v = T.alloc_var("float32", init=1.0)
                w = T.alloc_var("float32", init=2.0)
                Y[b, i] = 0
                if X[b, i] > 0:
                    v = X[b, i]
                    if X[b, i] > 1:
                        Y[b, i] = X[b, i]
                if X[b, i] < 0.5:
                    w = v + 1
                Y[b, i] = Y[b, i] + v * w

    def expected(x):
        v = np.where(x > 0, x, 1)
        return np.where(x > 1, x, 0) + v * np.where(x < 0.5, v + 1, 2)

    return main, expected


def swapped():
    """What is read stays, though its place is written before its use."""

    @T.prim_func
    def main(X: T.Tensor((4, N), "float32"), Y: T.Tensor((4, N), "float32")):
        with T.Kernel(4) as b:
            t = T.alloc_shared((N,), "float32")
            T.copy(X[b, 0], t)
            for i in T.Parallel(N):
                v = T.alloc_var("float32")
                v = t[i]
                t[i] = X[b, i] * 10
                Y[b, i] = v + t[i]

    return main, lambda x: x + x * 10


def rounded():
    """A variable has the numbers of its type."""

    @T.prim_func
    def main(X: T.Tensor((4, N), "float32"), Y: T.Tensor((4, N), "float32")):
        with T.Kernel(4) as b:
            for i in T.Parallel(N):
                v = T.alloc_var("int32")
                h = T.alloc_var("float16")
                v = X[b, i] * 4
                h = X[b, i] / 3
                Y[b, i] = v + T.cast(h, "float32")

    return main, lambda x: np.trunc(x * 4) + (x / 3).astype(np.float16)


def summed():
    """What a loop assigns stays a variable."""

    @T.prim_func
    def main(X: T.Tensor((4, N), "float32"), Y: T.Tensor((4, N), "float32")):
        with T.Kernel(4) as b:
            for i in T.Parallel(N):
                v = T.alloc_var("float32", init=0.0)
                s = T.alloc_var("float32")
                s = X[b, i] + 1
                for k in T.serial(3):
                    v = v * s + k
                Y[b, i] = v

    def expected(x):
        s = x + 1
        return (0 * s + 1) * s + 2

    return main, expected


def carried():
    """A variable of all iterations keeps what the last one left where nothing is assigned."""

    @T.prim_func
    def main(X: T.Tensor((4, N), "float32"), Y: T.Tensor((4, N), "float32")):
        with T.Kernel(4) as b:
            v = T.alloc_var("float32")
            v = X[b, 0]
            for i in T.Parallel(N):
                Y[b, i] = X[b, i] + v

    return main, lambda x: x + x[:, :1]


CASES = [straight, branches, guarded, storing, swapped, rounded, summed, carried]


@pytest.mark.parametrize("case", CASES)
def test_values(case, run_both):
    func, expected = case()
    x = np.random.default_rng(0).standard_normal((4, N), dtype=np.float32) * 2
    run_both(func, [x], [np.full_like(x, np.nan)], [expected(x)], rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("case", "left"),
    [
        (straight, []), (branches, []), (guarded, ["v"]), (storing, ["v"]), (swapped, []),
        (rounded, []), (summed, ["v"]), (carried, ["v"]),
    ],
)  # fmt: skip
def test_those_that_are_left(case, left):
    text = stage_texts(case()[0], parse_target("llvm"))["variables"]
    found = [line.split()[1].rstrip(":") for line in text.splitlines() if " var" in line]
    assert found == left


@pytest.mark.parametrize("case", [straight, branches])
def test_functions_of_them_run_in_vectors(case):
    texts = stage_texts(case()[0], parse_target("avx512"))
    assert "expf" not in texts["asm"]
    assert "zmm" in texts["asm"]


def test_what_a_branch_guards_is_not_computed_without_it(run_both):
    @T.prim_func
    def main(A: T.Tensor((N,), "int32"), D: T.Tensor((N,), "int32"), Y: T.Tensor((2, N), "int32")):
        with T.Kernel(1):
            s = T.alloc_shared((N,), "int32")
            T.copy(A, s)
            for i in T.Parallel(N):
                v = T.alloc_var("int32", init=5)
                w = T.alloc_var("int32", init=1)
                if D[i] != 0:
                    v = A[i] // D[i]
                if D[i] >= 0 and D[i] < N:
                    w = s[D[i]]
                Y[0, i] = v
                Y[1, i] = w

    rng = np.random.default_rng(0)
    a, d = rng.integers(1, 100, N, np.int32), rng.integers(-3, 3, N, np.int32)
    d[3], d[5], is_inside = 2_000_000_000, -2_000_000_000, (d >= 0)
    is_inside[[3, 5]] = False
    divided = np.where(d != 0, a // np.where(d == 0, 1, d), 5)
    picked = np.where(is_inside, a[np.where(is_inside, d, 0)], 1)
    run_both(main, [a, d], [np.zeros((2, N), np.int32)], [np.stack([divided, picked])])
