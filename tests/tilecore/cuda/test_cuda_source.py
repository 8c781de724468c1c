"""T.CUDASourceCodeKernel: kernels that a program gives as CUDA C++."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import tilecore as tilelang
import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tilecore import compiler, graph
from tilecore.errors import (
    CompileFailed,
    EmulationError,
    InvalidConfig,
    InvalidDocument,
    ScopeError,
    ShapeMismatch,
    SourceUnavailable,
    TileError,
    TypeMismatch,
    UnsupportedOnTarget,
)
from tilecore.interpreter import run
from tilecore.ir.cuda_source import kernels_of
from tilecore.ir.document.writer import write
from tilecore.ir.printer import program_digest

RNG = np.random.default_rng(20261125)
SCALE = """
#include <stdint.h>
#include <cuda_runtime.h>
// __global__ void not_this(int a) {}
static __device__ __forceinline__ float twice(float x) { return 2.f * x; }
extern "C" __global__ void __launch_bounds__(128) scale(const float* __restrict__ A, float* B,
                                                        int32_t n, int32_t width) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n * width)
    B[i] = twice(A[i]);
}
"""
# Reverses the 128 elements of each block; "tile" and the rest lie in shared memory.
REVERSE = """
extern "C" __global__ void main_kernel(const float* A, float* B) {
  __shared__ float tile[2][64], unused[3];
  __shared__ int most;
  int t = threadIdx.x;
  if (t == 0) most = LAST;
  tile[t / 64][t % 64] = A[blockIdx.x * 128 + t];
  __syncthreads();
  B[blockIdx.x * 128 + t] = tile[(most - t) / 64][(most - t) % 64];
}
"""


def scale(source=SCALE, entry="scale", **options):
    n, width = T.dynamic("n"), T.dynamic("width")

    @T.prim_func
    def main(B: T.Tensor((n, width), "float32"), A: T.Tensor((n, width), "float32")):
        T.CUDASourceCodeKernel(
            T.ceildiv(n * width, 128), threads=128, source_code_or_path=source, entry_name=entry,
            **options,
        )  # fmt: skip

    return main


def pair(source, entry="k", *, blocks=1, **options):
    """A program of two tensors of 256 elements whose kernel takes (A, B)."""

    @T.prim_func
    def main(A: T.Tensor((256,), "float32"), B: T.Tensor((256,), "float32")):
        T.CUDASourceCodeKernel(blocks, source_code_or_path=source, entry_name=entry, **options)

    return main


def body(text, parameters="const float* A, float* B", name="k"):
    return f'extern "C" __global__ void {name}({parameters}) {{\n{text}\n}}\n'


COPY = body("  int i = blockIdx.x * blockDim.x + threadIdx.x;\n  B[i] = A[i];")


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_a_source_gets_tensors_and_sizes_by_name(target):
    a = RNG.standard_normal((5, 61)).astype(np.float32)
    b = np.zeros_like(a)
    run_emulated(scale(), target, [b, a])
    assert (b == 2 * a).all()


def test_it_is_compiled_and_called_like_other_kernels():
    kernel = tilelang.compile(scale(), out_idx=[0], target="h100")
    device = kernel.artifact.manifest.device
    assert [e.name for e in device.entries] == ["scale"]
    assert [a.name for a in device.entries[0].arguments] == ["A", "B", "n", "width"]
    assert "B[i] = twice(A[i]);" in kernel.get_kernel_source()
    assert kernel.get_host_source().startswith("scale<<<grid(")
    assert kernel.artifact.manifest.resources["registers"] > 0
    for rows in (3, 200):
        x = torch.randn(rows, 7)
        assert torch.equal(kernel.emulated()(x), 2 * x)


def test_shared_variables_and_macros_of_compile_flags():
    func = pair(REVERSE, "main_kernel", blocks=2)
    x = torch.randn(256)
    for flags in (["-O3", "-DLAST=127"], "-O3 -D LAST=127"):
        kernel = tilelang.compile(func, out_idx=[1], target="emulated sm_80", compile_flags=flags)
        assert torch.equal(kernel(x), x.reshape(2, 128).flip(1).reshape(-1))
    prelude = pair(REVERSE, "main_kernel", blocks=2, prelude="#define LAST 127")
    assert torch.equal(tilelang.compile(prelude, [1], "emulated sm_80")(x), kernel(x))
    with pytest.raises(CompileFailed, match="LAST"):
        tilelang.compile(func, target="sm_80")


def test_flags_for_fast_math_reach_the_compiler():
    func = pair(body("  B[threadIdx.x] = expf(A[threadIdx.x]);"))
    plain, fast = (
        compiler.compile(f, "sm_80").path / "kernel.cubin"
        for f in (func, replace(func, attrs={"tilelang_compile_flags": ("--use_fast_math",)}))
    )
    assert plain.read_bytes() != fast.read_bytes()


def test_launches_of_tiles_and_of_sources_run_in_order():
    """The name of the source's kernel is the one that generated kernels have by default."""

    @T.prim_func
    def main(A: T.Tensor((256,), "float32"), B: T.Tensor((256,), "float32")):
        with T.Kernel(2, threads=128) as bx:
            for i in T.Parallel(128):
                B[bx * 128 + i] = A[bx * 128 + i] + 1.0
        T.CUDASourceCodeKernel(
            2, threads=128, source_code_or_path=body(
                "  int i = blockIdx.x * 128 + threadIdx.x;\n  B[i] = B[i] * A[i];",
                name="main_kernel",
            ),
        )  # fmt: skip
        for _ in range(2):
            with T.Kernel(2, threads=128) as bx:
                for i in T.Parallel(128):
                    B[bx * 128 + i] = B[bx * 128 + i] - 3.0

    a = RNG.standard_normal(256).astype(np.float32)
    b = np.zeros_like(a)
    run_emulated(main, "sm_90a", [a, b])
    assert (b == (a + 1) * a - 3 - 3).all()
    entries = compiler.compile(main, "sm_90a").manifest.device.entries
    assert [e.name == "main_kernel" for e in entries] == [False, True, False, False]
    assert len({e.name for e in entries}) == 4


def test_one_source_may_hold_several_kernels_and_be_launched_in_a_loop():
    text = body("  B[threadIdx.x] = A[threadIdx.x];", name="first")
    text += body("  B[threadIdx.x] += 1;", name="second")

    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        T.CUDASourceCodeKernel(1, threads=64, source_code_or_path=text, entry_name="first")
        for _ in range(3):
            T.CUDASourceCodeKernel(1, threads=64, source_code_or_path=text, entry_name="second")

    a = RNG.standard_normal(64).astype(np.float32)
    b = np.zeros_like(a)
    run_emulated(main, "sm_80", [a, b])
    assert (b == (((a + 1) + 1) + 1)).all()
    artifact = compiler.compile(main, "sm_80")
    assert artifact.cuda_text.count("void second") == 1


def test_half_types_need_no_header():
    text = """extern "C" {
    __global__ void k(const __nv_bfloat16 *A, half B[]) {
      B[threadIdx.x] = __float2half(__bfloat162float(A[threadIdx.x]) * 4.0f);
    }
    }"""

    @tilelang.jit(out_idx=[1], target="emulated h200")
    def make():
        @T.prim_func
        def main(A: T.Tensor((32,), "bfloat16"), B: T.Tensor((32,), "float16")):
            T.CUDASourceCodeKernel(threads=32, source_code_or_path=text, entry_name=None)

        return main

    x = torch.randn(32, dtype=torch.bfloat16)
    assert torch.equal(make()(x), (x.float() * 4).half())


def test_a_file_is_read(tmp_path):
    path = tmp_path / "scale.cu"
    path.write_text(SCALE)
    by_path, by_text = scale(path), scale()
    assert program_digest(by_path) == program_digest(scale(str(path))) == program_digest(by_text)
    assert program_digest(scale(SCALE.replace("2.f", "3.f"))) != program_digest(by_text)
    with pytest.raises(SourceUnavailable, match="no such file"):
        scale(tmp_path / "other.cu")


EXTERN = 'extern "C" __global__ void '
REFUSED = {
    "another name": (COPY, {"entry": "main"}, "Available entries: k"),
    "no kernel": ("void k(float* A) {}\n", {}, "Available entries: none"),
    "only declared": (EXTERN + "k(const float* A, float* B);\n", {}, "Available entries: none"),
    "a mangled name": (COPY.replace('extern "C" ', ""), {}, 'no extern "C" before it'),
    "a tensor too few": (body("", "float* A"), {}, "expected 2 .*A (float32 tensor), B.*found 1"),
    "a size too many": (body("", "float* A, float* B, int n"), {}, "expected 2 .*found 3"),
    "a number for a tensor": (body("", "float* A, float B"), {}, "a pointer for `B`.*`float B`"),
    "a tensor map": (
        body("", "const __grid_constant__ CUtensorMap A, float* B"), {}, "a pointer for `A`",
    ),
    "dynamic shared memory": (
        body("extern __shared__ float x[];\nB[0] = x[0];"), {}, "without dynamic shared memory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_launched_is_refused_with_its_place(case):
    source, options, message = REFUSED[case]
    with pytest.raises((TypeMismatch, ShapeMismatch)) as caught:
        compiler.compile(pair(source, **options), "sm_80")
    text = str(caught.value)
    for part in message.split(".*"):
        assert part in text
    assert "test_cuda_source.py:" in text


@pytest.mark.parametrize(
    ("parameter", "message"),
    [("long long n", "32 bits for `n`"), ("float n", "32 bits for `n`"), ("int* n", "for `n`")],
)
def test_sizes_of_another_width_are_refused(parameter, message):
    """They would be read beyond what is passed."""
    source = SCALE.replace("int32_t n", parameter)
    with pytest.raises(TypeMismatch, match=message):
        compiler.compile(scale(source), "sm_80")


def test_types_that_are_not_known_are_left_to_the_compiler():
    aliased = "using pointer = float*;\n" + body("B[threadIdx.x] = A[1];", "pointer A, pointer B")
    b = np.zeros(256, np.float32)
    run_emulated(pair(aliased), "sm_80", [np.ones(256, np.float32), b])
    assert b[:128].all()


def test_limits_of_the_target_hold():
    with pytest.raises(InvalidConfig, match="at most 1024 threads"):
        compiler.compile(pair(COPY, threads=(64, 32)), "sm_80")
    with pytest.raises(UnsupportedOnTarget, match="sm_90 or later"):
        compiler.compile(pair(COPY, blocks=2, cluster_dims=2), "sm_80")
    clustered = compiler.compile(pair(COPY, blocks=2, cluster_dims=2), "h100")
    assert clustered.manifest.device.entries[0].cluster == (2, 1, 1)
    with pytest.raises(InvalidConfig, match="divisors of the grid"):
        compiler.compile(pair(COPY, blocks=3, cluster_dims=2), "h100")
    with pytest.raises(TypeMismatch, match="at least 1 thread"):
        pair(COPY, threads=0)
    with pytest.raises(ShapeMismatch, match="1 to 3 axes"):
        pair(COPY, threads=(1, 1, 1, 1))


@pytest.mark.parametrize("target", ["llvm", "gfx942"])
def test_other_targets_say_what_to_do(target):
    with pytest.raises(UnsupportedOnTarget) as caught:
        compiler.compile(scale(), target)
    text = str(caught.value)
    assert "TC302" in text
    assert "test_cuda_source.py:" in text
    assert 'target="emulated h100"' in text


def test_neither_the_oracle_nor_documents_nor_graphs_take_it():
    func = scale()
    with pytest.raises(UnsupportedOnTarget, match="NumPy"):
        run(func, np.zeros((1, 1), np.float32), np.zeros((1, 1), np.float32))
    with pytest.raises(InvalidDocument, match="can check"):
        write(func)
    with pytest.raises(TypeMismatch, match="whose work and traffic are known"):
        graph.build(func)


def test_it_is_no_statement_of_a_kernel():
    with pytest.raises(ScopeError, match="stands inside"):

        @T.prim_func
        def main(A: T.Tensor((8,), "float32")):
            with T.Kernel(1):
                T.CUDASourceCodeKernel(1, source_code_or_path=COPY, entry_name="k")


FAULTS = {
    "a race": (
        body("  __shared__ float x[128];\n  x[threadIdx.x] = A[threadIdx.x];\n"
             "  B[threadIdx.x] = x[127 - threadIdx.x];"), "race",
    ),
    "beyond the tensor": (body("  B[threadIdx.x + 256] = 1;"), "out of bounds"),
    "inline assembly": (
        body("  asm volatile(\"trap;\");"), "no emulation of `asm",
    ),
    "what is unknown": (body("  B[0] = tex1Dfetch<float>(0, 0);"), "tex1Dfetch"),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("case", FAULTS)
def test_the_emulator_finds_faults_of_sources_or_says_what_it_lacks(case):
    source, message = FAULTS[case]
    a = np.zeros(256, np.float32)
    with pytest.raises(EmulationError, match=message):
        run_emulated(pair(source), "sm_80", [a, a.copy()])


def test_tensors_behind_const_count_as_read():
    specs = compiler.compile(scale(), "sm_80").manifest.parameters
    assert {s.name: s.is_written for s in specs} == {"A": False, "B": True}
    kernel = tilelang.compile(pair(body("", "const float* A, float const *B")), target="sm_80")
    x = torch.zeros(256)
    kernel.emulated()(x, x)  # one tensor twice: neither is written
    with pytest.raises(TileError, match="share memory"):
        tilelang.compile(pair(body("")), target="sm_80").emulated()(x, x)


def test_a_kernel_that_the_preprocessor_hides_is_missed_after_compiling():
    hidden = f"#if 0\n{COPY}#endif\n"
    with pytest.raises(CompileFailed, match="expected kernels k, found none"):
        compiler.compile(pair(hidden), "sm_80")


def test_errors_of_the_compiler_have_lines_of_the_source():
    with pytest.raises(CompileFailed, match=r"cuda_source\.cu\(2\): error"):
        compiler.compile(pair(body("  B[0] = nothing_of_this_name;")), "sm_80")


def test_lower_names_its_kernels_as_tilelang_does():
    lowered = tilelang.lower(scale(), target="cuda")
    assert [f.name_hint for f in lowered.device_mod.functions] == ["scale"]
    assert "B[i] = twice(A[i]);" in lowered.kernel_source


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('extern "C" __global__ void __launch_bounds__(F(2), 1) k(int a);', []),
        ('extern "C"\n__global__ void\nk(void)\n{ }', [("k", 0, True)]),
        ('__global__ __launch_bounds__(64) void k(pair<int, 3> a, int* b) {}', [("k", 2, False)]),
        ('/* __global__ void a() {} */ extern "C" {\n__global__ static void b() { "}"; }\n}',
         [("b", 0, True)]),
        ('extern "C" { int f(); } template <int N> __global__ void k(float (&x)[N]) {}',
         [("k", 1, False)]),
    ],
)  # fmt: skip
def test_kernels_are_found_by_their_form(source, expected):
    found = [(k.name, len(k.parameters), k.is_extern_c) for k in kernels_of(source)]
    assert found == expected
