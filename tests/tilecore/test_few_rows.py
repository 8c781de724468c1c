"""T.gemm of few rows, whose vector operand is read in place: both forms, all edges."""

import numpy as np
import pytest
import torch

import tilecore.language as T
from tests.tilecore.products import product
from tests.tilecore.x86_paths import here, paths
from tilecore import runtime
from tilecore.compiler import compile, lower
from tilecore.interpreter import run
from tilecore.ir.dtype import DType
from tilecore.target import parse_target
from workers.correctness import tolerance

pytestmark = pytest.mark.few(1)  # a case takes long

PATHS = paths("avx2", "avx512", "avx512+avx512_bf16")
SHAPES = [(1, 40, 100), (3, 33, 64), (7, 130, 77), (13, 5, 3), (16, 64, 300), (1, 1, 1)]


def operands(m, n, k, dtype, trans_b, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((m, k), (n, k) if trans_b else (k, n))
    return [rng.standard_normal(s, dtype=np.float32).astype(DType(dtype).numpy) for s in shapes]


def wanted(a, b, trans_b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    return a @ (b.T if trans_b else b)


def checked(artifact, a, b, trans_b, out="float32"):
    expected = wanted(a, b, trans_b)
    found = np.full(expected.shape, np.nan).astype(DType(out).numpy)
    runtime.load(artifact)(a, b, found)
    rtol, atol = tolerance(out, "float32", a.shape[1])
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=rtol, atol=atol)


def is_in_place(artifact):
    return any("few rows: b is read in place" in note for note in artifact.manifest.notes)


@pytest.mark.covering("dtype trans_b", "trans_b shape")
@pytest.mark.parametrize("pack_a", ["none", "block"])
@pytest.mark.parametrize("trans_b", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ragged_shapes(artifacts, path, dtype, trans_b, pack_a, shape):
    m, n, k = shape
    depth = 48 if m <= 4 else 272  # of more rows the sums of lanes would take too long
    func = product(m, n, k, dtype, (16, 32, depth), trans_b)
    artifact = compile(func, here(path), {"pack_a": pack_a}, artifacts)
    fits = m <= parse_target(path).vector_registers // 2  # the sums of a vector of columns
    assert is_in_place(artifact) == (trans_b or fits)
    checked(artifact, *operands(m, n, k, dtype, trans_b), trans_b)


@pytest.mark.covering("clear trans_b", "out block")
@pytest.mark.parametrize("trans_b", [True, False])
@pytest.mark.parametrize("out", ["bfloat16", "float32"])
@pytest.mark.parametrize("clear", [True, False])
@pytest.mark.parametrize("block", [(4, 32, 16), (3, 40, 200), (16, 20, 33)])
def test_sums_in_a_tile_and_in_the_output(artifacts, clear, out, trans_b, block):
    func = product(3, 75, 100, "float32", block, trans_b, out, clear)
    artifact = compile(func, store=artifacts)
    assert is_in_place(artifact)
    checked(artifact, *operands(3, 75, 100, "float32", trans_b), trans_b, out)


@pytest.mark.parametrize("trans_b", [True, False])
def test_the_oracle_agrees(run_both, trans_b):
    a, b = operands(4, 37, 50, "float32", trans_b)
    func = product(4, 37, 50, "float32", trans_b=trans_b)
    run_both(func, [a, b], [np.full((4, 37), np.nan, np.float32)], [wanted(a, b, trans_b)])


@pytest.mark.parametrize("trans_b", [True, False])
def test_rows_known_at_run_time(artifacts, trans_b):
    m = T.dynamic("m")
    k, n = T.dynamic("k"), T.dynamic("n")
    for func in (product(m, 70, 90, "float32", trans_b=trans_b),
                 product(4, n, k, "float32", trans_b=trans_b)):  # fmt: skip
        artifact = compile(func, store=artifacts)
        checked(artifact, *operands(4, 70, 90, "float32", trans_b), trans_b)


@pytest.mark.parametrize("trans_b", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operands_at_any_address(artifacts, dtype, trans_b):
    func = product(2, 50, 70, str(dtype).removeprefix("torch."), trans_b=trans_b)
    kernel = runtime.load(compile(func, store=artifacts))
    shape = (50, 70) if trans_b else (70, 50)
    for shift in (1, 3):
        a = torch.randn(2 * 70 + shift)[shift:].to(dtype).reshape(2, 70)
        b = torch.randn(50 * 70 + shift).to(dtype)[shift:].reshape(shape)
        c = torch.full((2 * 50 + shift,), torch.nan)[shift:].reshape(2, 50)
        kernel(a, b, c)
        expected = a.double() @ (b.double().T if trans_b else b.double())
        torch.testing.assert_close(c.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("trans_b", [True, False])
def test_nothing_is_read_beyond_the_end(artifacts, trans_b):
    """What lies behind the operands is NaN: it may not reach a sum."""
    m, n, k = 3, 21, 19
    a, b = operands(m, n, k, "float32", trans_b)
    padded = [np.full(x.size + 64, np.nan, np.float32) for x in (a, b)]
    for space, x in zip(padded, (a, b), strict=True):
        space[: x.size] = x.ravel()
    views = [s[: x.size].reshape(x.shape) for s, x in zip(padded, (a, b), strict=True)]
    checked(compile(product(m, n, k, "float32", trans_b=trans_b), store=artifacts), *views, trans_b)


@pytest.mark.parametrize("trans_b", [True, False])
def test_nan_and_infinity_stay_in_their_row(artifacts, trans_b):
    a, b = operands(3, 33, 40, "float32", trans_b)
    a[0, 5], a[1, 39] = np.inf, np.nan
    func = product(3, 33, 40, "float32", trans_b=trans_b)
    found, oracle = (np.zeros((3, 33), np.float32) for _ in range(2))
    runtime.load(compile(func, store=artifacts))(a, b, found)
    run(func, a, b, oracle)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(oracle))
    assert np.isinf(found[0]).all()
    np.testing.assert_allclose(found[2], oracle[2], rtol=1e-4, atol=1e-5)


def test_what_many_rows_or_blocks_use_is_packed(artifacts):
    for shape, block in (
        ((64, 64, 64), (64, 32, 32)),
        ((64, 64, 64), (16, 32, 32)),
        ((16, 64, 64), (16, 32, 32)),  # sums across lanes would take longer than products
    ):
        assert not is_in_place(compile(product(*shape, "float32", block), store=artifacts))
    forced = compile(product(4, 64, 64, "float32"), config={"pack_b": "block"}, store=artifacts)
    assert not is_in_place(forced)


@pytest.mark.parametrize("where", ["branch", "loop", "while"])
def test_a_tile_under_a_condition(artifacts, where):
    """Read in place only where no iteration can find what an earlier one copied."""

    @T.prim_func
    def main(
        A: T.Tensor((4, 64), "float32"), B: T.Tensor((3, 48, 64), "float32"),
        On: T.Tensor((3,), "int32"), C: T.Tensor((3, 4, 48), "float32"),
    ):  # fmt: skip
        with T.Kernel(1):
            a = T.alloc_shared((4, 64), "float32")
            b = T.alloc_shared((48, 64), "float32")
            c = T.alloc_fragment((4, 48), "float32")
            T.copy(A, a)
            if where == "branch":
                if On[0] > 0:
                    T.copy(B[1, 0, 0], b)
                    T.gemm(a, b, c, transpose_B=True, clear_accum=True)
                    T.copy(c, C[1, 0, 0])
            elif where == "loop":
                for e in T.serial(3):
                    if On[e] > 0:
                        T.copy(B[e, 0, 0], b)
                    T.gemm(a, b, c, transpose_B=True, clear_accum=True)
                    T.copy(c, C[e, 0, 0])
            else:
                e = T.alloc_var("int32", init=0)
                while e < 3:
                    if On[e] > 0:
                        T.copy(B[e, 0, 0], b)
                    T.gemm(a, b, c, transpose_B=True, clear_accum=True)
                    T.copy(c, C[e, 0, 0])
                    e += 1

    rng = np.random.default_rng()
    a, b = (rng.standard_normal(s, dtype=np.float32) for s in ((4, 64), (3, 48, 64)))
    on, out = np.array([1, 0, 1], np.int32), np.zeros((3, 4, 48), np.float32)
    artifact = compile(main, store=artifacts)
    assert ("read in place from B" in "\n".join(artifact.manifest.notes)) == (where == "branch")
    runtime.load(artifact)(a, b, on, out)
    used = [None, 1, None] if where == "branch" else [0, 0, 2]
    for e, matrix in enumerate(used):
        want = np.zeros((4, 48)) if matrix is None else a.astype(np.float64) @ b[matrix].T
        np.testing.assert_allclose(out[e], want, atol=1e-4)


def test_a_tile_that_two_products_read(artifacts):
    """Both read b in place, or none does: here one of them takes only a part."""

    @T.prim_func
    def main(
        A: T.Tensor((4, 32), "float32"), B: T.Tensor((64, 32), "float32"),
        C: T.Tensor((4, 64), "float32"), D: T.Tensor((4, 64), "float32"),
    ):  # fmt: skip
        with T.Kernel(2) as bx:
            a = T.alloc_shared((4, 32), "float32")
            twice = T.alloc_shared((4, 32), "float32")
            b = T.alloc_shared((32, 32), "float32")
            c = T.alloc_fragment((4, 32), "float32")
            d = T.alloc_fragment((4, 32), "float32")
            T.copy(A, a)
            T.copy(B[bx * 32, 0], b)
            for i, j in T.Parallel(4, 32):
                twice[i, j] = a[i, j] * 2
            T.clear(d)
            T.gemm(a, b, c, transpose_B=True, clear_accum=True)
            T.gemm(twice, b, d, transpose_B=True)
            T.copy(c, C[0, bx * 32])
            T.copy(d, D[0, bx * 32])

    a, b = operands(4, 64, 32, "float32", True)
    c, d = np.zeros((4, 64), np.float32), np.zeros((4, 64), np.float32)
    artifact = compile(main, store=artifacts)
    assert is_in_place(artifact)
    runtime.load(artifact)(a, b, c, d)
    np.testing.assert_allclose(c, wanted(a, b, True), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(d, 2 * wanted(a, b, True), rtol=1e-4, atol=1e-4)


def test_tiles_of_amx_take_more_rows_of_bfloat16():
    target = parse_target("avx512+amx_bf16+amx_tile")
    for trans_b in (True, False):
        for rows, is_left in ((4, True), (16, False)):
            func = product(rows, 64, 512, "bfloat16", (16, 32, 512), trans_b)
            plan, _ = lower(func, target, {})
            assert ("few rows" in plan.explain()) == is_left


@pytest.mark.parametrize("first", ["rows", "columns"])
@pytest.mark.parametrize("path", PATHS)
def test_one_operand_by_rows_and_by_columns(artifacts, path, first):
    """Pairs lie along K of one product and across K of the other, which reads a transposed."""

    @T.prim_func
    def main(
        A: T.Tensor((4, 64), "bfloat16"), B: T.Tensor((32, 64), "bfloat16"),
        D: T.Tensor((4, 32), "bfloat16"),
        C: T.Tensor((4, 32), "float32"), E: T.Tensor((64, 32), "float32"),
    ):  # fmt: skip
        with T.Kernel(1):
            a = T.alloc_shared((4, 64), "bfloat16")
            b = T.alloc_shared((32, 64), "bfloat16")
            d = T.alloc_shared((4, 32), "bfloat16")
            c = T.alloc_fragment((4, 32), "float32")
            e = T.alloc_fragment((64, 32), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.copy(D, d)
            if first == "rows":
                T.gemm(a, b, c, transpose_B=True, clear_accum=True)
            T.gemm(a, d, e, transpose_A=True, clear_accum=True)
            if first == "columns":
                T.gemm(a, b, c, transpose_B=True, clear_accum=True)
            T.copy(c, C)
            T.copy(e, E)

    a, b = operands(4, 32, 64, "bfloat16", True)
    _, d = operands(4, 4, 32, "bfloat16", True, seed=1)
    c, e = np.full((4, 32), np.nan, np.float32), np.full((64, 32), np.nan, np.float32)
    artifact = compile(main, here(path), store=artifacts)
    assert is_in_place(artifact)
    runtime.load(artifact)(a, b, d, c, e)
    np.testing.assert_allclose(c, wanted(a, b, True), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(e, wanted(a.T, d, False), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("least", "most", "versions"),
    [(0, 1000, ["m <= 1", "m <= 16"]), (2, 1000, ["m <= 16"]), (17, 1000, []), (2, 8, [""]),
     (3, 16, [""])],
)  # fmt: skip
def test_versions_of_a_dynamic_number_of_rows_are_those_that_can_be(least, most, versions):
    rows = T.dynamic("m")

    @T.prim_func
    def main(
        A: T.Tensor((rows, 64), "float32"),
        B: T.Tensor((64, 96), "float32"),
        C: T.Tensor((rows, 96), "float32"),
    ):
        T.assume(rows >= least)
        T.assume(rows <= most)
        with T.Kernel(T.ceildiv(96, 48), T.ceildiv(rows, 32), threads=64) as (bx, by):
            a = T.alloc_shared((32, 64), "float32")
            b = T.alloc_shared((64, 48), "float32")
            c = T.alloc_fragment((32, 48), "float32")
            T.clear(c)
            T.copy(A[by * 32, 0], a)
            T.copy(B[0, bx * 48], b)
            T.gemm(a, b, c)
            T.copy(c, C[by * 32, bx * 48])

    artifact = compile(main, here("avx512"))
    found = [n for n in artifact.manifest.notes if "few rows: b is read in place" in n]
    assert [n.partition(": ")[0] if n.startswith("m <=") else "" for n in found] == versions
    for m in {least, min(most, least + 9), min(most, 40)} - {0}:
        checked(artifact, *operands(m, 96, 64, "float32", False), False)
