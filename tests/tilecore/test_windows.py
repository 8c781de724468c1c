"""Windows that slide over tensors: short loops go inside of nests, lanes outside are masked."""

import functools
import re

import numpy as np
import pytest
import torch

import tilecore.language as T
from tests.tilecore.x86_paths import here, paths
from tilecore import runtime
from tilecore.compiler import compile, lower
from tilecore.interpreter import run
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Select, binary, const
from tilecore.ir.nodes import Store
from tilecore.ir.visitor import walk, walk_expr
from tilecore.passes import guarded_loads
from tilecore.target import parse_target

PATHS = paths("avx2", "avx512")
conv2d = torch.nn.functional.conv2d


def planes(c, h, w, k, stride, dtype="float32", block=4, inner=None):
    """Return a depthwise convolution of planes: k x k pixels, as many zeros around as it takes."""
    pad, oh, ow = k // 2, (h - 1) // stride + 1, (w - 1) // stride + 1
    width = inner or ow

    @T.prim_func
    def main(
        X: T.Tensor((c, h, w), dtype),
        F: T.Tensor((c, k, k), dtype),
        Y: T.Tensor((c, oh, ow), dtype),
    ):
        with T.Kernel(T.ceildiv(ow, width), T.ceildiv(oh, block), c) as (bz, bx, by):
            acc = T.alloc_fragment((block, width), dtype)
            T.clear(acc)
            for r, s in T.grid(k, k):
                for i, j in T.Parallel(block, width):
                    y = (bx * block + i) * stride + r - pad
                    x = (bz * width + j) * stride + s - pad
                    acc[i, j] += (
                        T.if_then_else(y >= 0 and y < h and x >= 0 and x < w, X[by, y, x], 0.0)
                        * F[by, r, s]
                    )
            T.copy(acc, Y[by, bx * block, bz * width])

    return main


def pixels(c, h, w, k, stride, block=4):
    """Return the same with channels last."""
    pad, oh, ow = k // 2, (h - 1) // stride + 1, (w - 1) // stride + 1

    @T.prim_func
    def main(
        X: T.Tensor((h, w, c), "float32"), F: T.Tensor((k, k, c), "float32"),
        Y: T.Tensor((oh, ow, c), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(ow, block), oh) as (bx, by):
            acc = T.alloc_fragment((block, c), "float32")
            T.clear(acc)
            for r, s in T.grid(k, k):
                for i, j in T.Parallel(block, c):
                    acc[i, j] += (
                        X[by * stride + r - pad, (bx * block + i) * stride + s - pad, j]
                        * (F[r, s, j])
                    )
            T.copy(acc, Y[by, bx * block, 0])

    return main


def numbers(shape, dtype="float32", seed=0):
    found = np.random.default_rng(seed).integers(-4, 5, shape)  # sums of them are exact
    return found.astype(DType(dtype).numpy)


def wanted(x, f, stride):
    x, f = (torch.from_numpy(a.astype(np.float64)) for a in (x, f))
    k = f.shape[-1]
    return conv2d(x[None], f[:, None], stride=stride, padding=k // 2, groups=len(x))[0].numpy()


@pytest.mark.few(1)
@pytest.mark.covering("k stride", "width stride", "width k")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("k", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("width", [5, 8, 14, 16, 33, 50])
def test_planes(artifacts, path, width, k, stride):
    x, f = numbers((3, 11, width)), numbers((3, k, k), seed=1)
    if k == 2:
        f[:, 0] = f[:, :, 0] = 0  # torch pads windows of two pixels on the other side
        f3 = np.zeros((3, 3, 3), np.float32)
        f3[:, :2, :2] = f
        exact = wanted(x, f3, stride)
    else:
        exact = wanted(x, f, stride)
    found = np.full(exact.shape, np.nan, np.float32)
    runtime.load(compile(planes(3, 11, width, k, stride), here(path), store=artifacts))(x, f, found)
    np.testing.assert_array_equal(found, exact)


@pytest.mark.few(1)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "int8"])
def test_types(artifacts, path, dtype):
    x, f = numbers((2, 9, 37), dtype), (numbers((2, 3, 3), dtype, 1) > 0).astype(DType(dtype).numpy)
    exact = wanted(x, f, 1)
    found = np.zeros(exact.shape, x.dtype)
    func = planes(2, 9, 37, 3, 1, dtype, inner=24)
    runtime.load(compile(func, here(path), store=artifacts))(x, f, found)
    np.testing.assert_array_equal(found.astype(np.float64), exact)


@pytest.mark.few(1)
@pytest.mark.covering("channels stride", "channels k")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("k", [3, 5])
@pytest.mark.parametrize("channels", [3, 16, 40])
def test_pixels(artifacts, path, channels, k, stride):
    x, f = numbers((7, 10, channels)), numbers((k, k, channels), seed=1)
    exact = wanted(x.transpose(2, 0, 1), f.transpose(2, 0, 1), stride).transpose(1, 2, 0)
    found = np.full(exact.shape, np.nan, np.float32)
    func = pixels(channels, 7, 10, k, stride)
    runtime.load(compile(func, here(path), store=artifacts))(x, f, found)
    np.testing.assert_array_equal(found, exact)


@pytest.mark.parametrize("path", PATHS)
def test_the_largest_of_a_window(artifacts, path):
    h, w = 13, 29
    oh, ow = (h + 1) // 2, (w + 1) // 2

    @T.prim_func
    def main(X: T.Tensor((h, w), "float32"), Y: T.Tensor((oh, ow), "float32")):
        with T.Kernel(1):
            best = T.alloc_fragment((oh, ow), "float32")
            T.fill(best, -T.infinity("float32"))
            for r, s in T.grid(3, 3):
                for i, j in T.Parallel(oh, ow):
                    y, x = i * 2 + r - 1, j * 2 + s - 1
                    if y >= 0 and y < h and x >= 0 and x < w:
                        best[i, j] = T.max(best[i, j], X[y, x])
            T.copy(best, Y)

    x = numbers((h, w)) - 5.0
    found = np.zeros((oh, ow), np.float32)
    runtime.load(compile(main, here(path), store=artifacts))(x, found)
    exact = torch.nn.functional.max_pool2d(torch.from_numpy(x)[None], 3, 2, 1)[0]
    np.testing.assert_array_equal(found, exact.numpy())


def test_what_tells_iterations_apart_stays_around_the_nest(artifacts):
    """The second step looks at what the first one left in a neighbour."""

    @T.prim_func
    def main(X: T.Tensor((34,), "float32"), Y: T.Tensor((32,), "float32")):
        with T.Kernel(1):
            a = T.alloc_shared((33,), "float32")
            b = T.alloc_shared((33,), "float32")
            T.clear(a)
            T.clear(b)
            for r in T.serial(3):
                for j in T.Parallel(32):
                    a[j] += X[j + r] + b[j + 1]
                for j in T.Parallel(32):
                    b[j] += X[j + r] * a[j]
            for j in T.Parallel(32):
                Y[j] = a[j] + b[j]

    x, found, oracle = numbers(34), np.zeros(32, np.float32), np.zeros(32, np.float32)
    runtime.load(compile(main, store=artifacts))(x, found)
    run(main, x, oracle)
    np.testing.assert_array_equal(found, oracle)


@pytest.mark.parametrize("path", ["avx2", "avx512"])
def test_sums_stay_in_registers_and_lanes_outside_are_masked(path):
    text = str(lower(planes(2, 9, 40, 3, 1), parse_target(path), {})[1])
    assert "own" in text
    assert "masked_load" in text


def test_sums_over_what_does_not_slide_stay_as_they_are():
    @T.prim_func
    def main(A: T.Tensor((8, 16), "float32"), B: T.Tensor((16, 40), "float32")):
        with T.Kernel(1):
            c = T.alloc_fragment((8, 40), "float32")
            T.clear(c)
            for k in T.serial(16):
                for i, j in T.Parallel(8, 40):
                    c[i, j] += A[i, k] * B[k, j]
            T.copy(c, B[0, 0])

    assert "own" not in str(lower(main, parse_target("avx2"), {})[1])


@pytest.mark.parametrize(
    ("conditions", "left"),
    [
        (lambda y, x: (y >= 0, y < 9, x >= 0, x < 40), 0),
        (lambda y, x: (const(0) <= y, y <= 8, x > -1, const(40) > x), 0),
        (lambda y, x: (y >= 0, x < 39), 1),
        (lambda y, x: (y >= 1,), 1),
    ],
)
def test_bounds_of_the_tensor_are_not_asked_twice(run_both, conditions, left):
    @T.prim_func
    def main(X: T.Tensor((9, 40), "float32"), Y: T.Tensor((9, 40), "float32")):
        with T.Kernel(9) as b:
            for j in T.Parallel(40):
                chosen = functools.reduce(
                    lambda a, c: binary("and", a, c), conditions(b - 1, j + 1)
                )
                Y[b, j] = T.if_then_else(chosen, X[b - 1, j + 1], 0.0)

    stores = [s for s in walk(guarded_loads.run(main).body) if isinstance(s, Store)]
    nodes = [n for s in stores for n in walk_expr(s.value)]
    assert sum(isinstance(n, Select) for n in nodes) == left
    run_both(main, [numbers((9, 40))], [np.zeros((9, 40), np.float32)])


def test_what_a_padded_tensor_gives_is_still_asked(run_both):
    @T.prim_func
    def main(X: T.Tensor((8,), "float32"), Y: T.Tensor((16,), "float32")):
        with T.Kernel(1):
            T.annotate_safe_value({X: 7.0})
            for j in T.Parallel(16):
                Y[j] = T.if_then_else(j - 4 >= 0 and j - 4 < 8, X[j - 4], 0.0) + X[j + 1]

    x = numbers(8)
    exact = np.zeros(16)
    exact[4:12] = x
    exact += [*x[1:], *[7.0] * 9]
    run_both(main, [x], [np.zeros(16, np.float32)], [exact])


def begun(start, rows=4, first=0, dtype="float32"):
    """Return sums over windows of three that begin with ``start`` in some rows, else with 1."""

    @T.prim_func
    def main(X: T.Tensor((40,), dtype), Y: T.Tensor((4, 40), dtype)):
        with T.Kernel(1):
            acc = T.alloc_fragment((4, 40), dtype)
            if rows < 4:
                T.fill(acc, 1)
            T.fill(acc[first : first + rows, :], start)
            for r in T.serial(3):
                for i, j in T.Parallel(4, 40):
                    acc[i, j] += T.if_then_else(j + r < 40, X[j + r], 0) * (i + 1)
            T.copy(acc, Y)

    return main


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
@pytest.mark.parametrize(("rows", "first"), [(4, 0), (3, 0), (2, 1)])
@pytest.mark.parametrize("start", [0, 3])
def test_what_sums_begin_with(start, rows, first, dtype, run_both):
    x = numbers(40, dtype)
    run_both(begun(start, rows, first, dtype), [x], [np.zeros((4, 40), dtype)], rtol=1e-2)


@pytest.mark.parametrize(("rows", "is_passed"), [(4, False), (3, True)])
def test_a_window_begins_with_a_number_by_itself(rows, is_passed):
    """The fill of a whole tile before it is no pass of its own."""
    script = lower(begun(3, rows), parse_target("avx512"), {})[1].script()
    found = re.search(r"acc\d+\[[^\]]*\] = T.Broadcast\(T.float32\(3", script)
    assert (found is not None) == is_passed
