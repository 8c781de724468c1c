"""Products on matrix units: types of operands and sums, on the emulator against float64."""

import ml_dtypes
import numpy as np
import pytest

import tilecore
import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tests.tilecore.cuda.test_tile_programs import NUMPY, random
from tests.tilecore.cuda.tile_programs import gemm
from tilecore.codegen.cubin import read_features
from tilecore.codegen.nvrtc import compile_cuda
from tilecore.emulator import ALL_SCHEDULES, LATE
from tilecore.errors import InvalidConfig

pytestmark = pytest.mark.few(1)  # a case takes long

TRANSPOSES = [(False, False), (False, True), (True, False), (True, True)]


def multiply(func, target, a, b, out, trans=(False, False), schedules=(LATE,), knobs=None):
    """Return (C as the program computes it, in float64; its plan of the product)."""
    shape = (a.shape[1 if trans[0] else 0], b.shape[0 if trans[1] else 1])
    c = np.full(shape, 77, NUMPY.get(out, out))
    plan = run_emulated(func, target, [a, b, c], schedules, knobs=knobs)
    (launch,) = plan.launches.values()
    (product,) = launch.gemms.values()
    return c.astype(np.float64), product


def operands(rng, size, dtype, trans):
    M, N, K = size
    a = random(rng, (K, M) if trans[0] else (M, K), dtype)
    return a, random(rng, (N, K) if trans[1] else (K, N), dtype)


def matrices(a, b, trans):
    """Return op(A) and op(B) in float64."""
    left, right = a.astype(np.float64), b.astype(np.float64)
    return left.T if trans[0] else left, right.T if trans[1] else right


# --- sums in float16 -----------------------------------------------------------------------------


@pytest.mark.covering
@pytest.mark.parametrize("trans", TRANSPOSES[1:3])
@pytest.mark.parametrize(
    ("target", "how"), [("sm_75", "m16n8k8"), ("sm_80", "m16n8k16"), ("h100", "wgmma.m64n64k16")]
)
def test_a_fragment_of_float16_is_summed_up_in_float16(target, how, trans):
    size = (72, 136, 96)
    func = gemm(*size, (64, 64, 32), 2, "float16", "float16", "float16", trans)
    a, b = operands(np.random.default_rng(0), size, "float16", trans)
    c, product = multiply(func, target, a, b, "float16", trans, ALL_SCHEDULES)
    assert product.sums == "float16"
    assert how in product.explain()
    left, right = matrices(a, b, trans)
    steps = size[2] // product.shape[2]  # each rounds the sum once
    bound = steps * 2.0**-11 * (np.abs(left) @ np.abs(right))
    assert np.all(np.abs(c - left @ right) <= bound)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("tile", "warps", "columns"),
    [((64, 64), (1, 2), 32), ((64, 128), (1, 2), 64), ((64, 192), (1, 1), 192)],
    ids=["within a panel", "between panels", "no cut but across panels"],
)
def test_warpgroups_side_by_side_cut_tiles_between_panels_or_within_one(tile, warps, columns):
    size = (64, tile[1], 96)
    func = gemm(*size, (*tile, 32), 2, "bfloat16", "float32", threads=256)
    a, b = operands(np.random.default_rng(4), size, "bfloat16", (False, False))
    c, product = multiply(func, "h100", a, b, "float32", schedules=ALL_SCHEDULES)
    assert (product.warps, product.shape[1]) == (warps, columns)
    left, right = matrices(a, b, (False, False))
    np.testing.assert_allclose(c, left @ right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", ["rtx4090", "h100", "rtx5090"])
def test_products_of_float8_are_summed_up_in_float16(target):
    size = (64, 64, 128)
    func = gemm(*size, (64, 64, 64), 2, "float8_e4m3fn", "float16", "float16", (False, True))
    a, b = operands(np.random.default_rng(1), size, "float8_e4m3fn", (False, True))
    c, product = multiply(func, target, a, b, "float16", (False, True))
    left, right = matrices(a, b, (False, True))
    assert product.kind == ("wgmma" if target == "h100" else "mma")
    assert np.all(np.abs(c - left @ right) <= 4 * 2.0**-11 * (np.abs(left) @ np.abs(right)))


@pytest.mark.few(1)
@pytest.mark.parametrize(("target", "opcode"), [("sm_80", "HMMA"), ("h100", "HGMMA")])
def test_sums_in_float16_take_half_the_registers(target, opcode):
    found = []
    for sums in ("float16", "float32"):
        func = gemm(512, 512, 512, (128, 128, 32), 2, "float16", "float16", sums)
        _, _, source = lowered(func, target)
        cubin = compile_cuda(source.text, source.arch)
        (features,) = read_features(cubin.data, source.arch).values()
        assert features.opcodes[opcode] > 0
        assert cubin.spills == 0
        assert "C75" not in cubin.log
        found.append(cubin.registers)
    assert found[0] <= found[1] - 48  # 64 registers less, some of which addresses take


# --- tf32 ----------------------------------------------------------------------------------------


def tf32(values, *, cut):
    """Return float32 numbers as tensor cores read them: cut, or rounded with ties away from 0."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits if cut else bits + 0x1000) & 0xFFFFE000).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize(
    ("target", "trans"),
    [*(("sm_80", t) for t in TRANSPOSES), *(("h100", t) for t in TRANSPOSES[:2])],
)
def test_float32_is_multiplied_as_tf32(target, trans):
    """Bounds that operands of 8 bits (bfloat16) break, in a range that float16 does not have."""
    size = (72, 80, 200)
    func = gemm(*size, (64, 64, 32), 2, "float32", "float32", trans=trans)
    a, b = operands(np.random.default_rng(2), size, "float32", trans)
    a *= np.float32(2.0**40)
    b *= np.float32(2.0**-60)
    c, product = multiply(func, target, a, b, "float32", trans, ALL_SCHEDULES)
    is_cut = target == "h100" and trans == (False, True)  # wgmma reads K-major tiles only
    assert product.kind == ("wgmma" if is_cut else "mma")
    left, right = matrices(a, b, trans)
    bound = np.abs(left) @ np.abs(right)
    each = 2.0**-10 if is_cut else 2.0**-11
    error = np.abs(c - left @ right)
    assert np.all(error <= 2.01 * each * bound)
    assert np.mean(error / bound) > 2.0**-24 * 16  # and it is not float32
    narrow = [x.astype(ml_dtypes.bfloat16).astype(np.float64) for x in (left, right)]
    assert np.mean(np.abs(narrow[0] @ narrow[1] - left @ right)) > 3 * np.mean(error)
    exact = [tf32(x, cut=is_cut).astype(np.float64) for x in (left, right)]
    assert np.all(np.abs(c - exact[0] @ exact[1]) <= 2.0**-20 * bound)


@pytest.mark.parametrize("target", ["sm_80", "h100"])
def test_tf32_numbers_stay_what_they_are(target):
    """A times 1: numbers of 11 bits are exact, others are what the unit reads of them."""
    rng = np.random.default_rng(3)
    a = random(rng, (64, 64), "float32")
    a[:32] = tf32(a[:32], cut=True)
    func = gemm(64, 64, 64, (64, 64, 32), 2, "float32", "float32", trans=(False, True))
    c, product = multiply(func, target, a, np.eye(64, dtype=np.float32), "float32", (False, True))
    np.testing.assert_array_equal(c[:32], a[:32])
    np.testing.assert_array_equal(c[32:], tf32(a[32:], cut=product.kind == "wgmma"))
    assert np.any(c[32:] != a[32:])


@pytest.mark.parametrize("target", ["sm_80", "h100"])
def test_a_fragment_keeps_its_float32_numbers(target):
    """An operand in registers is rounded for the product alone."""

    @T.prim_func
    def main(
        A: T.Tensor((64, 32), "float32"),
        B: T.Tensor((64, 32), "float32"),
        C: T.Tensor((64, 64), "float32"),
        D: T.Tensor((64, 32), "float32"),
    ):
        with T.Kernel(1, threads=128):
            left = T.alloc_fragment((64, 32), "float32")
            right = T.alloc_shared((64, 32), "float32")
            sums = T.alloc_fragment((64, 64), "float32")
            T.copy(A, left)
            T.copy(B, right)
            T.gemm(left, right, sums, transpose_B=True, clear_accum=True)
            T.copy(sums, C)
            T.copy(left, D)

    rng = np.random.default_rng(4)
    a, b = random(rng, (64, 32), "float32"), random(rng, (64, 32), "float32")
    c, d = np.zeros((64, 64), np.float32), np.zeros((64, 32), np.float32)
    plan = run_emulated(main, target, [a, b, c, d], ALL_SCHEDULES)
    (launch,) = plan.launches.values()
    (product,) = launch.gemms.values()
    assert product.a.source == "registers"
    cut = product.kind == "wgmma"
    expected = tf32(a, cut=cut).astype(np.float64) @ tf32(b, cut=cut).astype(np.float64).T
    np.testing.assert_allclose(c, expected, atol=1e-5)
    np.testing.assert_array_equal(d, a)


def test_exact_float32_is_an_option(tmp_path):
    """As a knob, as a pass config and as an annotation of the program; explain says what is."""
    func = gemm(64, 64, 64, (64, 64, 32), 2, "float32", "float32")
    rng = np.random.default_rng(5)
    a, b = random(rng, (64, 64), "float32"), random(rng, (64, 64), "float32")
    c, product = multiply(func, "sm_80", a, b, "float32", knobs={"float32_products": "exact"})
    assert product.explain().count("fma (float32_products is exact)") == 1
    left, right = matrices(a, b, (False, False))
    assert np.all(np.abs(c - left @ right) <= 2.0**-20 * (np.abs(left) @ np.abs(right)))

    key = tilecore.PassConfigKey.TC_FLOAT32_PRODUCTS
    exact = tilecore.compile(func, target="sm_80", pass_configs={key: "exact"})
    default = tilecore.compile(func, target="sm_80")
    assert "fma (float32_products is exact)" in exact.explain()
    assert "mma.m16n8k8 of tf32 (operands rounded to 11 significant bits" in default.explain()
    assert "relative error up to 4.9e-04 each" in default.explain()

    @T.prim_func
    def annotated(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        T.annotate_pass_configs({"tc.float32_products": "exact"})
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), "float32")
            sums = T.alloc_fragment((64, 64), "float32")
            T.copy(A, tile)
            T.gemm(tile, tile, sums, clear_accum=True)
            T.copy(sums, C)

    plan, _, _ = lowered(annotated, "sm_80")
    assert "float32_products is exact" in plan.explain()
    with pytest.raises(InvalidConfig, match="one of tf32, exact"):
        lowered(func, "sm_80", {"float32_products": "fast"})


# --- float64 and integers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "depth", "how", "trans"),
    [("sm_80", 16, "m8n8k4", t) for t in TRANSPOSES]
    + [("h100", 16, "m16n8k8", t) for t in TRANSPOSES[1:3]]
    + [("h100", 4, "m16n8k4", (False, False))],
)
def test_float64_on_matrix_units(target, depth, how, trans):
    size = (40, 48, 36)
    func = gemm(*size, (32, 32, depth), 2, "float64", "float64", "float64", trans)
    rng = np.random.default_rng(6)
    shapes = ((size[2], size[0]) if trans[0] else (size[0], size[2]),
              (size[1], size[2]) if trans[1] else (size[2], size[1]))  # fmt: skip
    a, b = (rng.standard_normal(s) for s in shapes)
    c, product = multiply(func, target, a, b, "float64", trans)
    assert how in product.explain()
    left, right = matrices(a, b, trans)
    assert np.all(np.abs(c - left @ right) <= 40 * 2.0**-53 * (np.abs(left) @ np.abs(right)))


@pytest.mark.few(2)
@pytest.mark.covering
@pytest.mark.parametrize(
    ("target", "how", "trans_b"),
    [
        ("sm_75", "mma.m8n8k16", True),
        ("sm_75", "mma.m8n8k16", False),
        ("sm_80", "mma.m16n8k32", False),
        ("h100", "wgmma.m64n64k32", True),
        ("llvm", "", True),
        ("llvm", "", False),
    ],
)
@pytest.mark.parametrize(("a_type", "b_type"), [("int8", "uint8"), ("uint8", "int8")])
def test_signed_and_unsigned_bytes(target, how, a_type, b_type, trans_b):
    M, N, K = 72, 80, 96
    func = gemm(M, N, K, (64, 64, 32), 2, a_type, "int32", "int32", (False, trans_b), b=b_type)
    rng = np.random.default_rng(7)

    def numbers(shape, dtype):
        low = np.iinfo(dtype).min
        return rng.integers(low, low + 256, shape).astype(dtype)

    a, b = numbers((M, K), a_type), numbers((N, K) if trans_b else (K, N), b_type)
    left, right = matrices(a, b, (False, trans_b))
    if target == "llvm":
        c = np.zeros((M, N), np.int32)
        tilecore.compile(func, target="llvm")(a, b, c)
    else:
        c, product = multiply(func, target, a, b, "int32", (False, trans_b))
        assert how in product.explain()
    np.testing.assert_array_equal(c, left @ right)


def nibbles(values):
    """Return 4-bit integers two a byte, the first one in the low half."""
    codes = values.astype(np.int8).view(np.uint8) & 15
    return np.ascontiguousarray(codes[:, ::2] | codes[:, 1::2] << 4)


@pytest.mark.parametrize(
    ("target", "dtype", "trans", "how"),
    [
        ("sm_75", "int4", (False, True), "mma.m8n8k16"),
        ("sm_80", "int4", (True, False), "mma.m16n8k32"),
        ("sm_80", "uint4", (False, False), "mma.m16n8k32"),
        ("h100", "int4", (False, True), "mma.m16n8k32"),
        ("h100", "uint4", (False, True), "wgmma.m64n48k32"),
    ],
)
def test_elements_of_4_bits_are_multiplied_as_bytes(target, dtype, trans, how):
    M, N, K = 64, 48, 96
    func = gemm(M, N, K, (64, 48, 32), 2, dtype, "int32", "int32", trans)
    low = -8 if dtype == "int4" else 0
    rng = np.random.default_rng(14)
    a = rng.integers(low, low + 16, (K, M) if trans[0] else (M, K))
    b = rng.integers(low, low + 16, (N, K) if trans[1] else (K, N))
    c = np.zeros((M, N), np.int32)
    plan = run_emulated(func, target, [nibbles(a), nibbles(b), c])
    left, right = matrices(a, b, trans)
    np.testing.assert_array_equal(c, left @ right)
    assert how in plan.explain()


def test_a_fragment_of_int4_is_an_operand():
    @T.prim_func
    def main(
        A: T.Tensor((32, 64), "int8"), B: T.Tensor((16, 64), "int4"), C: T.Tensor((32, 16), "int32")
    ):
        with T.Kernel(1, threads=64):
            left = T.alloc_fragment((32, 64), "int4")
            right = T.alloc_shared((16, 64), "int4")
            sums = T.alloc_fragment((32, 16), "int32")
            T.copy(A, left)
            T.copy(B, right)
            T.gemm(left, right, sums, transpose_B=True, clear_accum=True)
            T.copy(sums, C)

    rng = np.random.default_rng(15)
    a, b = rng.integers(-8, 8, (32, 64)).astype(np.int8), rng.integers(-8, 8, (16, 64))
    c = np.zeros((32, 16), np.int32)
    plan = run_emulated(main, "sm_80", [a, nibbles(b), c])
    np.testing.assert_array_equal(c, a.astype(np.int64) @ b.T)
    assert "A from registers" in plan.explain()


@pytest.mark.parametrize(("target", "kind"), [("rtx4090", "mma"), ("h100", "wgmma")])
def test_both_kinds_of_float8_together(target, kind):
    size = (64, 64, 64)
    func = gemm(*size, size, 2, "float8_e4m3fn", "float32", trans=(False, True), b="float8_e5m2")
    rng = np.random.default_rng(16)
    a, b = random(rng, (64, 64), "float8_e4m3fn"), random(rng, (64, 64), "float8_e5m2")
    c, product = multiply(func, target, a, b, "float32", (False, True))
    left, right = matrices(a, b, (False, True))
    assert np.all(np.abs(c - left @ right) <= 2.0**-20 * (np.abs(left) @ np.abs(right)))
    assert product.kind == kind


@pytest.mark.parametrize(
    ("target", "a_type", "b_type", "sums", "opcode"),
    [
        ("sm_80", "float32", "float32", "float32", "HMMA"),
        ("h100", "float32", "float32", "float32", "HGMMA"),
        ("sm_80", "float64", "float64", "float64", "DMMA"),
        ("h100", "float64", "float64", "float64", "DMMA"),
        ("sm_75", "int8", "uint8", "int32", "IMMA"),
        ("h100", "uint8", "int8", "int32", "IGMMA"),
    ],
)
def test_products_build_for_devices(target, a_type, b_type, sums, opcode):
    func = gemm(256, 256, 256, (64, 64, 32), 2, a_type, sums, sums, (False, True), b=b_type)
    _, _, source = lowered(func, target)
    cubin = compile_cuda(source.text, source.arch)
    (features,) = read_features(cubin.data, source.arch).values()
    assert features.opcodes.get(opcode, 0) > 0
    assert cubin.spills == 0


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_more_than_a_thread_has_registers_is_not_written_out(target):
    """NVRTC took three minutes for 4,096 multiply-adds; their sums lie in memory anyway."""
    size = (64, 64, 8)

    @T.prim_func
    def main(A: T.Tensor((64, 8), "float32"), B: T.Tensor((8, 64), "float32"),
             C: T.Tensor((64, 64), "float32")):  # fmt: skip
        with T.Kernel(1, threads=1):
            a = T.alloc_shared((64, 8), "float32")
            b = T.alloc_shared((8, 64), "float32")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, clear_accum=True)
            T.copy(c, C)

    a, b = operands(np.random.default_rng(4), size, "float32", (False, False))
    c, _ = multiply(main, target, a, b, "float32")
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)
    if target == "sm_80":
        source = lowered(main, target)[2]
        assert "#pragma unroll 1\n" in source.text
        (features,) = read_features(compile_cuda(source.text, target).data, target).values()
        assert features.opcodes["FFMA"] < 1024
