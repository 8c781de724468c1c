"""Calls of sizes that a kernel has met before: checked quickly, and no less."""

import numpy as np
import pytest
import torch

import tilecore
import tilecore.language as T
from tilecore.errors import AliasError, ArgumentError
from tilecore.runtime.memo import MOST
from tilecore.runtime.quick import QuickChecks


@pytest.fixture(scope="module")
def kernel():
    n, m, step = T.dynamic("n"), T.dynamic("m"), T.dynamic("step")

    @T.prim_func
    def scaled(
        X: T.StridedTensor((n, m), (step, 1), "float32"), W: T.Tensor((m,), "float32"),
        shift: T.int32, factor: T.float32, rows: T.int32, Y: T.Tensor((n, m), "float32"), Z,
    ):  # fmt: skip
        Z: T.Tensor[[rows], T.int32]
        with T.Kernel(n) as i:
            for j in T.Parallel(m):
                Y[i, j] = X[i, j] * W[j] * factor + T.cast(shift, "float32")
            if i == 0:
                for k in T.serial(rows):
                    Z[k] = shift

    return tilecore.compile(scaled, out_idx=[5, 6])


def given(n=6, m=10, width=16, library=torch):
    x = np.random.default_rng(n).standard_normal((n, width)).astype(np.float32)[:, :m]
    w = np.arange(m, dtype=np.float32)
    if library is torch:
        return torch.from_numpy(x), torch.from_numpy(w), 3, 0.5, n + 1
    return x, w, 3, 0.5, n + 1


def check(found, arguments):
    x, w, shift, factor, rows = (np.asarray(a) for a in arguments)
    want = x.astype(np.float64) * w * factor + shift
    np.testing.assert_allclose(np.asarray(found[0]), want, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(found[1]), np.full(rows, shift))


@pytest.mark.few(1)
@pytest.mark.parametrize("library", [torch, np])
def test_sizes_strides_and_numbers_change_from_call_to_call(kernel, library):
    rng = np.random.default_rng(0)
    for _ in range(60):
        n, m = int(rng.integers(1, 5)), int(rng.integers(0, 5))
        arguments = given(n, m, width=m + int(rng.integers(0, 3)), library=library)
        arguments = (*arguments[:2], int(rng.integers(-9, 9)), float(rng.random()), arguments[4])
        check(kernel(*arguments), arguments)
        outputs = [np.empty((n, m), np.float32), np.empty(n + 1, np.int32)]
        if library is torch:
            outputs = [torch.from_numpy(o) for o in outputs]
        kernel(*arguments, *outputs)
        check(outputs, arguments)


def test_what_is_wrong_is_told_also_at_sizes_known_before(kernel):
    x, w, shift, factor, rows = given()
    y, z = torch.empty(6, 10), torch.empty(7, dtype=torch.int32)
    good = (x, w, shift, factor, rows, y, z)
    kernel(*good)
    assert kernel.loaded._ran(good)
    arrays = tuple(a.numpy() if isinstance(a, torch.Tensor) else a for a in good)
    kernel(*arrays)
    assert kernel.loaded._ran(arrays)
    assert isinstance(kernel.loaded._quick, QuickChecks)  # of arrays beside kept weights
    kernel.loaded._quick.learn(arrays)
    assert kernel.loaded._quick.accepts(arrays)
    for position, wrong, message in (
        (0, x.double(), "expected dtype float32, found float64"),
        (0, x.T.contiguous().T, "strides"),
        (1, w[:9], "m = 10"),
        (1, w.tolist(), "expected a torch.Tensor or numpy.ndarray, found list"),
        (2, 2**31, "expected a value of type int32"),
        (2, "three", r"expected a number \(int32\)"),
        (3, "half", r"expected a number \(float32\)"),
        (4, 8, r"shape"),
        (5, torch.empty(10, 6).T, "strides"),
        (5, np.frombuffer(bytes(240), np.float32).reshape(6, 10), "writable"),
        (6, z.long(), "dtype int32"),
    ):
        for others in (good, arrays):
            arguments = list(others)
            arguments[position] = wrong
            with pytest.raises(ArgumentError, match=message):
                kernel(*arguments)
            if others is arrays and isinstance(wrong, torch.Tensor):
                arguments[position] = wrong.numpy()
                with pytest.raises(ArgumentError, match=message):
                    kernel(*arguments)
            kernel(*others)
    misaligned = np.ndarray((6, 10), np.float32, bytearray(244), offset=1)
    with pytest.raises(ArgumentError, match="aligned"):
        kernel(x, w, shift, factor, rows, misaligned, z)
    both = torch.zeros(60 + 5)
    with pytest.raises(AliasError):
        kernel(both[:60].view(6, 10), w, shift, factor, rows, both[5:].view(6, 10), z)
    column = both[:60].view(6, 10)[:, :1]
    kernel(column, w[:1], shift, factor, rows, both[51:57].view(6, 1), z)
    with pytest.raises(AliasError):  # what lies between the rows of a tensor counts, too
        kernel(column, w[:1], shift, factor, rows, both[44:50].view(6, 1), z)


def test_values_of_other_types_and_tensors_with_gradients_are_taken_as_before(kernel):
    x, w, *_, rows = given()
    for _ in range(2):
        arguments = (x.clone().requires_grad_(), w.numpy(), np.int32(4), 2, rows)
        found = kernel(*arguments)
        check(found, (x, w, 4, 2.0, rows))
        assert not found[0].requires_grad


def test_what_is_remembered_is_bounded(kernel):
    quick = kernel.loaded._quick
    for n in range(1, MOST + 10):
        quick.learn((*given(n, 1), torch.empty(n, 1), torch.empty(n + 1, dtype=torch.int32)))
    assert 0 < len(quick._known) <= MOST
    check(kernel(*given()), given())


@pytest.fixture
def scale():
    @tilecore.jit
    def scale(X, factor: T.float32, start: T.int32 = 0, block=4, W=None, plus=1, dtype="float32"):
        M, N, step = T.const("M, N, step")
        X: T.StridedTensor[[M, N], [step, 1], dtype]
        Y = T.empty([M, N], dtype)
        with T.Kernel(T.ceildiv(M, block)) as b:
            for i, j in T.Parallel(block, N):
                Y[b * block + i, j] = X[b * block + i, j] * factor + (plus + start)
        return Y

    return scale


def test_functions_find_the_kernel_of_a_call_again(scale):
    x, remembered = torch.randn(6, 10), []
    for _ in range(2):
        for rows, columns in ((6, 10), (4, 10), (6, 3)):
            part = x[:rows, :columns]
            torch.testing.assert_close(scale(part, 2.0), part * 2 + 1)
            torch.testing.assert_close(scale(part, factor=0.5, start=2), part * 0.5 + 3)
            torch.testing.assert_close(scale(part, 2.0, 3, 2, plus=4), part * 2 + 7)
            np.testing.assert_allclose(scale(part.numpy(), 2.0), part.numpy() * 2 + 1)
        torch.testing.assert_close(scale(x.repeat(1, 2)[:, :10], 2.0), x * 2 + 1)
        torch.testing.assert_close(scale(x, 2.0, plus=True), x * 2 + 1)
        torch.testing.assert_close(scale(x, 2.0, plus=1.0), x * 2 + 1)
        remembered.append((len(scale._calls), len(scale._kernels)))
    assert remembered[0] == remembered[1]


def test_numbers_of_a_kernel_are_no_part_of_what_is_remembered(scale):
    x = torch.randn(4, 4)
    for i in range(20):
        torch.testing.assert_close(scale(x, float(i), start=i), x * i + i + 1)
    assert len(scale._calls) == 1


def test_functions_refuse_wrong_arguments_after_right_ones(scale):
    x = torch.randn(4, 4)
    scale(x, 1.0)
    with pytest.raises(ArgumentError, match="dtype float32"):
        scale(x.double(), 1.0)
    with pytest.raises(ArgumentError, match="2 axes"):
        scale(x[0], 1.0)
    with pytest.raises(ArgumentError, match=r"a number \(float32\)"):
        scale(x, "a")
    with pytest.raises(ArgumentError, match="found nothing"):
        scale(factor=1.0)
    torch.testing.assert_close(scale(x, 1.0), x + 1)


def test_without_the_cache_every_call_builds(scale):
    x = torch.randn(4, 4)
    scale(x, 1.0)
    (before,) = scale._kernels.values()
    tilecore.disable_cache()
    try:
        torch.testing.assert_close(scale(x, 1.0), x + 1)
    finally:
        tilecore.enable_cache()
    (after,) = scale._kernels.values()
    assert after is not before
