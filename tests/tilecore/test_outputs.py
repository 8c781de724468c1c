"""Accumulators that are copied out: by the last step of their gemm, or never kept at all."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.x86_paths import TILES, here, paths
from tilecore import runtime
from tilecore.artifact import ArtifactStore
from tilecore.compiler import compile
from tilecore.interpreter import run
from tilecore.ir.dtype import DType
from workers.correctness import tolerance

pytestmark = pytest.mark.few(1)  # a case takes long

PATHS = paths("avx2", "avx512", TILES)
LATE, NOW = "copied to the output by its last step", "accumulated in the output itself"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return ArtifactStore(tmp_path_factory.mktemp("artifacts"))


def product(m, n, k, dtype, out, block_k, extra=None):
    """A product with blocks of 32 x 48; ``extra`` changes what happens to the sums."""

    @T.prim_func
    def main(A: T.Tensor((m, k), dtype), B: T.Tensor((k, n), dtype), C: T.Tensor((m, n), out)):
        with T.Kernel(T.ceildiv(n, 48), T.ceildiv(m, 32), threads=128) as (bx, by):
            a = T.alloc_shared((32, block_k), dtype)
            b = T.alloc_shared((block_k, 48), dtype)
            c = T.alloc_fragment((32, 48), "float32")
            T.clear(c)
            for ko in T.Pipelined(T.ceildiv(k, block_k), num_stages=2):
                T.copy(A[by * 32, ko * block_k], a)
                T.copy(B[ko * block_k, bx * 48], b)
                T.gemm(a, b, c)
            if extra == "scaled":
                for i, j in T.Parallel(32, 48):
                    c[i, j] = c[i, j] * 2
            T.copy(c, C[by * 32, bx * 48])
            if extra == "read":
                for i, j in T.Parallel(32, 48):
                    c[i, j] = c[i, j] + 1

    return main


def check(func, path, store, m, n, k, dtype, out, factor=1):
    """Compare with float64 and the interpreter; return what was inferred."""
    rng = np.random.default_rng(m)
    a, b = (
        rng.standard_normal(s, dtype=np.float32).astype(DType(dtype).numpy)
        for s in ((m, k), (k, n))
    )
    artifact = compile(func, here(path), store=store)
    # an output that is not aligned, and whose neighbours must stay
    room = np.full(m * n + 3, np.nan, np.float32).astype(DType(out).numpy)
    found = room[1 : m * n + 1].reshape(m, n)
    runtime.load(artifact)(a, b, found)
    assert np.isnan(room[[0, -2, -1]].astype(np.float32)).all()
    rtol, atol = tolerance(out, "float32", k)
    wanted = a.astype(np.float64) @ b.astype(np.float64) * factor
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=rtol, atol=2 * atol)
    oracle = np.zeros((m, n), DType(out).numpy)
    run(func, a, b, oracle, seed=1)
    np.testing.assert_allclose(
        found.astype(np.float64), oracle.astype(np.float64), rtol=rtol, atol=2 * atol
    )
    return "\n".join(artifact.manifest.notes)


@pytest.mark.covering
@pytest.mark.parametrize("shape", [(64, 96, 80), (70, 101, 77), (1, 1, 70), (33, 49, 65)])
@pytest.mark.parametrize(
    ("dtype", "out"), [("bfloat16", "bfloat16"), ("float32", "float16"), ("bfloat16", "float32")]
)
@pytest.mark.parametrize("path", PATHS)
def test_the_last_of_several_steps_writes(store, path, dtype, out, shape):
    notes = check(product(*shape, dtype, out, 32), path, store, *shape, dtype, out)
    if "few rows" in notes:  # which are summed up in their own type
        assert LATE not in notes
        return
    assert (LATE in notes) == (out != "float32" or path == TILES)
    assert (NOW in notes) == (LATE not in notes)


@pytest.mark.parametrize("out", ["bfloat16", "float32"])
@pytest.mark.parametrize("path", PATHS)
def test_sums_of_one_step_are_not_kept(store, path, out):
    notes = check(
        product(70, 101, 64, "bfloat16", out, 64), path, store, 70, 101, 64, "bfloat16", out
    )
    assert NOW in notes


@pytest.mark.few(1)
@pytest.mark.parametrize("path", PATHS)
def test_sums_that_are_used_otherwise_are_kept(store, path):
    func = product(70, 101, 77, "bfloat16", "bfloat16", 32, "scaled")
    notes = check(func, path, store, 70, 101, 77, "bfloat16", "bfloat16", factor=2)
    assert LATE not in notes
    assert NOW not in notes
    func = product(70, 101, 77, "bfloat16", "bfloat16", 32, "read")
    assert LATE not in check(func, path, store, 70, 101, 77, "bfloat16", "bfloat16")


@pytest.mark.few(1)
@pytest.mark.parametrize("path", PATHS)
def test_steps_counted_at_run_time(store, path):
    func = product(T.dynamic("m"), T.dynamic("n"), T.dynamic("k"), "bfloat16", "bfloat16", 32)
    for shape in ((64, 96, 80), (5, 50, 31)):
        check(func, path, store, *shape, "bfloat16", "bfloat16")


@pytest.mark.parametrize("path", PATHS)
def test_infinities_and_nan_are_written(store, path):
    a, b = np.ones((40, 70), np.float32), np.ones((70, 50), np.float32)
    a[3, 60], a[7, 0], b[2, 9] = np.inf, np.nan, -np.inf
    kind = DType("bfloat16").numpy
    out = np.zeros((40, 50), kind)
    func = product(40, 50, 70, "bfloat16", "bfloat16", 32)
    runtime.load(compile(func, here(path), store=store))(a.astype(kind), b.astype(kind), out)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(out.astype(np.float32), (a @ b))


@pytest.mark.parametrize("path", PATHS)
def test_a_copy_of_bfloat16_keeps_its_bits(store, path):
    @T.prim_func
    def main(A: T.Tensor((64, 1024), "bfloat16"), B: T.Tensor((64, 1024), "bfloat16")):
        with T.Kernel(8, threads=128) as bx:
            tile = T.alloc_shared((8, 1024), "bfloat16")
            T.copy(A[bx * 8, 0], tile)
            T.copy(tile, B[bx * 8, 0])

    bits = np.arange(1 << 16, dtype=np.uint16).reshape(64, 1024)
    out = np.zeros((64, 1024), DType("bfloat16").numpy)
    runtime.load(compile(main, here(path), store=store))(bits.view(out.dtype), out)
    np.testing.assert_array_equal(out.view(np.uint16), bits)
