"""Static features read from cubins agree with what the compiler and the program say."""

import time

import pytest

from tests.tilecore.cuda.emulated import lowered
from tests.tilecore.cuda.programs import gemm_sm80, gemm_sm90
from tests.tilecore.cuda.tile_programs import gemm
from tilecore.codegen.cubin import read_features
from tilecore.codegen.cuda import HEADER, generate
from tilecore.codegen.nvrtc import compile_cuda, load_nvrtc
from tilecore.errors import ArtifactError
from tilecore.target import parse_target

pytestmark = pytest.mark.skipif(load_nvrtc() is None, reason="NVRTC is not installed")


def _compiled(func, target):
    source = generate(func, parse_target(target))
    return compile_cuda(source.text, source.arch)


def test_a_product_for_sm80():
    cubin = _compiled(gemm_sm80(128, 128, 4096), "a100")
    (found,) = read_features(cubin.data, "sm_80").values()
    assert found.registers == cubin.registers
    assert found.local_accesses == cubin.spills == found.frame_bytes == 0
    # Two k-steps of 16: 2 x 2 x 2 products and 2 + 2 loads each, and a fetch of 4 chunks per stage.
    trips = 4096 // 32
    weights = found.weighted([trips] * len(found.loops))
    assert found.loops
    assert 0.9 * 32 / 2 * trips <= weights["HMMA"] <= 1.1 * 32 / 2 * trips + 64
    assert found.opcodes["LDGSTS"] == 4 * 3
    assert all(not name.startswith("0x") for name in found.opcodes)


def test_a_product_for_sm90():
    cubin = _compiled(gemm_sm90(256, 256, 8192), "h100")
    (found,) = read_features(cubin.data, "sm_90a").values()
    assert found.registers == cubin.registers == 168
    assert found.opcodes["HGMMA"]
    assert found.opcodes["UTMALDG"]
    assert found.opcodes["UTMASTG"]
    assert found.static_shared_bytes >= 2 * 2 * 8
    assert len(found.loops) == 2  # the producer's and the consumers'; none that only waits
    assert found.occupancy(parse_target("h100"), 384, 3 * 32768) == 1
    assert all(not name.startswith("0x") for name in found.opcodes)


def test_a_product_for_sm120():
    """The tensor memory accelerator feeds products of warps; some opcodes have new meanings."""
    func = gemm(512, 512, 512, (128, 128, 32), 2, "float16", "float16", "float32")
    _, _, source = lowered(func, "rtx5090")
    cubin = compile_cuda(source.text, source.arch)
    (found,) = read_features(cubin.data, source.arch).values()
    assert (found.registers, found.local_accesses, cubin.spills) == (cubin.registers, 0, 0)
    assert found.opcodes["HMMA"] and found.opcodes["LDSM"] and found.opcodes["UTMALDG"]  # noqa: PT018
    assert not found.opcodes.keys() & {"HFMA2", "CALL"}  # IADD, and no software for boxes
    assert len(found.loops) == 2  # the producer's and the consumers'
    assert all(not name.startswith("0x") for name in found.opcodes)


def test_spills_are_seen():
    body = "".join(f"float v{i} = x[{i}] * x[t + {i}];" for i in range(200))
    total = " + ".join(f"v{i} * x[t - {i}]" for i in range(200))
    text = (
        HEADER + 'extern "C" __global__ void __launch_bounds__(1024) k(float* x, int n) {'
        f"int t = threadIdx.x; {body} __syncthreads(); x[t] = 0; __syncthreads(); "
        f"x[t] = {total}; }}"
    )
    cubin = compile_cuda(text, "sm_80")
    found = read_features(cubin.data, "sm_80")["k"]
    assert found.registers == cubin.registers
    assert cubin.spills > 0
    assert found.local_accesses > 0
    assert found.frame_bytes == cubin.kernels["k"].frame_bytes > 0


def test_reading_takes_less_than_a_millisecond():
    cubin = _compiled(gemm_sm90(256, 256, 1024), "h100")
    read_features(cubin.data, "sm_90a")
    begin = time.thread_time()
    for _ in range(20):
        read_features(cubin.data, "sm_90a")
    assert (time.thread_time() - begin) / 20 < 1e-3


def test_what_is_no_cubin_is_an_error():
    with pytest.raises(ArtifactError, match="no ELF file"):
        read_features(b"not a cubin at all, but long enough to be read" * 4, "sm_80")


def test_occupancy_by_each_limit():
    a100, h100 = parse_target("a100"), parse_target("h100")
    assert a100.occupancy(128, 32, 0) == 16  # warps
    assert a100.occupancy(32, 16, 0) == 32  # blocks
    assert a100.occupancy(128, 128, 0) == 4  # registers
    assert a100.occupancy(128, 32, 48 << 10) == 3  # shared memory
    assert h100.occupancy(384, 168, 196608) == 1
    assert h100.occupancy(128, 32, 228 << 10) == 0
