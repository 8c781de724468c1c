"""None in place of a tensor that a program does not use."""

import numpy as np
import pytest
import torch

import tilecore as tilelang
import tilecore.language as T
from tilecore.errors import ArgumentError
from tilecore.interpreter import run


def affine(has_bias, dtype="float32"):
    n = T.dynamic("n")

    @T.prim_func
    def main(
        A: T.Tensor((n, 16), dtype), Bias: T.Tensor((16,), dtype), C: T.Tensor((n, 16), dtype)
    ):
        with T.Kernel(T.ceildiv(n, 8)) as b:
            for i, j in T.Parallel(8, 16):
                if has_bias:
                    C[b * 8 + i, j] = A[b * 8 + i, j] * 2 + Bias[j]
                else:
                    C[b * 8 + i, j] = A[b * 8 + i, j] * 2

    return main


def test_an_unused_tensor_may_be_none():
    a = np.random.default_rng(0).standard_normal((13, 16), np.float32)
    kernel = tilelang.compile(affine(False))
    c = torch.zeros(13, 16)
    kernel(torch.from_numpy(a), None, c)
    np.testing.assert_array_equal(c.numpy(), 2 * a)
    oracle = np.zeros((13, 16), np.float32)
    run(affine(False), a, None, oracle)
    np.testing.assert_array_equal(oracle, 2 * a)


def test_a_tensor_that_is_used_may_not():
    kernel = tilelang.compile(affine(True))
    a, c = torch.zeros(13, 16), torch.zeros(13, 16)
    with pytest.raises(ArgumentError, match=r"argument 1 `Bias`: expected a torch.Tensor .*None"):
        kernel(a, None, c)
    with pytest.raises(ArgumentError, match="Bias"):
        run(affine(True), a.numpy(), None, c.numpy())


@pytest.mark.parametrize("dtype", ["float32", "float8_e4m3fn", "int4"])
def test_dimensions_come_from_the_tensors_that_are_there(dtype):
    m = T.dynamic("m")

    @T.prim_func
    def main(A: T.Tensor((m, 4), dtype), B: T.Tensor((4, m), dtype), N: T.Tensor((1,), "int32")):
        with T.Kernel(1):
            N[0] = m

    kernel, wide = tilelang.compile(main), dtype == "int4"
    kind = torch.int8 if wide else getattr(torch, dtype)
    a, b = torch.zeros(6, 2 if wide else 4).to(kind), torch.zeros(4, 3 if wide else 6).to(kind)
    for arguments, expected in ((a, b), 6), ((None, b), 6), ((a, None), 6), ((None, None), 0):
        n = torch.tensor([-1], dtype=torch.int32)
        kernel(*arguments, n)
        assert n.item() == expected
    if dtype == "float32":
        n = np.zeros(1, np.int32)
        run(main, None, b.numpy(), n)
        assert n[0] == 6
        run(main, None, None, n)
        assert n[0] == 0


def test_absent_tensors_with_strides():
    n, step = T.dynamic("n"), T.dynamic("step")

    @T.prim_func
    def main(A: T.StridedTensor((n, 4), (step, 1), "float32"), N: T.Tensor((1,), "int32")):
        with T.Kernel(1):
            N[0] = 7

    found = torch.zeros(1, dtype=torch.int32)
    tilelang.compile(main)(None, found)
    assert found.item() == 7


@pytest.mark.parametrize("has_weights", [False, True])
def test_a_tensor_that_is_only_looked_at_in_another_shape_may_be_none(has_weights):
    n = T.dynamic("n")

    @T.prim_func
    def main(
        A: T.Tensor((n, 6), "float32"), W: T.Tensor((n, 6), "float32"),
        B: T.Tensor((n, 6), "float32"),
    ):  # fmt: skip
        with T.Kernel(1):
            weights = T.reshape(W, (n * 6,))
            for i in T.serial(n):
                for j in T.Parallel(6):
                    if has_weights:
                        B[i, j] = A[i, j] * weights[i * 6 + j]
                    else:
                        B[i, j] = A[i, j] * 3

    rng = np.random.default_rng(1)
    a, w = rng.standard_normal((2, 5, 6)).astype(np.float32)
    given, want = (w, a * w) if has_weights else (None, a * 3)
    b, oracle = np.zeros_like(a), np.zeros_like(a)
    tilelang.compile(main)(a, given, b)
    run(main, a, given, oracle)
    np.testing.assert_array_equal(b, want)
    np.testing.assert_array_equal(oracle, want)
    if has_weights:
        with pytest.raises(ArgumentError, match=r"argument 1 `W`: expected a torch.Tensor .*None"):
            tilelang.compile(main)(a, None, b)
