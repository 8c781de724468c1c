"""What AMD publishes against generator and emulator, as literal values that neither computes.

Sources: AMD's matrix instruction calculator (2ef9189): `-a cdna3 -i v_mfma_f32_16x16x16_f16
--matrix-entry -A --register 0 --lane 37` and its kin, which also say that all forms here have one
block; LLVM's guide of the AMDGPU backend (metadata of kernels, flags of objects); MIOpen, "MI200
MFMA behavior specifics"; HIP, hipModuleLaunchKernel.
"""

import re

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tests.tilecore.cuda.text_kernels import Kernel, pointer, source
from tests.tilecore.cuda.tile_programs import gemm
from tests.tilecore.rocm.llvm_on_cpu import run_text
from tilecore.amd_compiler import FLUSHES, lower_amd
from tilecore.artifact import ArtifactStore
from tilecore.codegen.amdgcn.library import Call, resolve
from tilecore.codegen.amdgcn.values import Value
from tilecore.compiler import compile
from tilecore.emulator import LATE, build
from tilecore.errors import UnsupportedOnTarget
from tilecore.inference.gpu.products.mfma import mfma_step
from tilecore.ir.dtype import DType
from tilecore.lowering.cuda.instructions import wave
from tilecore.target import parse_target

# Target, type, K of the instruction, lane -> row (of A; column of B) and K of what its registers
# hold from the lowest bits on; (row, column) of its four registers of D.
FRAGMENTS = [
    ("gfx942", "float16", 16, 37, 5, [8, 9, 10, 11], [(8, 5), (9, 5), (10, 5), (11, 5)]),
    ("gfx90a", "float16", 16, 62, 14, [12, 13, 14, 15], [(12, 14), (13, 14), (14, 14), (15, 14)]),
    ("gfx90a", "bfloat16", 16, 37, 5, [8, 9, 10, 11], [(8, 5), (9, 5), (10, 5), (11, 5)]),
    ("gfx942", "float32", 4, 37, 5, [2], [(8, 5), (9, 5), (10, 5), (11, 5)]),
    ("gfx90a", "float32", 4, 19, 3, [1], [(4, 3), (5, 3), (6, 3), (7, 3)]),
    ("gfx90a", "int8", 16, 37, 5, [8, 9, 10, 11], [(8, 5), (9, 5), (10, 5), (11, 5)]),
    ("gfx942", "int8", 32, 37, 5, [16, 17, 18, 19, 20, 21, 22, 23],
     [(8, 5), (9, 5), (10, 5), (11, 5)]),
    ("gfx90a", "float64", 4, 37, 5, [2], [(2, 5), (6, 5), (10, 5), (14, 5)]),
    ("gfx942", "float64", 4, 63, 15, [3], [(3, 15), (7, 15), (11, 15), (15, 15)]),
    *(("gfx942", types, 32, 37, 5, [16, 17, 18, 19, 20, 21, 22, 23],
       [(8, 5), (9, 5), (10, 5), (11, 5)])
      for types in ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3fnuz float8_e5m2fnuz",
                    "float8_e5m2fnuz float8_e4m3fnuz")),
]  # fmt: skip
ONE = {"float16": 0x3C00, "bfloat16": 0x3F80, "float32": 0x3F800000, "int8": 1,
       "float64": 0x3FF0000000000000, "float8_e4m3fnuz": 0x40, "float8_e5m2fnuz": 0x40}  # fmt: skip
BITS = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}
SUMS = {"int8": "int32", "float64": "float64"}  # of other types: float32
# Target, types of A and B, the calculator's name of the instruction.
OPCODES = [
    ("gfx942", "float8_e4m3fnuz", "float8_e4m3fnuz", "v_mfma_f32_16x16x32_fp8_fp8"),
    ("gfx942", "float8_e5m2fnuz", "float8_e5m2fnuz", "v_mfma_f32_16x16x32_bf8_bf8"),
    # The instruction's first operand is our B, its second our A (inference/gpu/products/mfma.py).
    ("gfx942", "float8_e4m3fnuz", "float8_e5m2fnuz", "v_mfma_f32_16x16x32_bf8_fp8"),
    ("gfx942", "float8_e5m2fnuz", "float8_e4m3fnuz", "v_mfma_f32_16x16x32_fp8_bf8"),
    ("gfx942", "float8_e4m3fn", "float8_e4m3fn", "v_mfma_f32_16x16x16_bf16"),
    ("gfx950", "float8_e4m3fn", "float8_e4m3fn", "v_mfma_f32_16x16x32_fp8_fp8"),
    ("gfx950", "float8_e5m2", "float8_e4m3fn", "v_mfma_f32_16x16x32_fp8_bf8"),
    ("gfx950", "float16", "float16", "v_mfma_f32_16x16x32_f16"),
    ("gfx950", "int8", "int8", "v_mfma_i32_16x16x64_i8"),
    ("gfx942", "float8_e4m3fn", "float8_e4m3fnuz", "v_mfma_f32_16x16x16_bf16"),
    ("gfx90a", "float8_e4m3fnuz", "float8_e4m3fnuz", "v_mfma_f32_16x16x16bf16_1k"),
    ("gfx90a", "float64", "float64", "v_mfma_f64_16x16x4f64"),
    ("gfx942", "float64", "float64", "v_mfma_f64_16x16x4_f64"),
]
# Numbers of GPUs in the flags of an object, with "any" for XNACK (0x100) and SRAM ECC (0x400).
FLAGS = {"gfx90a": 0x53F, "gfx942": 0x54C, "gfx950": 0x54F}


@pytest.mark.few(1)
@pytest.mark.parametrize(("target", "dtype", "k", "lane", "row", "depths", "sums"), FRAGMENTS)
def test_the_fragments_of_mfma(target, dtype, k, lane, row, depths, sums):
    """A single 1 in A and a single 1 in B meet where K is the same."""
    left, right = dtype.split()[0], dtype.split()[-1]
    total = SUMS.get(dtype, "float32")
    assert mfma_step(left, right, total, parse_target(target)) == k
    each, first = len(depths), lane - row  # `first`: the lane with row 0 of the same K
    pairs = [(e, f, row, row) for e in range(each) for f in range(each)]
    pairs += [(0, 0, i, j) for i, j in sums]
    bits = BITS[DType(left).itemsize]
    x, y = (np.zeros((len(pairs), 64, each), bits) for _ in range(2))
    for number, (e, f, i, j) in enumerate(pairs):
        x[number, first + i, e] = ONE[left]
        y[number, first + j, f] = ONE[right]
    d = np.zeros((len(pairs), 64, 4), total)
    product = wave.mfma(k, left, right, total)
    body = f"""
      int t = blockIdx.x * 64 + threadIdx.x;
      const int size = {x[0, 0].nbytes};
      {product.name}(d + t * {d[0, 0].nbytes}, x + t * size, y + t * size);"""
    arguments = {"x": x.view("u1"), "y": y.view("u1"), "d": d.view("u1")}
    parameters = tuple(pointer(name, "unsigned char") for name in arguments)
    kernel = Kernel("k", body, parameters, threads=64, grid=len(pairs))
    build(source([kernel], [product], target)).run(arguments, LATE)
    for found, (e, f, i, j) in zip(d, pairs, strict=True):
        assert np.count_nonzero(found) == (depths[e] == depths[f])
        if (i, j) in sums and depths[e] == depths[f]:
            assert found[lane, sums.index((i, j))] == 1


def test_modifiers_of_matrix_instructions_are_zero():
    func = gemm(64, 64, 64, (64, 64, 32), 2, "float16", "float32", "float32", (False, True), 128)
    *_, text, code = lower_amd(func, parse_target("gfx942"))
    given = r"<4 x half> %x, <4 x half> %y, <4 x float> %c, i32 0, i32 0, i32 0"
    assert f"@llvm.amdgcn.mfma.f32.16x16x16f16({given})" in text.text
    products = [line for line in code.assembly.splitlines() if "v_mfma" in line]
    assert products
    assert not any(word in line for line in products for word in ("cbsz", "abid", "blgp"))


@pytest.mark.few(1)
@pytest.mark.parametrize(("target", "a", "b", "opcode"), OPCODES)
def test_the_opcode_of_element_types(target, a, b, opcode):
    total = SUMS.get(a, "float32")
    func = gemm(256, 256, 256, (64, 64, 64), 2, a, total, total, (False, True), 256, b=b)
    *_, code = lower_amd(func, parse_target(target))
    (used,) = code.kernels.values()
    assert {name for name in used.opcodes if name.startswith("v_mfma")} == {opcode}
    assert used.spills == used.scratch_bytes == 0


def products_of_subnormals(run, target):
    M = N = K = 64
    func = gemm(M, N, K, (64, 64, 32), 1, "float16", "float32", "float32", (False, True), 128)
    rng = np.random.default_rng(7)
    a = (rng.integers(1, 1024, (M, K)) * 2.0**-24).astype(np.float16)  # all subnormal
    a[::2] = np.float16(0.5)
    b = rng.integers(-8, 9, (N, K)).astype(np.float16)
    c = np.full((M, N), 7, np.float32)
    run(func, target, [a, b, c])
    return a.astype(np.float64), b.astype(np.float64), c


@pytest.mark.few(1)
@pytest.mark.parametrize("run", [run_emulated, run_text])
def test_gfx90a_takes_subnormal_float16_for_zero(run):
    a, b, c = products_of_subnormals(run, "gfx942")
    np.testing.assert_allclose(c, a @ b.T, rtol=1e-5, atol=1e-9)
    a, b, c = products_of_subnormals(run, "gfx90a")
    np.testing.assert_array_equal(c[1::2], 0)
    np.testing.assert_allclose(c[::2], a[::2] @ b.T, rtol=1e-5)


def test_an_artifact_tells_that_subnormals_are_zero(tmp_path):
    for target, dtype in (("gfx90a", "float16"), ("gfx942", "float16"), ("gfx90a", "int8")):
        accum = "int32" if dtype == "int8" else "float32"
        func = gemm(64, 64, 64, (64, 64, 32), 1, dtype, accum, accum, (False, True), 128)
        notes = compile(func, target, store=ArtifactStore(tmp_path)).manifest.notes
        assert (FLUSHES in notes) == (target == "gfx90a" and dtype == "float16")


def adds_one():
    N = T.dynamic("N")

    @T.prim_func
    def main(X: T.Tensor((N, 64), "float32"), Y: T.Tensor((N, 64), "float32")):
        with T.Kernel(T.ceildiv(N, 4), threads=256) as bx:
            for i, j in T.Parallel(4, 64):
                if bx * 4 + i < N:
                    Y[bx * 4 + i, j] = X[bx * 4 + i, j] + 1.0

    return main


@pytest.mark.parametrize("target", FLAGS)
def test_what_a_loader_reads(target):
    *_, text, code = lower_amd(adds_one(), parse_target(target))
    assert code.relocatable[7:9] == bytes([64, 2])  # ELFOSABI_AMDGPU_HSA, code object version 4
    assert int.from_bytes(code.relocatable[48:52], "little") == FLAGS[target]
    (entry,) = text.entries
    said = code.assembly[code.assembly.index("  - .agpr_count") :]
    sizes = [8 if a.kind == "tensor" else 4 for a in entry.arguments]
    offsets = np.cumsum([0, *sizes[:-1]]).tolist()
    assert [int(n) for n in re.findall(r"\.offset: +(\d+)", said)] == offsets
    assert [int(n) for n in re.findall(r"\.size: +(\d+)", said)] == sizes
    assert "hidden_" not in said
    for line in (f".name: {entry.name}", f".symbol: {entry.name}.kd", ".wavefront_size: 64",
                 ".max_flat_workgroup_size: 256", ".kernarg_segment_align: 8",
                 f".kernarg_segment_size: {sum(sizes)}"):  # fmt: skip
        assert line in re.sub(" +", " ", said)
    for mode in ("denorm_mode_32 3", "denorm_mode_16_64 3", "round_mode_32 0"):
        assert code.assembly.count(f".amdhsa_float_{mode}") == 1


def test_no_driver_is_asked_for_and_nothing_warned_of(capfd):
    lower_amd(adds_one(), parse_target("gfx942"))
    assert capfd.readouterr() == ("", "")


def test_grids_that_hip_does_not_launch_are_refused():
    def main(blocks):
        @T.prim_func
        def program(X: T.Tensor((64,), "float32")):
            with T.Kernel(blocks, threads=256):
                X[0] = 1.0

        return program

    lower_amd(main(2**24 - 1), parse_target("gfx942"))
    with pytest.raises(UnsupportedOnTarget, match="16777216 blocks of 256 threads along x"):
        lower_amd(main(2**24), parse_target("gfx942"))


def test_what_lanes_do_together_is_not_moved_into_branches():
    """LLVM wants `convergent` where an intrinsic is called that has it (clang gives it to all)."""

    @T.prim_func
    def main(X: T.Tensor((128,), "float32"), Y: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            t = T.get_thread_binding()
            T.sync_threads()
            Y[t] = T.shfl_xor(X[t], 16)

    *_, text, _ = lower_amd(main, parse_target("gfx942"))
    bodies = re.findall(r"^define [^\n]*{\n.*?^}", text.text, re.MULTILINE | re.DOTALL)
    together = [b for b in bodies if "amdgcn.s.barrier" in b or "bpermute" in b or "_kernel" in b]
    assert len(together) == 3
    assert all(" convergent " in b.splitlines()[0] for b in together)


def test_loads_reach_as_far_as_their_scope():
    for scope, wanted in (("sys", "%a0 acquire"), ("gpu", '%a0 syncscope("agent") acquire')):
        call = Call(f"tc_load_acquire_{scope}_int32", (Value("ptr", "%p", None, 1),), "int32", "")
        assert wanted in resolve(call)[1]


def last_block(order):
    """The block that counts last adds up what all blocks have left."""

    @T.prim_func
    def main(X: T.Tensor((4, 64), "float32"), P: T.Tensor((4,), "float32"),
             N: T.Tensor((1,), "int32"), Y: T.Tensor((1,), "float32")):  # fmt: skip
        with T.Kernel(4, threads=64) as bx:
            t = T.get_thread_binding()
            if t == 0:
                P[bx] = X[bx, 0]
                if T.atomic_add(N[0], 1, memory_order=order, return_prev=True) == 3:
                    Y[0] = P[0] + P[1] + P[2] + P[3]

    return main


def test_updates_have_the_order_that_was_asked_for():
    """LLVM's memory model of gfx942: L2 is written back before, L1 dropped behind."""
    found = {}
    for order in (None, "release", "acquire", "acq_rel"):
        *_, code = lower_amd(last_block(order), parse_target("gfx942"))
        (used,) = code.kernels.values()
        found[order] = bool(used.opcodes["buffer_wbl2"]), bool(used.opcodes["buffer_inv"])
    assert found == {None: (False, False), "release": (True, True), "acquire": (True, True),
                     "acq_rel": (True, True)}  # fmt: skip
    *_, text, _ = lower_amd(last_block("acq_rel"), parse_target("gfx942"))
    body = text.text[text.text.index("define amdgpu_kernel") :]
    calls = re.findall(r"@(tc_thread_fence_gpu|tc_atomic_add_int32)", body)
    assert calls == ["tc_thread_fence_gpu", "tc_atomic_add_int32", "tc_thread_fence_gpu"]


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "sm_80"])
def test_the_last_block_sees_what_the_others_left(target):
    x = np.arange(256, dtype=np.float32).reshape(4, 64)
    p, n, y = np.zeros(4, np.float32), np.zeros(1, np.int32), np.zeros(1, np.float32)
    run_emulated(last_block("acq_rel"), target, [x, p, n, y])
    assert y[0] == x[:, 0].sum()
