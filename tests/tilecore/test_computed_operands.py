"""T.gemm of few rows that computes its vector operand in registers, and when it must not."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.x86_paths import here, paths
from tilecore import kernels, runtime
from tilecore.compiler import compile
from tilecore.interpreter import run
from tilecore.ir.dtype import DType

pytestmark = pytest.mark.few(1)  # a case takes long

PATHS = paths("avx512+avx512_bf16", "avx512", "avx2", "avx512+amx_bf16+amx_tile")
PAIRS = "avx512+avx512_bf16"
BFLOAT = DType("bfloat16").numpy
VALUES = {
    "cast": lambda W, k, n: T.cast(W[k, n], "bfloat16"),
    "scaled": lambda W, k, n: T.cast(T.cast(W[k, n], "float32") * 0.37, "bfloat16"),
    "words": lambda W, k, n: T.cast((W[k // 8, n] >> (4 * (k % 8))) & 15, "bfloat16"),
    "erf": lambda W, k, n: T.cast(T.erf(T.cast(W[k, n], "float32") * 0.01), "bfloat16"),
    "by rows": lambda W, k, n: T.cast(W[k, n] * k - n, "bfloat16"),
}


def product(value, m, n, k, tile=(32, 32), block=None, clear=False):
    """Return a product of m rows whose vector operand is ``value(W, k, n)``."""
    (depth, width), rows = tile, block or m

    @T.prim_func
    def main(
        A: T.Tensor((m, k), "bfloat16"), W: T.Tensor((k, n), "int32"),
        C: T.Tensor((m, n), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(n, width), T.ceildiv(m, rows), threads=128) as (bx, by):
            a = T.alloc_shared((rows, depth), "bfloat16")
            b = T.alloc_shared((depth, width), "bfloat16")
            c = T.alloc_fragment((rows, width), "float32")
            if not clear:
                T.clear(c)
            for ko in T.serial(T.ceildiv(k, depth)):
                T.copy(A[by * rows, ko * depth], a)
                for i, j in T.Parallel(depth, width):
                    b[i, j] = value(W, ko * depth + i, bx * width + j)
                if clear:
                    T.gemm(a, b, c, clear_accum=ko == 0)
                else:
                    T.gemm(a, b, c)
            T.copy(c, C[by * rows, bx * width])

    return main


def operands(m, n, k, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((m, k), np.float32).astype(BFLOAT)
    return a, rng.integers(-(2**7), 2**7, (k, n)).astype(np.int32)


def same_as_the_oracle(func, artifacts, shape, inputs, path=PAIRS, **knobs):
    """Run a program and the interpreter, compare, and return the notes of the artifact."""
    artifact = compile(func, here(path), knobs, artifacts)
    found, oracle = np.full(shape, np.nan, np.float32), np.zeros(shape, np.float32)
    runtime.load(artifact)(*inputs, found)
    run(func, *inputs, oracle)
    np.testing.assert_allclose(found, oracle, rtol=1e-4, atol=5e-3)
    return artifact.manifest.notes


def is_computed(notes):
    return any("b is computed in registers" in note for note in notes)


@pytest.mark.covering
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 96, 64), (3, 70, 50), (7, 33, 31), (13, 64, 40)])
def test_values_and_edges(path, value, m, n, k, artifacts):
    func = product(VALUES[value], m, n, k)
    notes = same_as_the_oracle(func, artifacts, (m, n), operands(m, n, k), path)
    assert is_computed(notes) == (path == PAIRS)


@pytest.mark.covering
@pytest.mark.parametrize("tile", [(2, 16), (6, 48), (8, 80), (24, 128), (64, 16)])
@pytest.mark.parametrize("m", [1, 4, 6])
def test_tiles_of_whole_pairs_and_vectors(tile, m, artifacts):
    func = product(VALUES["words"], m, 150, 100, tile)
    notes = same_as_the_oracle(func, artifacts, (m, 150), operands(m, 150, 100))
    assert is_computed(notes)


@pytest.mark.parametrize("tile", [(3, 32), (32, 24)])
def test_other_tiles_are_stored(tile, artifacts):
    func = product(VALUES["words"], 2, 100, 64, tile)
    notes = same_as_the_oracle(func, artifacts, (2, 100), operands(2, 100, 64))
    assert not is_computed(notes)


@pytest.mark.parametrize(("m", "block", "computed"), [
    (1, 64, True), (5, 64, True), (13, 16, True), (14, 16, False), (20, 4, True), (30, 16, False),
])  # fmt: skip
def test_rows_inside_the_tensor_count(m, block, computed, artifacts):
    func = product(VALUES["cast"], m, 64, 64, block=block)
    notes = same_as_the_oracle(func, artifacts, (m, 64), operands(m, 64, 64))
    assert is_computed(notes) == computed


@pytest.mark.parametrize("clear", [False, True])
def test_sums_may_begin_with_the_first_step(clear, artifacts):
    func = product(VALUES["scaled"], 4, 64, 96, clear=clear)
    notes = same_as_the_oracle(func, artifacts, (4, 64), operands(4, 64, 96))
    assert is_computed(notes)


def test_a_config_can_have_it_stored(artifacts):
    func = product(VALUES["words"], 4, 64, 64)
    notes = same_as_the_oracle(func, artifacts, (4, 64), operands(4, 64, 64), pack_b="block")
    assert not is_computed(notes)


@pytest.mark.parametrize(("m", "block", "form", "computed"), [
    (1, 16, "int4", True), (6, 16, "int4", True), (13, 16, "int4", True),
    (13, 16, "float8_e4m3fn", True), (14, 16, "float8_e4m3fn", False),
    (14, 16, "int4", True), (31, 32, "nf4", True), (67, 64, "int4", True), (67, 128, "int4", False),
])  # fmt: skip
def test_decoded_weights_of_the_library_are_not_stored(m, block, form, computed, artifacts):
    """Of many rows, entries of a table are looked up again for every few of them."""
    definition = kernels.get("dequant_gemm")
    fields = {"m": m, "n": 200, "k": 300, "out_dtype": "float32", "format": form}
    problem = definition.parse_problem(fields)
    program = definition.program(problem, {**definition.default_config(), "block_M": block})
    artifact = compile(program, here(PAIRS), {}, artifacts)
    assert is_computed(artifact.manifest.notes) == computed
    inputs = definition.inputs(problem, np.random.default_rng(m))
    found = np.full((m, 200), np.nan, np.float32)
    runtime.load(artifact)(*inputs, found)
    expected = definition.reference(problem, inputs)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.covering
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", [
    "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float4_e2m1fn",
])  # fmt: skip
def test_every_code_of_a_narrow_float_is_widened_without_rounding(name, path, artifacts):
    dtype = DType(name)
    count = 16 if dtype.bits == 4 else 256

    @T.prim_func
    def main(
        A: T.Tensor((2, 2), "bfloat16"), W: T.Tensor((2, count), name),
        C: T.Tensor((2, count), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=32):
            a = T.alloc_shared((2, 2), "bfloat16")
            b = T.alloc_shared((2, count), "bfloat16")
            c = T.alloc_fragment((2, count), "float32")
            T.copy(A, a)
            for i, j in T.Parallel(2, count):
                b[i, j] = T.cast(W[i, j], "bfloat16")
            T.gemm(a, b, c, clear_accum=True)
            T.copy(c, C)

    a = np.eye(2, dtype=np.float32).astype(BFLOAT)
    codes = np.arange(count, dtype=np.uint8)
    if count == 16:
        values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
        wanted = np.concatenate([values, -values])
        w = np.stack([row[::2] | row[1::2] << 4 for row in (codes, codes[::-1])])
    else:
        wanted = codes.view(dtype.numpy).astype(np.float32)
        w = np.stack([codes, codes[::-1]]).view(dtype.numpy)
    found = np.full((2, count), np.nan, np.float32)
    runtime.load(compile(main, here(path), {}, artifacts))(a, w, found)
    finite = np.isfinite(wanted)
    sound = finite & finite[::-1]  # 0 times infinity is none
    np.testing.assert_array_equal(found[0][sound], wanted[sound])
    np.testing.assert_array_equal(found[1][sound], wanted[::-1][sound])
    assert np.isnan(found[:, ~sound]).all() or np.isinf(wanted).any()


# --- where the nest has to run before the gemm ----------------------------------------------------


def in_order(body):
    """Return a program of one block: ``body(A, W, C, a, w, b, c)`` on tiles of 4, 32 and 32."""

    @T.prim_func
    def main(
        A: T.Tensor((4, 32), "bfloat16"), W: T.Tensor((64, 32), "float32"),
        C: T.Tensor((4, 32), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128) as _:
            a = T.alloc_shared((4, 32), "bfloat16")
            w = T.alloc_shared((32, 32), "float32")
            b = T.alloc_shared((32, 32), "bfloat16")
            c = T.alloc_fragment((4, 32), "float32")
            T.copy(A, a)
            T.copy(W[0, 0], w)
            T.clear(c)
            body(A, W, C, a, w, b, c)

    return main


@T.macro
def rounded(w, b):
    for i, j in T.Parallel(32, 32):
        b[i, j] = T.cast(w[i, j] * 2.0, "bfloat16")


@T.macro
def other_weights_come(A, W, C, a, w, b, c):
    rounded(w, b)
    T.copy(W[32, 0], w)
    T.gemm(a, b, c)
    T.copy(c, C)


@T.macro
def two_products(A, W, C, a, w, b, c):
    rounded(w, b)
    T.gemm(a, b, c)
    T.gemm(a, b, c)
    T.copy(c, C)


@T.macro
def read_again(A, W, C, a, w, b, c):
    rounded(w, b)
    T.gemm(a, b, c)
    for i, j in T.Parallel(4, 32):
        C[i, j] = c[i, j] + T.cast(b[i, j], "float32")


@T.macro
def used_in_a_loop(A, W, C, a, w, b, c):
    rounded(w, b)
    for _ in T.serial(3):
        T.gemm(a, b, c)
    T.copy(c, C)


@T.macro
def made_of_the_sums(A, W, C, a, w, b, c):
    for i, j in T.Parallel(4, 32):
        c[i, j] = w[i, j]
    for i, j in T.Parallel(32, 32):
        b[i, j] = T.cast(c[i % 4, j], "bfloat16")
    T.gemm(a, b, c)
    T.copy(c, C)


@T.macro
def cleared_before(A, W, C, a, w, b, c):
    T.clear(b)
    for i, j in T.Parallel(32, 32):
        b[i, j] = T.cast(w[i, j] * 2.0, "bfloat16")
    T.gemm(a, b, c)
    T.copy(c, C)


@T.macro
def made_of_the_output(A, W, C, a, w, b, c):
    for i, j in T.Parallel(4, 32):
        C[i, j] = w[i, j]
    for i, j in T.Parallel(32, 32):
        b[i, j] = T.cast(C[i % 4, j], "bfloat16")
    T.gemm(a, b, c)
    T.copy(c, C)


BODIES = {
    "other weights come": other_weights_come,
    "two products": two_products,
    "read again": read_again,
    "used in a loop": used_in_a_loop,
    "made of the sums": made_of_the_sums,
    "cleared before": cleared_before,
    "made of the output": made_of_the_output,
}


@pytest.mark.parametrize("name", BODIES)
def test_an_operand_is_stored(name, artifacts):
    func = in_order(BODIES[name])
    rng = np.random.default_rng(1)
    a = rng.standard_normal((4, 32), np.float32).astype(BFLOAT)
    w = rng.integers(-8, 8, (64, 32)).astype(np.float32)
    notes = same_as_the_oracle(func, artifacts, (4, 32), (a, w))
    assert not is_computed(notes)
