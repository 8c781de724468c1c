"""CUDA text to machine code: NVRTC, nvcc in its place, and what is said where they cannot."""

import shutil
from dataclasses import dataclass

import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered
from tests.tilecore.cuda.programs import gemm_sm90
from tests.tilecore.cuda.tile_programs import gemm
from tilecore.artifact import ArtifactStore
from tilecore.codegen.cubin import read_features
from tilecore.codegen.cuda import generate
from tilecore.codegen.nvrtc import choose_library, compile_cuda, load_nvrtc, parse_log
from tilecore.compiler import compile as compile_program
from tilecore.errors import CompileFailed, InvalidConfig, ToolchainMissing
from tilecore.gpu_target import capability
from tilecore.pass_config import PassConfigKey, lowering_config
from tilecore.target import parse_target

EMPTY = 'extern "C" __global__ void k() {}'


def knows(arch):
    library = load_nvrtc(arch)
    return library is not None and capability(arch) in library.architectures


COMPILERS = [
    pytest.param(
        "nvrtc", marks=pytest.mark.skipif(load_nvrtc() is None, reason="NVRTC is not installed")
    ),
    pytest.param(
        "nvcc", marks=pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is missing")
    ),
]


@pytest.mark.few(1)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_generated_text_compiles(compiler):
    source = generate(gemm_sm90(128, 128, 256), parse_target("h100"))
    cubin = compile_cuda(source.text, source.arch, compiler)
    (found,) = read_features(cubin.data, source.arch).values()
    assert found.registers == cubin.registers == 168
    assert cubin.spills == 0
    assert {"HGMMA", "UTMALDG"} <= found.opcodes.keys()


@pytest.mark.few(1)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_text_that_is_no_program(compiler):
    with pytest.raises(CompileFailed, match="nonsense"):
        compile_cuda('extern "C" __global__ void k() { nonsense; }', "sm_80", compiler)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize(("arch", "hint"), [("sm_50", r"install CUDA 12 "), ("sm_199", "12.8 or")])
def test_an_architecture_that_the_compiler_does_not_know(compiler, arch, hint):
    if compiler == "nvrtc" and knows(arch):
        pytest.skip(f"an older NVRTC here knows {arch}")
    with pytest.raises(CompileFailed, match=hint):
        compile_cuda(EMPTY, arch, compiler)


def test_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainMissing, match=r"NVRTC \(or nvcc\)(.|\n)*pip install"):
        compile_cuda(EMPTY, "sm_80", "nvcc")


def test_what_ptxas_says_about_several_kernels():
    log = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'one' for 'sm_80'
ptxas info    : Function properties for one
    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 16 bytes cumulative stack size
ptxas info    : Compiling entry function 'two' for 'sm_80'
ptxas info    : Function properties for two
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers"""
    found = parse_log(log)
    assert (found["one"].registers, found["one"].spill_store_bytes) == (255, 12)
    assert (found["one"].frame_bytes, found["one"].spill_load_bytes) == (16, 20)
    assert (found["two"].registers, found["two"].spill_store_bytes) == (32, 0)


@dataclass(frozen=True)
class Library:
    """As much of NVRTC as choosing one needs."""

    version: tuple[int, int]
    architectures: frozenset[int]


def test_an_older_compiler_is_taken_for_what_newer_ones_dropped():
    newer, older = (
        Library((13, 0), frozenset({75, 80, 90})),
        Library((12, 9), frozenset({70, 75, 80})),
    )
    chosen = [choose_library([newer, older], a) for a in ("sm_80", "sm_70", "sm_90a", "sm_50")]
    assert chosen == [newer, older, newer, newer]
    assert choose_library([newer, older], None) is newer
    assert choose_library([], "sm_70") is None


@pytest.mark.skipif(not knows("sm_70"), reason="no NVRTC here knows sm_70 (extra cuda-volta)")
@pytest.mark.parametrize("sums", ["float16", "float32"])
def test_products_of_volta_build(sums):
    func = gemm(512, 512, 512, (128, 128, 32), 2, "float16", "float16", sums)
    _, _, source = lowered(func, "v100")
    cubin = compile_cuda(source.text, source.arch)
    (features,) = read_features(cubin.data, source.arch).values()
    assert cubin.spills == 0
    assert features.opcodes["HMMA"] >= 256


def softmax_parts(n):
    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 128), threads=128) as b:
            for i in T.Parallel(128):
                Y[b * 128 + i] = T.exp2(X[b * 128 + i]) / (1 + X[b * 128 + i])

    return main


def test_fast_math_takes_approximate_functions(tmp_path):
    """TileLang's pass config reaches NVIDIA's compiler; tl.disable_fast_math has the last word."""
    key, no = PassConfigKey.TL_ENABLE_FAST_MATH, PassConfigKey.TL_DISABLE_FAST_MATH
    counts = []
    for configs in ({}, {key: True}, {key: True, no: True}):
        artifact = compile_program(
            softmax_parts(256), "h100", config=lowering_config(configs),
            store=ArtifactStore(tmp_path),
        )  # fmt: skip
        (features,) = read_features(artifact.library.read_bytes(), "sm_90a").values()
        counts.append(features.instructions)
        assert any("fast math" in n for n in artifact.manifest.notes) is (len(configs) == 1)
    assert counts[1] < counts[0] == counts[2]


def test_fast_math_is_yes_or_no():
    with pytest.raises(InvalidConfig, match=r"fast_math=3: expected True or False"):
        lowered(softmax_parts(256), "h100", {"fast_math": 3})
