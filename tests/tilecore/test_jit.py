"""tilelang.jit and tilelang.compile: both styles, outputs, caching, options, profiler."""

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tilecore as tilelang
import tilecore.language as T
from tilecore.errors import ArgumentError, ScopeError, TypeMismatch, UnknownTarget

ROOT = Path(__file__).parents[2]


@tilelang.jit
def matmul_relu(A, B, block: int = 32, dtype: T.dtype = T.float32):
    M, N, K = T.const("M, N, K")
    A: T.Tensor[[M, K], dtype]
    B: T.Tensor[[K, N], dtype]
    C = T.empty([M, N], dtype)
    with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=128) as (bx, by):
        a = T.alloc_shared((block, block), dtype)
        b = T.alloc_shared((block, block), dtype)
        c = T.alloc_fragment((block, block), T.float32)
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, block), num_stages=2):
            T.copy(A[by * block, k * block], a)
            T.copy(B[k * block, bx * block], b)
            T.gemm(a, b, c)
        for i, j in T.Parallel(block, block):
            c[i, j] = T.max(c[i, j], 0)
        T.copy(c, C[by * block, bx * block])
    return C


def scaled(n: int, factor: float = 2.0):
    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 16)) as b:
            for i in T.Parallel(16):
                Y[b * 16 + i] = X[b * 16 + i] * factor

    return main


def test_eager_call_reads_dimensions_off_the_tensors() -> None:
    for m, n, k in ((64, 32, 48), (50, 70, 33)):
        a, b = torch.randn(m, k), torch.randn(k, n)
        c = matmul_relu(a, b)
        assert isinstance(c, torch.Tensor)
        torch.testing.assert_close(c, torch.relu(a @ b), rtol=1e-4, atol=1e-4)
    assert matmul_relu.compile(M=64, N=32, K=48) is matmul_relu.compile(M=64, N=32, K=48)


def test_eager_numpy_in_numpy_out() -> None:
    a = np.random.default_rng(0).standard_normal((40, 24), dtype=np.float32)
    c = matmul_relu(a, a.T.copy())
    assert isinstance(c, np.ndarray)
    np.testing.assert_allclose(c, np.maximum(a @ a.T, 0), rtol=1e-4, atol=1e-4)


def test_eager_tensors_that_disagree() -> None:
    with pytest.raises(ArgumentError, match="K = 48 on axis 0, as in the tensors before it"):
        matmul_relu(torch.zeros(64, 48), torch.zeros(32, 32))
    with pytest.raises(ArgumentError, match=r"2 axes \(M, K\)"):
        matmul_relu(torch.zeros(64), torch.zeros(32, 32))
    with pytest.raises(ArgumentError, match="`B`: expected a tensor, found nothing"):
        matmul_relu(torch.zeros(64, 32))
    with pytest.raises(TypeMismatch, match=r"\.compile\(K=\.\.\.\)"):
        matmul_relu.compile(M=64, N=32)


def test_too_many_arguments() -> None:
    """Python's own words said neither whose arguments they were nor what it takes."""
    a = torch.zeros(64, 48)
    with pytest.raises(TypeMismatch, match=r"arguments of matmul_relu \(A, B, .*#9\n.*too many"):
        matmul_relu(*[a] * 9)


def test_keywords_that_an_eager_function_does_not_know() -> None:
    """Once ignored: `compile(..., target="h100")` made a kernel for the CPU."""
    a, b = torch.zeros(64, 48), torch.zeros(48, 32)
    with pytest.raises(TypeMismatch, match=r"TC202.*A, B, .*M, N, K\), found block_Q"):
        matmul_relu(a, b, block_Q=64)
    with pytest.raises(TypeMismatch, match=r"found target\n.*@tilelang\.jit\(target=\.\.\."):
        matmul_relu.compile(M=64, N=32, K=48, target="h100")
    assert matmul_relu(a, b, M=64, micro_m=4).shape == (64, 32)


def test_what_is_no_tensor_is_named() -> None:
    with pytest.raises(ScopeError, match=r"`A` is .*found list\n(.*\n)+.*give the call a tensor"):
        matmul_relu([1.0], torch.zeros(48, 32))


def test_eager_dtype_of_a_call_is_checked() -> None:
    with pytest.raises(ArgumentError, match="float32"):
        matmul_relu(torch.zeros(64, 48, dtype=torch.float16), torch.zeros(48, 32))


def test_eager_with_tensors_in_the_signature_and_in_place_output() -> None:
    @tilelang.jit
    def add_one(A: T.Tensor[[8, 16], T.float32], B: T.Tensor[[8, 16], T.float32]):
        with T.Kernel(8) as b:
            for j in T.Parallel(16):
                B[b, j] = A[b, j] + 1.0

    a, b = torch.randn(8, 16), torch.zeros(8, 16)
    assert add_one(a, b) is None
    torch.testing.assert_close(b, a + 1.0)


def test_eager_program_errors() -> None:
    @tilelang.jit
    def no_annotation(A, B):
        A: T.Tensor[[8], T.float32]
        with T.Kernel(1):
            T.clear(A)

    with pytest.raises(ScopeError, match="`B` has no tensor annotation"):
        no_annotation.compile()

    @tilelang.jit
    def lost_output(A):
        A: T.Tensor[[8], T.float32]
        C = T.empty([8], "float32")
        with T.Kernel(1):
            T.copy(A, C)

    with pytest.raises(TypeMismatch, match="`C` not returned"):
        lost_output.compile()

    @tilelang.jit
    def unused_constant(A):
        M, N = T.const("M N")
        A: T.Tensor[[M], T.float32]
        with T.Kernel(1):
            T.fill(A, N)

    with pytest.raises(TypeMismatch, match="no tensor with axis N"):
        unused_constant(torch.zeros(8))


def test_lazy_call_returns_a_kernel_and_keeps_it() -> None:
    lazy = tilelang.jit(scaled, out_idx=[-1])
    kernel = lazy(40)
    x = torch.randn(40)
    torch.testing.assert_close(kernel(x), x * 2)
    assert lazy(40) is kernel
    assert lazy(40, factor=3.0) is not kernel
    torch.testing.assert_close(lazy(40, 3.0)(x), x * 3)
    assert "func main(X: float32[40], Y: float32[40])" in lazy.get_kernel_source(40)


def test_a_decorated_program_is_its_kernel() -> None:
    program = tilelang.jit(out_idx=-1)(scaled(40))
    x = torch.randn(40)
    torch.testing.assert_close(program(x), x * 2)
    assert program() is program.compile()
    assert program.prim_func is program.compile().prim_func
    assert program.get_profiler().do_bench() > 0
    assert not hasattr(program, "no_such_name")


def test_a_decorated_program_writes_to_what_it_is_given() -> None:
    x, y = torch.randn(40), torch.zeros(40)
    tilelang.jit(scaled(40))(x, y)
    torch.testing.assert_close(y, x * 2)


def test_the_source_of_a_kernel_is_printed_or_written(tmp_path, capsys) -> None:
    kernel = tilelang.compile(scaled(40), out_idx=-1)
    kernel.show_source()
    assert capsys.readouterr().out == kernel.kernel_source + "\n"
    kernel.print_source_code(file=str(tmp_path / "made" / "kernel.txt"))
    assert (tmp_path / "made" / "kernel.txt").read_text() == kernel.get_kernel_source()
    with pytest.raises(TypeMismatch, match=r"\"kernel\" \(no host code is generated.*'both'"):
        kernel.show_source("both")


def test_disable_cache_builds_anew() -> None:
    lazy = tilelang.jit(scaled, out_idx=-1)
    first = lazy(24)
    tilelang.disable_cache()
    try:
        assert lazy(24) is not first
    finally:
        tilelang.enable_cache()


def test_compile_keeps_the_callers_out_idx() -> None:
    out_idx = [-1]
    kernel = tilelang.compile(scaled(20), out_idx=out_idx, target="llvm")
    assert out_idx == [-1]
    assert kernel.out_idx == [-1]
    assert kernel.output_positions == (1,)
    x, y = torch.randn(20), torch.zeros(20)
    kernel(x, y)  # all parameters: written in place
    torch.testing.assert_close(y, x * 2)


def test_jit_of_a_program() -> None:
    @tilelang.jit(out_idx=-1)
    @T.prim_func
    def count(Out: T.Tensor((4,), T.int32)):
        with T.Kernel(4) as b:
            Out[b] = b * 3

    assert count()().tolist() == [0, 3, 6, 9]


def test_wrong_uses_of_compile() -> None:
    with pytest.raises(TypeMismatch, match=r"a program made by @T\.prim_func"):
        tilelang.compile(scaled)
    with pytest.raises(ArgumentError, match="out_idx"):
        tilelang.compile(scaled(20), out_idx=[2])
    with pytest.raises(UnknownTarget, match="cuda"):
        tilelang.compile(scaled(20), target="opencl")
    with pytest.raises(TypeMismatch, match="colour"):
        tilelang.compile(scaled(20), colour="red")
    with pytest.raises(ArgumentError, match=r"1 tensors \(X\)"):
        tilelang.compile(scaled(20), out_idx=[1])()
    with pytest.raises(TypeMismatch, match=r"`nothing` to return a program"):
        tilelang.jit(nothing)(3)


def nothing(n: int) -> int:
    return n


def test_options_of_tilelang_are_accepted() -> None:
    key = tilelang.PassConfigKey.TL_ENABLE_FAST_MATH
    tilelang.compile(
        scaled(20), pass_configs={key: True}, execution_backend="cython", compile_flags=["-O3"]
    )
    with pytest.warns(UserWarning, match="tl.no_such_key"):
        tilelang.compile(scaled(20), pass_configs={"tl.no_such_key": True})


def test_lower_gives_every_stage_and_a_text() -> None:
    stages = tilelang.lower(scaled(8))
    assert next(iter(stages)) == "source"
    assert "main" in stages.kernel_source


@pytest.mark.parametrize(
    ("target", "word"),
    [({"kind": "cuda", "arch": "sm_90a"}, "__global__"), ("gfx942", "s_endpgm")],
)
def test_lower_for_a_gpu_ends_in_its_text(target: object, word: str) -> None:
    assert word in tilelang.lower(scaled(8), target=target).kernel_source


def test_profiler() -> None:
    kernel = tilelang.compile(scaled(64), out_idx=[1])
    profiler = kernel.get_profiler(tensor_supply_type=tilelang.TensorSupplyType.Integer)
    assert profiler.do_bench(warmup=1, rep=2) > 0
    assert kernel.latency is not None
    low, high = profiler.do_bench(n_warmup=1, n_repeat=5, quantiles=[0.1, 0.9])
    assert 0 < low <= high
    profiler.assert_allclose(lambda x: x * 2)
    profiler.assert_consistent(repeat=2)
    with pytest.raises(AssertionError, match="elements differ"):
        profiler.assert_allclose(lambda x: x * 2.5)
    assert tuple(kernel.run_once().shape) == (64,)
    assert [tuple(t.shape) for t in profiler._get_inputs()] == [(64,)]
    assert len(profiler._get_inputs(with_output=True)) == 2


def test_the_package_is_lazy_and_jit_stays_a_decorator() -> None:
    code = (
        "import sys, tilecore as tilelang; import tilecore.language as T;"
        "assert not {'tvm', 'torch', 'tilecore.compiler'} & set(sys.modules), 'loaded too early';"
        "tilelang.compile; assert callable(tilelang.jit);"
        "assert tilelang.jit(out_idx=-1)(print) is not None"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=120)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["quickstart.py", "quickstart_lazy.py"])
def test_examples_run(name: str, capsys: pytest.CaptureFixture) -> None:
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    assert "matches PyTorch" in capsys.readouterr().out


def test_a_kernel_made_from_a_program() -> None:
    @T.prim_func
    def double(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i in T.Parallel(8):
                B[i] = A[i] * 2

    kernel = tilelang.JITKernel(double, out_idx=[1], target="llvm")
    a = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(kernel(a), a * 2)


def test_simplified_programs_lose_parameters_that_they_never_touch() -> None:
    from tilecore.transform import simplify_prim_func

    @simplify_prim_func
    def program(with_bias):
        @T.prim_func
        def main(A: T.Tensor((8,), "float32"), Bias: T.Tensor((8,), "float32"),
                 B: T.Tensor((8,), "float32")):  # fmt: skip
            with T.Kernel(1):
                for i in T.Parallel(8):
                    B[i] = A[i] + Bias[i] if with_bias else A[i]

        return main

    a, bias, b = (np.arange(8, dtype=np.float32) * k for k in (1, 3, 0))
    tilelang.compile(program(False), target="llvm")(a, b)
    np.testing.assert_array_equal(b, a)
    tilelang.compile(program(True), target="llvm")(a, bias, b)
    np.testing.assert_array_equal(b, a + bias)
