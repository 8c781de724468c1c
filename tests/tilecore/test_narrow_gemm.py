"""T.gemm of bfloat16 and 8-bit integers: by each instruction of this machine, and the plain way."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.x86_paths import CLIENT, TILES, VECTOR, here, is_native, paths
from tilecore import kernels, runtime
from tilecore.artifact import Artifact, ArtifactStore
from tilecore.compiler import compile
from tilecore.errors import ArtifactError, UnknownTarget
from tilecore.interpreter import run
from tilecore.ir.dtype import DType
from tilecore.target import parse_target, widest_target
from workers.correctness import tolerance

pytestmark = pytest.mark.few(1)  # a case takes long

PATHS = paths("avx2", CLIENT, "avx512", VECTOR, TILES)
INSTRUCTIONS = {
    "avx2": {"int8": "vpmaddwd", "uint8": "vpmaddwd"},
    "avx512": {"int8": "vpmaddwd", "uint8": "vpmaddwd"},
    CLIENT: {"int8": "vpdpbusd", "uint8": "vpdpbusd"},
    VECTOR: {"bfloat16": "vdpbf16ps", "int8": "vpdpbusd", "uint8": "vpdpbusd"},
    TILES: {"bfloat16": "tdpbf16ps", "int8": "tdpbssd", "uint8": "tdpbuud"},
}
SHAPES = [(64, 64, 64), (70, 90, 45), (1, 1, 1), (130, 77, 201)]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return ArtifactStore(tmp_path_factory.mktemp("artifacts"))


def product(m, n, k, dtype, block=(32, 64, 32), trans_a=False, trans_b=False, out=None):
    """A matrix product; extents may be dynamic."""
    accum = "float32" if DType(dtype).is_float else "int32"
    bm, bn, bk = block
    a_shape, a_tile = ((k, m), (bk, bm)) if trans_a else ((m, k), (bm, bk))
    b_shape, b_tile = ((n, k), (bn, bk)) if trans_b else ((k, n), (bk, bn))

    @T.prim_func
    def main(
        A: T.Tensor(a_shape, dtype), B: T.Tensor(b_shape, dtype), C: T.Tensor((m, n), out or accum)
    ):
        with T.Kernel(T.ceildiv(n, bn), T.ceildiv(m, bm), threads=128) as (bx, by):
            a = T.alloc_shared(a_tile, dtype)
            b = T.alloc_shared(b_tile, dtype)
            c = T.alloc_fragment((bm, bn), accum)
            T.clear(c)
            for ko in T.Pipelined(T.ceildiv(k, bk), num_stages=2):
                if trans_a:
                    T.copy(A[ko * bk, by * bm], a)
                else:
                    T.copy(A[by * bm, ko * bk], a)
                if trans_b:
                    T.copy(B[bx * bn, ko * bk], b)
                else:
                    T.copy(B[ko * bk, bx * bn], b)
                T.gemm(a, b, c, transpose_A=trans_a, transpose_B=trans_b)
            T.copy(c, C[by * bm, bx * bn])

    return main


def operand(shape, dtype, seed):
    """Random elements; integers over their whole range, the ends included."""
    rng = np.random.default_rng(seed)
    if DType(dtype).is_float:
        return rng.standard_normal(shape, dtype=np.float32).astype(DType(dtype).numpy)
    ends = np.iinfo(dtype)
    values = rng.integers(ends.min, ends.max + 1, shape).astype(dtype)
    values.flat[:: max(1, values.size // 3)] = ends.min
    return values


def expect(a, b, out, k):
    """Compare with the product in float64 (integers: exactly)."""
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    rtol, atol = tolerance(out.dtype.name, "float32", k) if out.dtype != np.int32 else (0, 0)
    np.testing.assert_allclose(out.astype(np.float64), wanted, rtol=rtol, atol=atol)


def blank(shape, dtype):
    return np.full(shape, np.nan if DType(dtype).is_float else -7).astype(DType(dtype).numpy)


@pytest.mark.covering("dtype trans_a trans_b", "dtype shape")
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "uint8"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_transposition_and_ragged_shapes(store, path, dtype, trans_a, trans_b, shape):
    accum = "float32" if dtype == "bfloat16" else "int32"
    m, n, k = shape
    func = product(m, n, k, dtype, trans_a=trans_a, trans_b=trans_b)
    a = operand((k, m) if trans_a else (m, k), dtype, m)
    b = operand((n, k) if trans_b else (k, n), dtype, n)
    out = blank((m, n), accum)
    knobs = {"pack_b": "block"} if m == 1 else {}  # of one row b would be read in place
    artifact = compile(func, here(path), knobs, store)
    name = INSTRUCTIONS.get(path, {}).get(dtype)
    is_used = any(note.endswith(f"; {name}") for note in artifact.manifest.notes)
    has_columns = trans_a and m < 64  # few, read where they lie: no tile takes columns
    assert is_used == (name is not None and not (path == TILES and has_columns))
    runtime.load(artifact)(a, b, out)
    expect(a.T if trans_a else a, b.T if trans_b else b, out, k)


@pytest.mark.covering("dtype trans_a")
@pytest.mark.parametrize("block", [(40, 48, 33), (17, 16, 7), (128, 80, 130)])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("trans_a", [False, True])
def test_tiles_whose_depth_is_no_multiple_of_a_group(store, path, dtype, block, trans_a):
    accum = "float32" if dtype == "bfloat16" else "int32"
    func = product(50, 70, 140, dtype, block, trans_a, trans_b=not trans_a)
    a = operand((140, 50) if trans_a else (50, 140), dtype, 1)
    b = operand((140, 70) if trans_a else (70, 140), dtype, 2)
    out = blank((50, 70), accum)
    runtime.load(compile(func, here(path), store=store))(a, b, out)
    expect(a.T if trans_a else a, b if trans_a else b.T, out, 140)


@pytest.mark.covering("dtype trans_a shape", "dtype config")
@pytest.mark.parametrize("config", [{}, {"pack_b": "block", "micro_m": 4, "micro_n": 2}])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "uint8"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (33, 50, 40), (14, 15, 13)])
def test_tiles_read_whole_are_zero_beyond_the_tensor(store, path, dtype, trans_a, shape, config):
    m, n, k = shape
    accum = "float32" if dtype == "bfloat16" else "int32"
    a_shape, a_tile = ((k, m), (8, 15)) if trans_a else ((m, k), (15, 8))
    grid = -(-m // 15), -(-n // 20)

    @T.prim_func
    def main(
        A: T.Tensor(a_shape, dtype),
        B: T.Tensor((k, n), dtype),
        C: T.Tensor((*grid, 20, 15), accum),
        D: T.Tensor((*grid, 20), accum),
    ):
        with T.Kernel(*grid, threads=128) as (bx, by):
            a = T.alloc_shared(a_tile, dtype)
            b = T.alloc_shared((8, 20), dtype)
            c = T.alloc_fragment((15, 20), accum)
            turned = T.alloc_shared((20, 15), accum)
            down = T.alloc_fragment((20,), accum)
            T.clear(c)
            for ko in T.Pipelined(T.ceildiv(k, 8), num_stages=2):
                if trans_a:
                    T.copy(A[ko * 8, bx * 15], a)
                else:
                    T.copy(A[bx * 15, ko * 8], a)
                T.copy(B[ko * 8, by * 20], b)
                T.gemm(a, b, c, transpose_A=trans_a)
            T.transpose(c, turned)
            T.reduce_sum(c, down, dim=0)
            T.copy(turned, C[bx, by, 0, 0])
            T.copy(down, D[bx, by, 0])

    a, b = operand(a_shape, dtype, 1), operand((k, n), dtype, 2)
    out, sums = blank((*grid, 20, 15), accum), blank((*grid, 20), accum)
    kernel = runtime.load(compile(main, here(path), config, store))
    for _ in range(2):  # the second time in memory that the first has used
        kernel(a, b, out, sums)
        whole = out.transpose(0, 3, 1, 2).reshape(grid[0] * 15, -1)
        expect(a.T if trans_a else a, b, whole[:m, :n], k)
        assert not whole[m:].any()
        assert not whole[:, n:].any()
        np.testing.assert_allclose(sums, out.sum(-1, dtype=np.float64), rtol=1e-6, atol=1e-5)


@pytest.mark.covering("dtype config")
@pytest.mark.parametrize(
    "config",
    [{"pack_a": "none"}, {"pack_a": "rows"}, {"pack_b": "block", "micro_m": 4, "micro_n": 2}],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("k", [96, 77])
@pytest.mark.parametrize("path", PATHS)
def test_packing_and_register_tiles(store, path, k, dtype, config):
    func = product(61, 100, k, dtype)
    a, b = operand((61, k), dtype, 3), operand((k, 100), dtype, 4)
    out = blank((61, 100), "float32" if dtype == "bfloat16" else "int32")
    runtime.load(compile(func, here(path), config, store))(a, b, out)
    expect(a, b, out, k)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("path", PATHS)
def test_one_kernel_for_every_size(store, path, dtype):
    m, n, k = T.dynamic("m"), T.dynamic("n"), T.dynamic("k")
    func = product(m, n, k, dtype, trans_b=True)
    kernel = runtime.load(compile(func, here(path), store=store))
    for rows, columns, depth in SHAPES:
        a, b = operand((rows, depth), dtype, rows), operand((columns, depth), dtype, columns)
        out = blank((rows, columns), "float32" if dtype == "bfloat16" else "int32")
        expected = out.copy()
        kernel(a, b, out)
        expect(a, b.T, out, depth)
        run(func, a, b, expected, seed=1)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("path", PATHS)
def test_infinities_and_nan_stay_in_their_rows_and_columns(store, path):
    a, b = operand((40, 45), "bfloat16", 5), operand((45, 50), "bfloat16", 6)
    a[3, 44], a[7, 0], b[2, 9] = np.inf, np.nan, -np.inf
    out = blank((40, 50), "float32")
    runtime.load(compile(product(40, 50, 45, "bfloat16"), here(path), store=store))(a, b, out)
    with np.errstate(invalid="ignore"):
        wanted = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(out), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(out), np.isinf(wanted))


@pytest.mark.parametrize("path", PATHS)
def test_sums_of_the_smallest_bytes(store, path):
    for a, b in ((-128, -128), (-128, 127), (127, 127)):
        x, y, out = (
            np.full((20, 300), a, np.int8),
            np.full((300, 20), b, np.int8),
            blank((20, 20), "int32"),
        )
        runtime.load(compile(product(20, 20, 300, "int8"), here(path), store=store))(x, y, out)
        assert (out == 300 * a * b).all()


@pytest.mark.parametrize("path", PATHS)
def test_batches_and_rounding_at_the_end(store, path):
    @T.prim_func
    def main(
        A: T.Tensor((3, 50, 70), "bfloat16"),
        B: T.Tensor((3, 60, 70), "bfloat16"),
        C: T.Tensor((3, 50, 60), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(60, 32), 2, 3, threads=128) as (bx, by, bz):
            a = T.alloc_shared((32, 32), "bfloat16")
            b = T.alloc_shared((32, 32), "bfloat16")
            c = T.alloc_fragment((32, 32), "float32")
            T.clear(c)
            for ko in T.Pipelined(T.ceildiv(70, 32), num_stages=2):
                T.copy(A[bz, by * 32, ko * 32], a)
                T.copy(B[bz, bx * 32, ko * 32], b)
                T.gemm(a, b, c, transpose_B=True)
            for i, j in T.Parallel(32, 32):
                c[i, j] = c[i, j] * 0.5
            T.copy(c, C[bz, by * 32, bx * 32])

    a, b = operand((3, 50, 70), "bfloat16", 7), operand((3, 60, 70), "bfloat16", 8)
    out = blank((3, 50, 60), "bfloat16")
    runtime.load(compile(main, here(path), store=store))(a, b, out)
    wanted = np.einsum("zmk,znk->zmn", a.astype(np.float64), b.astype(np.float64)) * 0.5
    np.testing.assert_allclose(out.astype(np.float64), wanted, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("path", PATHS)
def test_a_computed_tile_is_the_broadcast_operand(store, path):
    @T.prim_func
    def main(
        A: T.Tensor((48, 40), "bfloat16"),
        B: T.Tensor((40, 40), "bfloat16"),
        C: T.Tensor((48, 40), "float32"),
    ):
        with T.Kernel(1, threads=128) as _:
            a = T.alloc_shared((48, 40), "bfloat16")
            b = T.alloc_shared((40, 40), "bfloat16")
            c = T.alloc_fragment((48, 40), "float32")
            half = T.alloc_fragment((48, 40), "bfloat16")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, clear_accum=True)
            for i, j in T.Parallel(48, 40):
                half[i, j] = T.max(c[i, j], 0)
            T.gemm(half, b, c, clear_accum=True)
            T.copy(c, C)

    a, b = operand((48, 40), "bfloat16", 9), operand((40, 40), "bfloat16", 10)
    out = blank((48, 40), "float32")
    runtime.load(compile(main, here(path), store=store))(a, b, out)
    first = np.maximum(a.astype(np.float32) @ b.astype(np.float32), 0).astype(ml_dtypes.bfloat16)
    wanted = first.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(out, wanted, rtol=1e-2, atol=0.3)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("other", ["a nest", "another gemm", "a reduction"])
def test_bytes_that_something_else_reads_too(store, path, other):
    """``vpmaddwd`` wants them widened where they lie; found by a random program."""

    @T.prim_func
    def main(
        A: T.Tensor((48, 96), "int8"), B: T.Tensor((40, 96), "int8"),
        C: T.Tensor((48, 40), "int32"), S: T.Tensor((48,), "int32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128) as _:
            a = T.alloc_shared((48, 32), "int8")
            b = T.alloc_shared((40, 32), "int8")
            c = T.alloc_fragment((48, 40), "int32")
            d = T.alloc_fragment((40, 48), "int32")
            s = T.alloc_fragment((48,), "int32")
            T.clear(c)
            T.clear(d)
            T.clear(s)
            for k in T.serial(3):
                T.copy(A[0, k * 32], a)
                T.copy(B[0, k * 32], b)
                if other == "a nest":
                    for i, j in T.Parallel(48, 32):
                        a[i, j] = T.cast(T.max(T.cast(a[i, j], "int32"), 0), "int8")
                elif other == "another gemm":
                    T.gemm(b, a, d, transpose_B=True)
                else:
                    for i in T.Parallel(48):
                        s[i] += a[i, 3]
                T.gemm(a, b, c, transpose_B=True)
            if other == "another gemm":
                for i in T.Parallel(48):
                    s[i] = d[7, i]
            T.copy(c, C)
            T.copy(s, S)

    a, b = operand((48, 96), "int8", 1), operand((40, 96), "int8", 2)
    out, sums = blank((48, 40), "int32"), blank((48,), "int32")
    runtime.load(compile(main, here(path), store=store))(a, b, out, sums)
    wide = np.maximum(a, 0).astype(int) if other == "a nest" else a.astype(int)
    np.testing.assert_array_equal(out, wide @ b.T.astype(int))
    last = {"a nest": 0 * wide[:, 0], "another gemm": (wide @ b.T.astype(int))[:, 7],
            "a reduction": wide[:, 3::32].sum(1)}  # fmt: skip
    np.testing.assert_array_equal(sums, last[other])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_the_library_multiplies_bytes(store, dtype):
    definition = kernels.get("gemm")
    fields = {"dtype": dtype, "accum_dtype": "int32", "out_dtype": "int32"}
    problem = definition.parse_problem({"m": 70, "n": 50, "k": 90, **fields})
    func = definition.program(problem, definition.default_config())
    inputs = definition.inputs(problem, np.random.default_rng(0))
    out = blank((70, 50), "int32")
    runtime.load(compile(func, store=store))(*inputs, out)
    np.testing.assert_array_equal(out, definition.reference(problem, inputs)[0])


def test_what_keeps_a_gemm_from_the_instruction_is_said(store):
    notes = compile(product(64, 64, 64, "int8"), "avx512", store=store).manifest.notes
    assert any("gemm without vpdpbusd: avx512 lacks avx512_vnni" in note for note in notes)


def test_features_are_recorded_and_asked_for(store):
    artifact = compile(product(64, 64, 64, "int8"), VECTOR, store=store)
    assert artifact.manifest.isa == "avx512+avx512_vnni"
    client = compile(product(64, 64, 64, "int8"), CLIENT, store=store)
    assert client.manifest.isa == CLIENT
    if not is_native(CLIENT):
        with pytest.raises(ArtifactError, match=r"TC401[^\0]*compiled for avx2\+avx_vnni"):
            runtime.load(client)
    assert compile(product(64, 64, 64, "float32"), VECTOR, store=store).manifest.isa == "avx512"
    foreign = replace(artifact.manifest, isa="avx512+amx_unheard")
    with pytest.raises(ArtifactError, match=r"compiled for avx512\+amx_unheard, this machine has"):
        runtime.load(Artifact(artifact.path, foreign))


def test_names_of_targets():
    assert parse_target("avx512").features == frozenset()
    assert parse_target(VECTOR).name == VECTOR
    assert parse_target(VECTOR).runs(parse_target("avx2"))
    assert not parse_target("avx512").runs(parse_target(VECTOR))
    with pytest.raises(UnknownTarget, match="avx512_bf16"):
        parse_target("avx512+avx512_bf15")
    with pytest.raises(UnknownTarget):
        parse_target("avx2+avx512_bf16")


def test_targets_of_flags_as_linux_names_them():
    client = widest_target({"avx2", "fma", "avx_vnni"})
    assert client == parse_target(CLIENT)
    assert client.runs(parse_target("avx2"))
    assert not parse_target("avx2").runs(client)
    assert widest_target({"avx2", "fma", "avx512_vnni"}) == parse_target("avx2")
    avx512 = {"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"}
    server = widest_target(avx512 | {"avx512_vnni", "avx_vnni"})
    assert server.runs(client)
    assert parse_target(server.name) == server


def test_vnni_of_256_bits_is_not_taken_for_512(store):
    func = product(64, 64, 64, "int8")
    both = compile(func, "avx512+avx512_vnni+avx_vnni", store=store)
    assert both.manifest.isa == "avx512+avx512_vnni"
    alone = compile(func, "avx512+avx_vnni", store=store)
    assert alone.manifest.isa == "avx512"
    reason = "avx512+avx_vnni has registers of 64 bytes, avx_vnni takes 32"
    assert any(reason in note for note in alone.manifest.notes)


@pytest.mark.parametrize("n", [64, 77])
@pytest.mark.parametrize("path", paths(VECTOR, TILES))
def test_rounding_by_instruction_is_rounding(store, path, n):
    """Sums go to bfloat16 as float32 sums would be rounded: NaN, infinite, tiny, halfway."""
    a, b = operand((70, 45), "bfloat16", 8), operand((45, n), "bfloat16", 9)
    a[1] *= 2.0**-70
    b[:, 1] *= 2.0**-65  # their sum lies among the subnormal numbers
    a[2, 3], a[3, 4], b[5, 6] = np.nan, np.inf, -np.inf
    a[4:6], b[:, 7:9] = 0, 0
    a[4:6, :2], b[:2, 7:9] = 1, [[1, 3], [2.0**-8, 2.0**-7]]  # 1 + 2^-8 lies halfway
    sums = {}
    for out in ("float32", "bfloat16"):
        sums[out] = blank((70, n), out)
        runtime.load(compile(product(70, n, 45, "bfloat16", out=out), here(path), store=store))(
            a, b, sums[out]
        )
    wanted = sums["float32"].astype(ml_dtypes.bfloat16).astype(np.float64)
    np.testing.assert_array_equal(sums["bfloat16"].astype(np.float64), wanted)
    assert np.isnan(wanted[2]).all()
    assert np.isinf(wanted[3]).any()
    assert wanted[4, 7] == 1
    assert 0 < abs(sums["float32"][1, 2]) < 2.0**-60
