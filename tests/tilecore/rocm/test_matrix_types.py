"""Products of 8-bit floats and float64 by matrix instructions.

CDNA 3 multiplies the "fnuz" formats; others are bfloat16 by then. On the emulator (run_emulated)
and as LLVM IR on a CPU (run_text); lanes and registers: test_published_layouts.py.
"""

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import run_emulated
from tests.tilecore.cuda.tile_programs import gemm
from tests.tilecore.rocm.llvm_on_cpu import run_text
from tilecore.emulator import ALL_SCHEDULES

pytestmark = pytest.mark.few(1)  # a case takes long

E4Z, E5Z, E4, E5 = "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3fn", "float8_e5m2"
RUNS = pytest.mark.parametrize("run", [run_emulated, run_text])
TRANSPOSED = [(False, False), (False, True), (True, False), (True, True)]
# Target, types of A and B, K of the instruction.
TYPES = [
    ("gfx942", E4Z, E4Z, 32),
    ("gfx942", E5Z, E5Z, 32),
    ("gfx942", E4Z, E5Z, 32),
    ("gfx942", E5Z, E4Z, 32),
    ("gfx942", E4, E5, 16),
    ("gfx942", E4Z, E4, 16),
    ("gfx90a", E5Z, E4Z, 16),
    ("gfx90a", "float64", "float64", 4),
    ("gfx942", "float64", "float64", 4),
    ("gfx950", E4, E5, 32),
    ("gfx950", E4Z, E4Z, 16),
    ("gfx950", "float16", "float16", 32),
    ("gfx950", "bfloat16", "bfloat16", 32),
]
SPREAD = {E4Z: 9, E4: 8, E5Z: 16, E5: 15}  # powers of two to both sides of 1, subnormals included
LIMITS = {  # code of the smallest number, of the largest; both, and codes of NaN
    E4Z: (2.0**-10, 0x7F, 240.0, {0x80}),
    E5Z: (2.0**-17, 0x7F, 57344.0, {0x80}),
    E4: (2.0**-9, 0x7E, 448.0, {0x7F, 0xFF}),
    E5: (2.0**-16, 0x7B, 57344.0, {0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF}),
}  # "OCP 8-bit Floating Point Specification" 1.0; StableHLO, RFC 20230321 (fnuz)


def values(rng, shape, dtype):
    """Return random numbers of all sizes that the type has, so that sums keep what is small."""
    made = rng.standard_normal(shape)
    if dtype in SPREAD:
        made *= np.exp2(rng.integers(-SPREAD[dtype], 3, shape))
    return made.astype(np.dtype(dtype))


def operand(rng, rows, columns, dtype, is_transposed):
    return values(rng, (columns, rows) if is_transposed else (rows, columns), dtype)


def assert_product(found, a, b, trans=(False, False), of=None):
    """Each sum is near that of float64, by what its own terms add up to."""
    left, right = (x.astype(np.float64) for x in (a, b))
    left, right = left.T if trans[0] else left, right.T if trans[1] else right
    exact = left @ right + (0 if of is None else of)
    most = np.abs(left) @ np.abs(right) + (0 if of is None else np.abs(of))
    rounding = {np.float32: 2.0**-23, np.float64: 2.0**-52, np.float16: 2.0**-10}[found.dtype.type]
    terms = 1 if found.dtype == np.float16 else left.shape[1]
    assert np.all(np.abs(found - exact) <= terms * rounding * most + 1e-30)
    assert np.abs(exact).max() > 0


def plans_of(plan):
    (launch,) = plan.launches.values()
    return list(launch.gemms.values()), launch.notes


@pytest.mark.covering
@pytest.mark.parametrize("trans", TRANSPOSED)
@pytest.mark.parametrize(("target", "a", "b", "step"), TYPES)
def test_products_with_ragged_edges_and_all_transposes(target, a, b, step, trans):
    M, N, K = 72, 88, 104
    total = "float64" if a == "float64" else "float32"
    func = gemm(M, N, K, (64, 64, 64), 2, a, total, total, trans, 128, b=b)
    rng = np.random.default_rng(0)
    x, y = operand(rng, M, K, a, trans[0]), operand(rng, K, N, b, trans[1])
    for run in (run_emulated, run_text):
        c = np.full((M, N), 77, total)
        given = (ALL_SCHEDULES,) if run is run_emulated else ()
        (product,), _ = plans_of(run(func, target, [x, y, c], *given))
        assert (product.kind, product.shape) == ("mfma", (16, 16, step))
        assert product.converts_to == ("bfloat16" if step == 16 else "")
        assert_product(c, x, y, trans)


@RUNS
@pytest.mark.parametrize(("target", "a", "b", "step"), [t for t in TYPES if t[1] in SPREAD])
def test_every_number_times_every_number(target, a, b, step, run):
    """Exactly, NaN and infinities included."""
    codes = np.arange(256, dtype=np.uint8)
    func = gemm(256, 256, 32, (64, 64, 32), 1, a, "float32", "float32", (False, True), 128, b=b)
    left, right = (codes.view(np.dtype(t)).astype(np.float32) for t in (a, b))
    with np.errstate(invalid="ignore"):
        expected = np.outer(left, right)
    for place in (5, 26):
        x = np.zeros((256, 32), np.uint8)
        x[:, place] = codes
        c = np.full((256, 256), 7, np.float32)
        run(func, target, [x.view(np.dtype(a)), x.view(np.dtype(b)), c])
        np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("dtype", LIMITS)
def test_the_numbers_that_documents_give(dtype):
    least, code, most, not_numbers = LIMITS[dtype]
    codes = np.zeros((64, 64), np.uint8)
    listed = [1, 0x81, code, 0x80 | code, *sorted(not_numbers)]
    codes[: len(listed), 0] = listed
    one = np.zeros((64, 64), np.dtype(dtype))
    one[0, 0] = 1
    func = gemm(64, 64, 64, (64, 64, 64), 1, dtype, "float32", "float32", (False, True), 128)
    c = np.zeros((64, 64), np.float32)
    run_text(func, "gfx942", [codes.view(np.dtype(dtype)), one, c])
    np.testing.assert_array_equal(c[:4, 0], [least, -least, most, -most])
    assert np.isnan(c[4 : len(listed), 0]).all()
    assert not c[len(listed) :].any()


def fragments(M, N, K, types, total, held, trans):
    """A product whose operands are fragments where ``held`` says so."""
    (a, b), (tA, tB) = types, trans

    @T.prim_func
    def main(
        A: T.Tensor((K, M) if tA else (M, K), a),
        B: T.Tensor((N, K) if tB else (K, N), b),
        C: T.Tensor((M, N), total),
    ):
        with T.Kernel(1, threads=128):
            A_s = T.alloc_shared((K, M) if tA else (M, K), a)
            B_s = T.alloc_shared((N, K) if tB else (K, N), b)
            A_l = T.alloc_fragment((K, M) if tA else (M, K), a)
            B_l = T.alloc_fragment((N, K) if tB else (K, N), b)
            C_l = T.alloc_fragment((M, N), total)
            T.copy(A, A_s)
            T.copy(B, B_s)
            T.clear(C_l)
            if held == "a":
                T.copy(A_s, A_l)
                T.gemm(A_l, B_s, C_l, transpose_A=tA, transpose_B=tB)
            elif held == "b":
                T.copy(B_s, B_l)
                T.gemm(A_s, B_l, C_l, transpose_A=tA, transpose_B=tB)
            else:
                T.copy(A_s, A_l)
                T.copy(B_s, B_l)
                T.gemm(A_l, B_l, C_l, transpose_A=tA, transpose_B=tB)
            T.copy(C_l, C)

    return main


@pytest.mark.covering("target held")
@RUNS
@pytest.mark.parametrize("held", ["a", "b", "ab"])
@pytest.mark.parametrize(
    ("target", "types"),
    [("gfx942", (E4Z, E5Z)), ("gfx942", (E5Z, E4)), ("gfx90a", ("float64", "float64"))],
)
def test_operands_in_registers(target, types, held, run):
    M, N, K = 64, 32, 64
    total = "float64" if types[0] == "float64" else "float32"
    for trans in ((False, True), (True, False)):
        rng = np.random.default_rng(1)
        x, y = operand(rng, M, K, types[0], trans[0]), operand(rng, K, N, types[1], trans[1])
        c = np.zeros((M, N), total)
        (product,), notes = plans_of(
            run(fragments(M, N, K, types, total, held, trans), target, [x, y, c])
        )
        assert product.kind == "mfma"
        assert (product.a.source == "registers") == ("a" in held)
        assert (product.b.source == "registers") == ("b" in held)
        assert not notes
        assert_product(c, x, y, trans)


def chained(M, N, K, D, dtype, total):
    """C of a product is A of another one, as in attention."""

    @T.prim_func
    def main(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((N, K), dtype),
        V: T.Tensor((N, D), dtype),
        Out: T.Tensor((M, D), total),
    ):
        with T.Kernel(1, threads=128):
            A_s = T.alloc_shared((M, K), dtype)
            B_s = T.alloc_shared((N, K), dtype)
            V_s = T.alloc_shared((N, D), dtype)
            scores = T.alloc_fragment((M, N), total)
            weights = T.alloc_fragment((M, N), dtype)
            sums = T.alloc_fragment((M, D), total)
            T.copy(A, A_s)
            T.copy(B, B_s)
            T.copy(V, V_s)
            T.clear(scores)
            T.clear(sums)
            T.gemm(A_s, B_s, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
            T.copy(scores, weights)
            T.gemm(weights, V_s, sums, policy=T.GemmWarpPolicy.FullRow)
            T.copy(sums, Out)

    return main


@RUNS
@pytest.mark.parametrize(
    ("target", "dtype", "source"),
    [
        ("gfx90a", "float64", "registers"),
        ("gfx942", "float64", "registers"),
        ("gfx942", E4, "registers"),  # as bfloat16, whose fragments fit those of the sums
        ("gfx90a", E5Z, "registers"),
        ("gfx942", E4Z, "chunks"),  # lanes have 4 neighbours and want 8: by shared memory
    ],
)
def test_sums_are_an_operand_of_the_next_product(target, dtype, source, run):
    M, N, K, D = 64, 64, 32, 64
    total = "float64" if dtype == "float64" else "float32"
    rng = np.random.default_rng(2)
    a, b, v = (
        (rng.integers(-4, 5, shape) / (3 if total == "float64" else 4)).astype(np.dtype(dtype))
        for shape in ((M, K), (N, K), (N, D))
    )
    out = np.zeros((M, D), total)
    products, notes = plans_of(run(chained(M, N, K, D, dtype, total), target, [a, b, v, out]))
    assert [p.kind for p in products] == ["mfma", "mfma"]
    assert products[1].a.source == source
    assert bool(notes) == (source != "registers")
    weights = (a.astype(np.float64) @ b.astype(np.float64).T).astype(total).astype(a.dtype)
    if dtype == "float64":  # sums of another order
        np.testing.assert_allclose(out, weights @ v, rtol=0, atol=1e-12)
    else:
        assert_product(out, weights, v)


def batched(batch, size, dtype, total, out):
    """Products of parts of tiles, added to a shared tile; rows do not begin at 16 bytes."""
    M, N, K = size
    room = 8 if dtype != "float64" else 1

    @T.prim_func
    def main(
        A: T.Tensor((batch, M, K), dtype),
        B: T.Tensor((batch, K, N), dtype),
        C: T.Tensor((batch, M, N), out),
    ):
        with T.Kernel(batch, threads=256) as bx:
            A_s = T.alloc_shared((2, M, K + room), dtype)
            B_s = T.alloc_shared((2, K, N + room), dtype)
            C_s = T.alloc_shared((M, N), out)
            T.copy(A[bx, 0:M, 0:K], A_s[1, 0:M, 0:K])
            T.copy(B[bx, 0:K, 0:N], B_s[1, 0:K, 0:N])
            T.copy(C[bx, 0:M, 0:N], C_s)
            T.gemm(A_s[1, 0:M, 0:K], B_s[1, 0:K, 0:N], C_s)
            T.copy(C_s, C[bx, 0:M, 0:N])

    return main


@RUNS
@pytest.mark.parametrize(
    ("target", "dtype", "out"),
    [
        ("gfx942", E4Z, "float32"),
        ("gfx942", E5Z, "float16"),
        ("gfx942", E4, "float32"),
        ("gfx90a", "float64", "float64"),
    ],
)
def test_batches_of_parts_of_tiles_added_to_a_shared_tile(target, dtype, out, run):
    batch, (M, N, K) = 2, (32, 48, 32)
    rng = np.random.default_rng(3)
    scale = 1 if dtype == "float64" else 8  # of numbers that float16 sums up well
    a = (rng.integers(-8, 9, (batch, M, K)) / scale).astype(np.dtype(dtype))
    b = (rng.integers(-8, 9, (batch, K, N)) / scale).astype(np.dtype(dtype))
    c = rng.integers(-9, 9, (batch, M, N)).astype(out)
    before = c.astype(np.float64)
    func = batched(batch, (M, N, K), dtype, "float32", out)
    (product,), _ = plans_of(run(func, target, [a, b, c]))
    assert product.kind == "mfma"
    assert (product.a.source, product.b.source) == ("elements", "elements")
    assert product.keeps_c is False
    for n in range(batch):
        assert_product(c[n], a[n], b[n], of=before[n])


def two_products(size, dtype, total):
    """Sums of products whose operands are transposed in different ways: C has one distribution."""
    M, N, K = size

    @T.prim_func
    def main(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((N, K), dtype),
        X: T.Tensor((K, M), dtype),
        Y: T.Tensor((K, N), dtype),
        C: T.Tensor((M, N), total),
    ):
        with T.Kernel(1, threads=128):
            A_s = T.alloc_shared((M, K), dtype)
            B_s = T.alloc_shared((N, K), dtype)
            X_s = T.alloc_shared((K, M), dtype)
            Y_s = T.alloc_shared((K, N), dtype)
            C_l = T.alloc_fragment((M, N), total)
            T.copy(A, A_s)
            T.copy(B, B_s)
            T.copy(X, X_s)
            T.copy(Y, Y_s)
            T.clear(C_l)
            T.gemm(A_s, B_s, C_l, transpose_B=True)
            T.gemm(X_s, Y_s, C_l, transpose_A=True)
            T.copy(C_l, C)

    return main


@RUNS
@pytest.mark.parametrize(
    ("target", "dtype"), [("gfx942", E4Z), ("gfx942", E5), ("gfx90a", "float64")]
)
def test_products_that_share_sums(target, dtype, run):
    M, N, K = 64, 64, 32
    total = "float64" if dtype == "float64" else "float32"
    rng = np.random.default_rng(6)
    a, b, x, y = (values(rng, shape, dtype) for shape in ((M, K), (N, K), (K, M), (K, N)))
    c = np.zeros((M, N), total)
    products, notes = plans_of(run(two_products((M, N, K), dtype, total), target, [a, b, x, y, c]))
    assert [p.kind for p in products] == ["mfma", "mfma"]
    assert products[0].c == products[1].c
    assert not notes
    left = np.concatenate([a, x.T], axis=1)
    right = np.concatenate([b, y.T], axis=1)
    assert_product(c, left, right, (False, True))


@pytest.mark.parametrize(
    ("dtype", "depth", "kind"),
    [(E4Z, 48, "fma"), (E4, 48, "mfma"), (E4, 24, "fma"), ("float64", 12, "mfma")],
)
def test_depths_that_are_no_multiple_of_the_instructions(dtype, depth, kind):
    total = "float64" if dtype == "float64" else "float32"
    func = gemm(64, 64, 96, (32, 32, depth), 2, dtype, total, total, (False, True), 128)
    rng = np.random.default_rng(4)
    a, b = values(rng, (64, 96), dtype), values(rng, (64, 96), dtype)
    c = np.zeros((64, 64), total)
    (product,), _ = plans_of(run_text(func, "gfx942", [a, b, c]))
    assert product.kind == kind
    assert (product.reason == "not a multiple of 16x16x32") == (dtype == E4Z)
    assert_product(c, a, b, (False, True))


def test_scales_are_multiplied_and_added():
    """e8m0 holds powers of two that bfloat16 has as subnormal numbers only."""
    dtype = "float8_e8m0fnu"
    func = gemm(64, 64, 64, (64, 64, 32), 2, dtype, "float32", "float32", (False, True), 128)
    rng = np.random.default_rng(5)
    a, b = (
        np.exp2(rng.integers(-8, 9, (64, 64))).astype(ml_dtypes.float8_e8m0fnu) for _ in range(2)
    )
    c = np.zeros((64, 64), np.float32)
    (product,), _ = plans_of(run_text(func, "gfx90a", [a, b, c]))
    assert product.kind == "fma"
    assert_product(c, a, b, (False, True))


def folded(M, N, K):
    """Sums of rows and the largest of columns, then rows divided by what their sum is."""

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float64"),
        B: T.Tensor((N, K), "float64"),
        C: T.Tensor((M, N), "float64"),
        Most: T.Tensor((N,), "float64"),
    ):
        with T.Kernel(1, threads=256):
            A_s = T.alloc_shared((M, K), "float64")
            B_s = T.alloc_shared((N, K), "float64")
            C_l = T.alloc_fragment((M, N), "float64")
            total = T.alloc_fragment((M,), "float64")
            most = T.alloc_fragment((N,), "float64")
            T.copy(A, A_s)
            T.copy(B, B_s)
            T.gemm(A_s, B_s, C_l, transpose_B=True, clear_accum=True)
            T.reduce_sum(C_l, total, dim=1)
            T.reduce_max(C_l, most, dim=0)
            for i, j in T.Parallel(M, N):
                C_l[i, j] = C_l[i, j] / (1.0 + T.abs(total[i]))
            T.copy(C_l, C)
            T.copy(most, Most)

    return main


@RUNS
def test_sums_of_float64_are_folded_where_they_lie(run):
    """A lane has every fourth column of a row."""
    M, N, K = 64, 48, 24
    rng = np.random.default_rng(7)
    a, b = values(rng, (M, K), "float64"), values(rng, (N, K), "float64")
    c, most = np.zeros((M, N)), np.zeros(N)
    (product,), notes = plans_of(run(folded(M, N, K), "gfx90a", [a, b, c, most]))
    assert product.kind == "mfma"
    assert not notes
    exact = a @ b.T
    np.testing.assert_allclose(most, exact.max(0), rtol=0, atol=1e-12)
    expected = exact / (1 + np.abs(exact.sum(1, keepdims=True)))
    np.testing.assert_allclose(c, expected, rtol=0, atol=1e-12)
