"""Machine code for AMD GPUs: instructions, registers, spills; artifacts; what there is not."""

import re

import pytest

import tilecore
import tilecore.language as T
from tests.tilecore.cuda.tile_programs import attention, gemm
from tilecore.amd_compiler import RELOCATABLE, UNTRIED, lower_amd
from tilecore.amd_target import AmdTarget
from tilecore.artifact import ArtifactStore
from tilecore.codegen import rocm
from tilecore.codegen.rocm import find_linker, link
from tilecore.compiler import compile
from tilecore.errors import InvalidConfig, ToolchainMissing, UnsupportedOnTarget
from tilecore.show import stage_texts
from tilecore.target import gpu_programs_on_cpu, parse_target

pytestmark = pytest.mark.few(1)  # a case takes long


def usage(func, target):
    *_, code = lower_amd(func, parse_target(target))
    (found,) = code.kernels.values()
    return found, code


def assert_lean(found, target):
    assert found.spills == found.scratch_bytes == 0
    assert not any(op.startswith(("scratch_", "flat_", "buffer_")) for op in found.opcodes)
    assert 0 < found.registers <= 256  # two wavefronts and more on each SIMD
    assert parse_target(target).occupancy(256, found.registers, found.shared_bytes) >= 1


@pytest.mark.parametrize(
    ("target", "dtype", "opcode"),
    [
        ("gfx942", "float16", "v_mfma_f32_16x16x16_f16"),
        ("gfx90a", "float16", "v_mfma_f32_16x16x16f16"),
        ("gfx942", "bfloat16", "v_mfma_f32_16x16x16_bf16"),
        ("gfx90a", "bfloat16", "v_mfma_f32_16x16x16bf16_1k"),
        ("gfx942", "int8", "v_mfma_i32_16x16x32_i8"),
        ("gfx90a", "int8", "v_mfma_i32_16x16x16i8"),
        ("gfx942", "float32", "v_mfma_f32_16x16x4_f32"),
        ("gfx950", "float16", "v_mfma_f32_16x16x32_f16"),
        ("gfx950", "bfloat16", "v_mfma_f32_16x16x32_bf16"),
        ("gfx950", "float32", "v_mfma_f32_16x16x4_f32"),
    ],
)
def test_products_use_matrix_instructions_and_wide_accesses(target, dtype, opcode):
    accum = "int32" if dtype == "int8" else "float32"
    func = gemm(1024, 1024, 1024, (128, 128, 32), 2, dtype, accum, accum, (False, True), 256)
    found, code = usage(func, target)
    assert_lean(found, target)
    assert found.opcodes[opcode] > 0
    for wide in ("ds_read_b128", "ds_write_b128", "global_load_dwordx4", "s_barrier"):
        assert found.opcodes[wide] > 0, wide
    assert code.relocatable.startswith(b"\x7fELF")


@pytest.mark.parametrize(
    ("target", "dtype"),
    [("gfx942", "float8_e4m3fn"), ("gfx90a", "float8_e4m3fnuz"), ("gfx90a", "float8_e5m2")],
)
def test_eight_bits_become_bfloat16_in_few_instructions(target, dtype):
    """As recommender/gpu/products.py has it, of each element that a lane reads."""

    def vector_instructions(dtype):
        func = gemm(1024, 1024, 1024, (128, 128, 64), 2, dtype, "float32", "float32", (False, True),
                    256)  # fmt: skip
        found, _ = usage(func, target)
        assert_lean(found, target)
        return sum(n for name, n in found.opcodes.items() if re.match("v_(?!mfma)", name))

    elements = (64 + 64) * 64 / 64
    each = (vector_instructions(dtype) - vector_instructions("bfloat16")) / elements
    assert 5 <= each <= 8


def test_loads_of_the_next_tiles_begin_before_the_products_and_are_waited_for_after():
    func = gemm(1024, 1024, 1024, (128, 128, 32), 2, "float16", "float32", "float32", (False, True))
    _, code = usage(func, "gfx942")
    lines = code.assembly.splitlines()
    loop = lines[next(i for i, t in enumerate(lines) if "s_barrier" in t) :]
    loop = loop[: next(i for i, t in enumerate(loop) if "s_cbranch" in t)]

    def places(opcode):
        return [i for i, t in enumerate(loop) if opcode in t]

    products = places("v_mfma")
    assert products
    assert max(places("global_load_dwordx4")) < min(products)
    assert max(products) < min(places("ds_write_b128"))
    assert len(places("s_barrier")) == 1


@pytest.mark.parametrize("trans", [(False, False), (True, False), (True, True)])
def test_operands_whose_k_is_the_first_axis_are_read_in_rows(trans):
    func = gemm(512, 512, 512, (128, 128, 32), 2, "float16", "float32", "float32", trans, 256)
    found, _ = usage(func, "gfx90a")
    assert_lean(found, "gfx90a")
    assert found.opcodes["ds_read_u16"] == 0


@pytest.mark.parametrize("target", ["gfx90a", "gfx942"])
def test_attention_has_no_spills(target):
    func = attention(1, 4096, 8, 128, (128, 64), 2, 256, "float16", True)
    found, _ = usage(func, target)
    assert_lean(found, target)
    assert found.opcodes["ds_bpermute_b32"] > 0
    assert found.opcodes["v_exp_f32_e32"] > 0


def test_targets_have_names_and_limits():
    assert parse_target("rocm").arch == parse_target("hip").arch == "gfx942"
    assert parse_target("rocm -mcpu=gfx90a").arch == "gfx90a"
    assert parse_target("AMD Instinct MI300X").multiprocessors == 304
    mi250 = parse_target("mi250")
    assert isinstance(mi250, AmdTarget)
    assert (mi250.kind, mi250.arch, mi250.threads_per_warp) == ("rocm", "gfx90a", 64)
    assert mi250.occupancy(256, 128, 16 << 10) == 4
    assert mi250.occupancy(256, 512, 0) == 1
    assert mi250.occupancy(64, 64, (64 << 10) // 7) == 6  # it is handed out in 512 bytes
    assert mi250.occupancy(256, 64, 65 << 10) == 0
    with gpu_programs_on_cpu():
        assert parse_target("hip").kind == "llvm"


def test_an_artifact_says_what_it_holds(tmp_path):
    func = gemm(256, 256, 256, (64, 64, 32), 2, "float16", "float16")
    artifact = compile(func, "mi300x", store=ArtifactStore(tmp_path))
    manifest = artifact.manifest
    assert (manifest.target, manifest.isa) == ("rocm", "mi300x")
    assert UNTRIED in manifest.notes
    has_linker = find_linker() is not None
    assert artifact.library.name == ("kernel.hsaco" if has_linker else "kernel.o")
    assert (RELOCATABLE in manifest.notes) is not has_linker
    assert artifact.library.read_bytes().startswith(b"\x7fELF")
    assert "v_mfma_f32_16x16x16_f16" in artifact.cuda_text
    assert manifest.resources["spill_bytes"] == 0
    assert manifest.device.entries[0].grid == (4, 4, 1)
    assert manifest.device.entries[0].shared_bytes == manifest.resources["shared_bytes"]


def test_a_loadable_object_needs_a_linker(monkeypatch):
    monkeypatch.setattr(rocm, "find_linker", lambda: None)
    with pytest.raises(ToolchainMissing, match=r"ld\.lld"):
        link(b"")


def test_stages_are_shown():
    func = gemm(64, 64, 64, (64, 64, 32), 2, "float16", "float16")
    texts = stage_texts(func, parse_target("gfx90a"))
    assert "amdgpu_kernel" in texts["llvm"]
    assert "mfma.m16n16k16" in texts["inference"]
    assert "s_endpgm" in texts["asm"]


def test_too_much_shared_memory_names_the_limit():
    func = gemm(1024, 1024, 1024, (256, 256, 128), 2, "float16", "float16", threads=256)
    with pytest.raises(InvalidConfig, match="at most 65536 B in a block of gfx942"):
        lower_amd(func, parse_target("gfx942"))


def test_functions_of_the_device_library_are_named():
    @T.prim_func
    def main(X: T.Tensor((64,), "float64"), Y: T.Tensor((64,), "float64")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                Y[i] = T.sin(X[i])

    with pytest.raises(UnsupportedOnTarget, match=r"`sin` on target gfx942.*device library"):
        lower_amd(main, parse_target("gfx942"))


def roles(first):
    @T.prim_func
    def main(X: T.Tensor((128, 64), "float32"), Y: T.Tensor((128, 64), "float32")):
        with T.Kernel(1, threads=128):
            t = T.get_thread_binding()
            tile = T.alloc_shared((128, 64), "float32")
            if t < first:
                T.copy(X, tile)
            T.sync_threads()
            if t >= first:
                T.copy(tile, Y)

    return main


def test_roles_are_whole_wavefronts():
    with pytest.raises(UnsupportedOnTarget, match="whole warps of 64 threads"):
        lower_amd(roles(32), parse_target("gfx942"))
    found, _ = usage(roles(64), "gfx942")
    assert found.opcodes["s_barrier"] == 1


def test_barriers_in_shared_memory_are_refused():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            done = T.alloc_barrier(64)
            T.mbarrier_arrive(done[0])
            T.mbarrier_wait_parity(done[0], 0)
            X[T.get_thread_binding()] = 1.0

    with pytest.raises(UnsupportedOnTarget, match=r"barrier.*gfx942|gfx942.*barrier"):
        tilecore.compile(main, target="gfx942")
