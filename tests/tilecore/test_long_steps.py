"""Products of few rows: longer steps along K, and versions of launches of dynamic rows."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore import products
from tests.tilecore.x86_paths import here, paths
from tilecore import runtime
from tilecore.compiler import compile
from tilecore.inference.cpu.options import CpuOptions
from tilecore.interpreter import run
from tilecore.ir.arithmetic.trips import trip_count
from tilecore.ir.dtype import DType
from tilecore.ir.expr import int_value
from tilecore.ir.nodes import For, If, KernelLaunch
from tilecore.ir.visitor import walk
from tilecore.layout import make_swizzled_layout
from tilecore.passes.pipeline import cpu_pipeline, run_passes
from tilecore.target import parse_target

AVX2 = parse_target("avx2")
PATHS = paths("avx2", "avx512", "avx512+avx512_bf16")


def passed(func, **options):
    return run_passes(func, None, cpu_pipeline(AVX2, CpuOptions(**options)))


def trips(func):
    """Return how often each loop of the program runs after the passes."""
    loops = [s for s in walk(passed(func).body) if isinstance(s, For)]
    return [int_value(trip_count(loop)) for loop in loops]


def whole_numbers(*shapes, dtype="float32", seed=0):
    """Return operands whose products and sums float32 holds exactly, in any order."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-8, 9, s).astype(np.float32).astype(DType(dtype).numpy) for s in shapes]


def check(func, operands, expected, artifacts, path="avx2"):
    """Check a program, what the passes make of it, and its code, each exactly."""
    shape = expected.shape
    for version in (func, passed(func)):
        (found,) = run(version, *operands, np.full(shape, np.nan, np.float32))
        np.testing.assert_array_equal(found, expected)
    found = np.full(shape, np.nan, np.float32)
    runtime.load(compile(func, here(path), store=artifacts))(*operands, found)
    np.testing.assert_array_equal(found, expected)


def product(m, n, k, block=(16, 32, 32), dtype="float32", trans_b=True):
    return products.product(m, n, k, dtype, block, trans_b)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("k", "depth", "expected"),
    [(1024, 32, 2), (1024, 256, 2), (500, 32, 1), (1056, 32, 3), (1000, 64, 2), (544, 32, 2)],
)
def test_steps_are_long_and_alike(artifacts, k, depth, expected):
    func = product(3, 40, k, (16, 32, depth))
    assert trips(func) == [expected]
    a, b = whole_numbers((3, k), (40, k))
    check(func, [a, b], a @ b.T, artifacts)


def test_the_depth_of_a_call(artifacts):
    k = T.dynamic("k")
    func = product(2, 40, k)
    assert trips(func) == [None]
    assert "shared float32[32, 512]" in str(passed(func))
    for depth in (0, 1, 31, 512, 513, 1100):
        a, b = whole_numbers((2, depth), (40, depth))
        check(func, [a, b], a @ b.T, artifacts)


def test_sums_that_begin_with_a_bias(artifacts):
    @T.prim_func
    def main(
        A: T.Tensor((3, 640), "float32"), B: T.Tensor((40, 640), "float32"),
        D: T.Tensor((3, 40), "float32"), C: T.Tensor((3, 40), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(40, 16), threads=128) as bx:
            a = T.alloc_shared((16, 32), "float32")
            b = T.alloc_shared((16, 32), "float32")
            c = T.alloc_fragment((16, 16), "float32")
            T.copy(D[0, bx * 16], c)
            for ko in T.Pipelined(20, num_stages=3):
                T.copy(A[0, ko * 32], a)
                T.copy(B[bx * 16, ko * 32], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[0, bx * 16])

    assert trips(main) == [2]
    a, b, d = whole_numbers((3, 640), (40, 640), (3, 40))
    check(main, [a, b, d], a @ b.T + d, artifacts)


@pytest.mark.parametrize(
    ("func", "why"),
    [
        (product(3, 40, 1024, trans_b=False), "lanes run along N"),
        (product(64, 40, 1024, (64, 32, 32)), "many rows"),
        (product(3, 40, 1024, (16, 32, 512)), "long already"),
        (product(3, 40, 1024, dtype="int8"), "of integers"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_keeps_its_steps(func, why):
    assert str(passed(func)) == str(run_passes(func)), why


@pytest.mark.few(1)
@pytest.mark.parametrize(("chunk", "expected"), [(8, 1), (12, 2), (17, 17), (34, 17), (40, 5)])
def test_a_part_of_k_is_not_left(artifacts, chunk, expected):
    """What lies behind the last iteration of a part is the next part's."""
    depth, splits = 64, 2
    k = depth * chunk * splits

    @T.prim_func
    def main(
        A: T.Tensor((2, k), "float32"), B: T.Tensor((24, k), "float32"),
        C: T.Tensor((splits, 2, 24), "float32"),
    ):  # fmt: skip
        with T.Kernel(splits, threads=128) as s:
            a = T.alloc_shared((2, depth), "float32")
            b = T.alloc_shared((24, depth), "float32")
            c = T.alloc_fragment((2, 24), "float32")
            T.clear(c)
            for ko in T.Pipelined(chunk, num_stages=2):
                T.copy(A[0, (s * chunk + ko) * depth], a)
                T.copy(B[0, (s * chunk + ko) * depth], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[s, :, :])

    assert trips(main) == [expected]
    a, b = whole_numbers((2, k), (24, k))
    parts = [a[:, i : i + k // 2] @ b[:, i : i + k // 2].T for i in (0, k // 2)]
    check(main, [a, b], np.stack(parts), artifacts)


def test_edges_that_are_not_zero_are_not_passed(artifacts):
    @T.prim_func
    def main(
        A: T.Tensor((2, 544), "float32"), B: T.Tensor((24, 544), "float32"),
        C: T.Tensor((2, 24), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((2, 32), "float32")
            b = T.alloc_shared((24, 32), "float32")
            c = T.alloc_fragment((2, 24), "float32")
            T.annotate_safe_value({A: 3.0, B: 1.0})
            T.clear(c)
            for ko in T.Pipelined(17, num_stages=2):
                T.copy(A[0, ko * 32], a)
                T.copy(B[0, ko * 32], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C)

    assert trips(main) == [17]
    a, b = whole_numbers((2, 544), (24, 544))
    check(main, [a, b], a @ b.T, artifacts)


def test_two_products_of_one_operand(artifacts):
    """The gate and the other half of an MLP: three tiles, two sums, swizzled as for a GPU."""
    m, n, k = 5, 48, 320

    @T.prim_func
    def main(
        X: T.Tensor((m, k), "float32"), G: T.Tensor((n, k), "float32"),
        U: T.Tensor((n, k), "float32"), Y: T.Tensor((m, n), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(n, 16), threads=128) as bx:
            x = T.alloc_shared((16, 32), "float32")
            g = T.alloc_shared((16, 32), "float32")
            u = T.alloc_shared((16, 32), "float32")
            gate = T.alloc_fragment((16, 16), "float32")
            up = T.alloc_fragment((16, 16), "float32")
            T.annotate_layout({g: make_swizzled_layout(g), u: make_swizzled_layout(u)})
            T.clear(gate)
            T.clear(up)
            for ko in T.Pipelined(T.ceildiv(k, 32), num_stages=2):
                T.copy(X[0, ko * 32], x)
                T.copy(G[bx * 16, ko * 32], g)
                T.copy(U[bx * 16, ko * 32], u)
                T.gemm(x, g, gate, transpose_B=True)
                T.gemm(x, u, up, transpose_B=True)
            for i, j in T.Parallel(16, 16):
                gate[i, j] = T.max(gate[i, j], 0) + up[i, j]
            T.copy(gate, Y[0, bx * 16])

    assert trips(main) == [1]
    x, g, u = whole_numbers((m, k), (n, k), (n, k))
    check(main, [x, g, u], np.maximum(x @ g.T, 0) + x @ u.T, artifacts)


@pytest.mark.few(1)
@pytest.mark.parametrize(("k", "expected"), [(640, 2), (544, 17), (576, 2)])
def test_stretches_of_a_tile(artifacts, k, expected):
    """The first operand lies in a tile that all steps walk along, and none leaves."""
    m, n = 4, 40

    @T.prim_func
    def main(
        X: T.Tensor((m, k), "float32"), B: T.Tensor((n, k), "float32"),
        C: T.Tensor((m, n), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(n, 8), threads=128) as bx:
            x = T.alloc_shared((m, k), "float32")
            b = T.alloc_shared((8, 32), "float32")
            c = T.alloc_fragment((m, 8), "float32")
            for i, j in T.Parallel(m, k):
                x[i, j] = X[i, j] + 1
            T.clear(c)
            for ko in T.Pipelined(k // 32, num_stages=2):
                T.copy(B[bx * 8, ko * 32], b)
                T.gemm(x[:, ko * 32 : (ko + 1) * 32], b, c, transpose_B=True)
            T.copy(c, C[0, bx * 8])

    assert trips(main) == [expected]
    x, b = whole_numbers((m, k), (n, k))
    check(main, [x, b], (x + 1) @ b.T, artifacts)


def test_sums_that_the_next_product_reads_are_not_kept_back(artifacts):
    """The second product of an iteration reads what the first one has summed up so far."""

    @T.prim_func
    def main(
        A: T.Tensor((2, 128), "float32"), B: T.Tensor((128, 128), "float32"),
        D: T.Tensor((16, 128), "float32"), C: T.Tensor((2, 16), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((2, 32), "float32")
            b = T.alloc_shared((128, 32), "float32")
            d = T.alloc_shared((16, 32), "float32")
            h = T.alloc_shared((2, 128), "float32")
            c = T.alloc_fragment((2, 16), "float32")
            T.clear(h)
            T.clear(c)
            for ko in T.serial(4):
                T.copy(A[0, ko * 32], a)
                T.copy(B[0, ko * 32], b)
                T.copy(D[0, ko * 32], d)
                T.gemm(a, b, h, transpose_B=True)
                T.gemm(h[:, ko * 32 : (ko + 1) * 32], d, c, transpose_B=True)
            T.copy(c, C)

    assert trips(main) == [4]
    a, b, d = (x % 2 for x in whole_numbers((2, 128), (128, 128), (16, 128)))
    h, total = np.zeros((2, 128), np.float32), np.zeros((2, 16), np.float32)
    for i in range(0, 128, 32):
        h += a[:, i : i + 32] @ b[:, i : i + 32].T
        total += h[:, i : i + 32] @ d[:, i : i + 32].T
    check(main, [a, b, d], total, artifacts)


def nearly_plain(change):
    """Return a product of which one thing is not as long steps need it."""

    @T.prim_func
    def main(
        A: T.Tensor((2, 256), "float32"), B: T.Tensor((16, 256), "float32"),
        C: T.Tensor((2, 16), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((2, 32), "float32")
            b = T.alloc_shared((16, 32), "float32")
            c = T.alloc_fragment((2, 16), "float32")
            T.clear(c)
            for ko in T.serial(8):
                T.copy(A[0, (7 - ko if change == "backwards" else ko) * 32], a)
                T.copy(B[0, (ko // 2 if change == "halting" else ko) * 32], b)
                if change == "scaled":
                    for i, j in T.Parallel(2, 16):
                        c[i, j] = c[i, j] * 2
                if change == "begun again":
                    T.gemm(a, b, c, transpose_B=True, clear_accum=ko == 4)
                else:
                    T.gemm(a, b, c, transpose_B=True)
            if change == "read later":
                for i, j in T.Parallel(2, 16):
                    c[i, j] += b[j, i]
            T.copy(c, C)

    return main


def expected_of(change, a, b):
    total = np.zeros((2, 16), np.float32)
    for ko in range(8):
        i, j = (7 - ko if change == "backwards" else ko), (ko // 2 if change == "halting" else ko)
        if change == "begun again" and ko == 4:
            total[:] = 0
        total *= 2 if change == "scaled" else 1
        total += a[:, i * 32 : i * 32 + 32] @ b[:, j * 32 : j * 32 + 32].T
    return total + (b[:, 224:226].T if change == "read later" else 0)


@pytest.mark.few(1)
@pytest.mark.parametrize("change", ["backwards", "halting", "scaled", "begun again", "read later"])
def test_loops_of_another_meaning_keep_it(artifacts, change):
    func = nearly_plain(change)
    assert trips(func) == [8]
    a, b = whole_numbers((2, 256), (16, 256))
    check(func, [a, b], expected_of(change, a, b), artifacts)


def test_the_plain_one_of_them(artifacts):
    func = nearly_plain("")
    assert trips(func) == [1]
    a, b = whole_numbers((2, 256), (16, 256))
    check(func, [a, b], expected_of("", a, b), artifacts)


# --- versions ------------------------------------------------------------------------------------


def conditions(func):
    return [str(s.cond) for s in walk(passed(func).body) if isinstance(s, If)]


@pytest.mark.few(1)
@pytest.mark.covering("dtype trans_b")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("trans_b", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_number_of_rows(artifacts, dtype, trans_b, path):
    func = product(T.dynamic("m"), 70, 100, (32, 32, 32), dtype, trans_b)
    kernel = runtime.load(compile(func, here(path), store=artifacts))
    for m in (0, 1, 2, 5, 8, 9, 16, 17, 31, 32, 33, 64, 70):
        a, b = whole_numbers((m, 100), (70, 100) if trans_b else (100, 70), dtype=dtype, seed=m)
        found = np.full((m, 70), np.nan, np.float32)
        kernel(a, b, found)
        b = b.astype(np.float32)
        np.testing.assert_array_equal(found, a.astype(np.float32) @ (b.T if trans_b else b))


def test_versions_mean_the_same():
    func = product(T.dynamic("m"), 20, 70, (8, 16, 32))
    after = passed(func)
    for m in (0, 1, 3, 8, 9):
        a, b = whole_numbers((m, 70), (20, 70))
        for version in (func, after):
            (found,) = run(version, a, b, np.full((m, 20), np.nan, np.float32))
            np.testing.assert_array_equal(found, a @ b.T)


def test_the_versions_that_there_are(artifacts):
    m, n = T.dynamic("m"), T.dynamic("n")
    assert conditions(product(m, 70, 512)) == ["m <= 1", "m <= 16"]  # the rows of its tile
    assert conditions(product(m, 70, 512, (64, 32, 32))) == ["m <= 1", "m <= 32"]
    assert conditions(product(m, 70, 512, (64, 32, 32), trans_b=False)) == ["m <= 1", "m <= 8"]
    assert conditions(product(m, n, 512)) == ["m <= 1", "m <= 16"]
    assert conditions(product(m, 70, 100)) == ["m <= 1", "m <= 8"]  # of short sums
    assert conditions(product(3, n, 512)) == []
    assert conditions(product(m, 70, 512, dtype="int8")) == []
    notes = compile(product(m, 70, 512), here("avx2"), store=artifacts).manifest.notes
    assert any(note.startswith("m <= 1: ") and "few rows" in note for note in notes)
    assert any(note.startswith("m > 16: ") and "packed" in note for note in notes)


@pytest.mark.parametrize("options", [{"pack_b": "grid"}, {"pack_b": "block"}, {"keep": "B"}])
def test_who_says_how_b_is_read_gets_one_version(options):
    func = product(T.dynamic("m"), 70, 100)
    launches = [s for s in walk(passed(func, **options).body) if isinstance(s, KernelLaunch)]
    assert len(launches) == 1


def test_two_launches_have_their_own(artifacts):
    """The second launch reads what the first one stored, whatever the versions that ran."""
    m = T.dynamic("m")

    @T.prim_func
    def main(
        A: T.Tensor((m, 64), "float32"), B: T.Tensor((32, 64), "float32"),
        D: T.Tensor((32, 32), "float32"), H: T.Tensor((m, 32), "float32"),
        C: T.Tensor((m, 32), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(m, 8), threads=128) as by:
            a = T.alloc_shared((8, 32), "float32")
            b = T.alloc_shared((32, 32), "float32")
            c = T.alloc_fragment((8, 32), "float32")
            T.clear(c)
            for ko in T.Pipelined(2, num_stages=2):
                T.copy(A[by * 8, ko * 32], a)
                T.copy(B[0, ko * 32], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, H[by * 8, 0])
        with T.Kernel(T.ceildiv(m, 8), threads=128) as by:
            a2 = T.alloc_shared((8, 32), "float32")
            d = T.alloc_shared((32, 32), "float32")
            c2 = T.alloc_fragment((8, 32), "float32")
            T.clear(c2)
            T.copy(H[by * 8, 0], a2)
            T.copy(D, d)
            T.gemm(a2, d, c2, transpose_B=True)
            T.copy(c2, C[by * 8, 0])

    assert conditions(main) == ["m <= 1", "m <= 4"] * 2  # of short sums
    kernel = runtime.load(compile(main, here("avx2"), store=artifacts))
    for rows in (1, 8, 20):
        a, b, d = whole_numbers((rows, 64), (32, 64), (32, 32))
        h, c = (np.full((rows, 32), np.nan, np.float32) for _ in range(2))
        kernel(a, b, d, h, c)
        np.testing.assert_array_equal(h, a @ b.T)
        np.testing.assert_array_equal(c, (a @ b.T) @ d.T)
