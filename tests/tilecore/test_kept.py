"""JITKernel.keep: weights that are packed once."""

import numpy as np
import pytest
import torch

import tilecore as tilelang
import tilecore.language as T
from tilecore import kernels
from tilecore.compiler import compile
from tilecore.errors import ArgumentError, InvalidConfig, UnsupportedOnTarget
from tilecore.kernel import JITKernel

GEMM = kernels.get("gemm")
TYPES = {
    "float32": {},
    "float16": {"dtype": "float16", "out_dtype": "float16"},
    "bfloat16": {"dtype": "bfloat16", "out_dtype": "bfloat16"},
    "int8": {"dtype": "int8", "accum_dtype": "int32", "out_dtype": "int32"},
}


def kernel_of(shape, target="llvm", **fields):
    problem = GEMM.parse_problem({**dict(zip("mnk", shape, strict=True)), **fields})
    config = dict(GEMM.default_config().replace(block_M=32, block_N=64, block_K=48))
    func = GEMM.program(problem, config)
    inputs = [torch.from_numpy(x.astype(np.float32)) for x in
              GEMM.inputs(problem, np.random.default_rng(1))]  # fmt: skip
    inputs = [x.to(getattr(torch, str(problem["dtype"]))) for x in inputs]
    output = torch.empty(shape[:2], dtype=getattr(torch, str(problem["out_dtype"])))
    return JITKernel(func, compile(func, target, config)), inputs, output


def close(found, a, b, transpose_b=False):
    expected = a.double() @ (b.double().T if transpose_b else b.double())
    narrow = {torch.float16: 2e-3, torch.bfloat16: 1e-2}.get(found.dtype, 1e-5)
    scale = expected.abs().max()
    return bool(((found.double() - expected).abs() <= narrow * scale).all())


@pytest.mark.few(2)
@pytest.mark.covering("dtype transpose_b")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(1, 96, 200), (7, 130, 77), (64, 64, 96), (100, 333, 150)])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_products_of_kept_weights(dtype, shape, transpose_b):
    kernel, (a, b), output = kernel_of(shape, transpose_b=transpose_b, **TYPES[dtype])
    kept = kernel.keep(B=b)
    kept(a, output)
    assert close(output, a, b, transpose_b)
    again = a.flip(0).contiguous()
    kept(again, output)
    assert close(output, again, b, transpose_b)


def test_a_target_without_avx512():
    kernel, (a, b), output = kernel_of((33, 70, 90), target="avx2")
    kernel.keep(B=b)(a, output)
    assert close(output, a, b)


def test_later_changes_of_the_weights_are_not_seen():
    kernel, (a, b), output = kernel_of((40, 64, 64))
    original = b.clone()
    kept = kernel.keep(B=b)
    b.zero_()
    kept(a, output)
    assert close(output, a, original)
    kernel(a, b, output)  # the kernel itself goes on as before
    assert not output.any()


def test_tensors_stand_around_the_kept_one_in_their_order():
    @T.prim_func
    def linear(
        C: T.Tensor((64, 64), "float32"), B: T.Tensor((64, 64), "float32"),
        scale: T.Tensor((64,), "float32"), A: T.Tensor((64, 64), "float32"),
    ):  # fmt: skip
        with T.Kernel(1):
            a, b = T.alloc_shared((64, 64), "float32"), T.alloc_shared((64, 64), "float32")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c)
            for i, j in T.Parallel(64, 64):
                C[i, j] = c[i, j] * scale[j]

    a, b, scale = torch.randn(64, 64), torch.randn(64, 64), torch.randn(64)
    kept = tilelang.compile(linear, out_idx=[0], target="llvm").keep(B=b)
    assert close(kept(scale, a), a, b * scale)
    output = torch.empty(64, 64)
    assert kept(output, scale, a) is output
    assert close(output, a, b * scale)
    for wrong in ((a,), (output, b, scale, a)):
        with pytest.raises(ArgumentError, match=r"expected 2 tensors \(scale, A\), found"):
            kept(*wrong)


def test_rows_may_be_dynamic_and_outputs_made():
    rows = T.dynamic("rows")

    @T.prim_func
    def linear(
        X: T.Tensor((rows, 96), "float32"),
        W: T.Tensor((96, 128), "float32"),
        Y: T.Tensor((rows, 128), "float32"),
    ):
        with T.Kernel(T.ceildiv(128, 64), T.ceildiv(rows, 32)) as (bx, by):
            x = T.alloc_shared((32, 48), "float32")
            w = T.alloc_shared((48, 64), "float32")
            y = T.alloc_fragment((32, 64), "float32")
            T.clear(y)
            for k in T.Pipelined(2):
                T.copy(X[by * 32, k * 48], x)
                T.copy(W[k * 48, bx * 64], w)
                T.gemm(x, w, y)
            T.copy(y, Y[by * 32, bx * 64])

    weights = torch.randn(96, 128)
    kept = tilelang.compile(linear, out_idx=-1, target="llvm").keep(W=weights)
    assert "kept by the caller" in kept.explain()
    for count in (1, 31, 100):
        x = torch.randn(count, 96)
        assert close(kept(x), x, weights)
    with pytest.raises(ArgumentError):
        kept(torch.randn(3, 95))


def test_what_cannot_be_kept_is_said():
    kernel, (a, b), _ = kernel_of((32, 64, 64))
    for given in ({}, {"B": b, "A": a}, {"D": b}):
        with pytest.raises(ArgumentError, match="one of the tensors A, B, C by name"):
            kernel.keep(**given)
    with pytest.raises(InvalidConfig, match="second operand"):
        kernel.keep(A=a)
    with pytest.raises(ArgumentError, match="shape"):
        kernel.keep(B=b[:, :32].contiguous())
    with pytest.raises(UnsupportedOnTarget, match="GPUs pack nothing"):
        kernel_of((64, 64, 64), target="h100", **TYPES["float16"])[0].keep(B=b)
    dequant = kernels.get("dequant_gemm")
    problem = dequant.parse_problem({"m": 4, "n": 128, "k": 256})
    config = dict(dequant.default_config())
    func = dequant.program(problem, config)
    with pytest.raises(InvalidConfig, match="keep"):
        compile(func, "llvm", {**config, "keep": "B"})
