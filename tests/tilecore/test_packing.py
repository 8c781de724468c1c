"""Weights stored (N, K) packed into panels by transposed blocks, in runs of cache lines."""

import numpy as np
import pytest

import tilecore.language as T
from tests.guarded_memory import Guarded
from tests.tilecore.test_narrow_gemm import product
from tilecore import runtime
from tilecore.artifact import ArtifactStore
from tilecore.compiler import compile


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return ArtifactStore(tmp_path_factory.mktemp("artifacts"))


@pytest.mark.few(1)
@pytest.mark.covering("micro_n dtype", "dtype is_open")
@pytest.mark.parametrize("micro_n", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("is_open", [False, True], ids=["static", "dynamic"])
def test_blocks_of_any_depth(store, micro_n, dtype, is_open):
    """Depths below, at and beyond one run, with a rest of lines, of a block and of elements."""
    rng, accum = np.random.default_rng(), "int32" if dtype == "int8" else "float32"
    depths, block = (3, 16, 255, 256, 272, 523, 1200), (5, 100, 1200)
    micro = {"micro_n": micro_n, "pack_b": "block"}
    for depth in depths if is_open else depths[1::2]:
        func = product(5, 100, T.dynamic("k") if is_open else depth, dtype, block, trans_b=True)
        a, b = rng.integers(-9, 10, (5, depth)), rng.integers(-9, 10, (100, depth))
        out = np.full((5, 100), 7, accum)
        kind = func.params[0].dtype.numpy
        runtime.load(compile(func, "avx2", micro, store))(a.astype(kind), b.astype(kind), out)
        np.testing.assert_array_equal(out, a @ b.T)  # sums of small integers are exact


@pytest.mark.few(1)
@pytest.mark.covering("part trans_b", "dtype trans_b")
@pytest.mark.parametrize("part", [8, 16, 17])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize("trans_b", [False, True])
def test_panels_that_several_copies_fill(store, part, dtype, trans_b):
    """Once each copy of a part packed the whole tile, from beyond the end of what it copies."""
    accum = "int32" if dtype == "int8" else "float32"
    columns = 3 * part

    @T.prim_func
    def main(
        A: T.Tensor((16, 32), dtype),
        B: T.Tensor((3, part, 32) if trans_b else (3, 32, part), dtype),
        C: T.Tensor((16, columns), accum),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((16, 32), dtype)
            b = T.alloc_shared((columns, 32) if trans_b else (32, columns), dtype)
            c = T.alloc_fragment((16, columns), accum)
            T.copy(A, a)
            for q in T.serial(3):
                if trans_b:
                    T.copy(B[q, :, :], b[q * part : (q + 1) * part, :])
                else:
                    T.copy(B[q, :, :], b[:, q * part : (q + 1) * part])
            T.gemm(a, b, c, transpose_B=trans_b, clear_accum=True)
            T.copy(c, C)

    rng, kind = np.random.default_rng(), main.params[0].dtype.numpy
    a, b = rng.integers(-9, 10, (16, 32)), rng.integers(-9, 10, main.params[1].static_shape)
    out = np.full((16, columns), 7, accum)
    runtime.load(compile(main, store=store))(a.astype(kind), b.astype(kind), out)
    rows = b.reshape(columns, 32).T if trans_b else b.transpose(1, 0, 2).reshape(32, columns)
    np.testing.assert_array_equal(out, a @ rows)


@pytest.mark.parametrize("batches", ["all", "seven"])
@pytest.mark.parametrize("length", [64, 65, 100, 127])
def test_tiles_are_packed_of_what_there_is(store, batches, length):
    """There may be more batches than there are; memory ends where they do."""
    batch = 5
    n, b = T.dynamic("n"), T.dynamic("b")

    @T.prim_func
    def main(Q: T.Tensor((b, n, 16), "float32"), K: T.Tensor((b, n, 16), "float32"),
             S: T.Tensor((b, n, n), "float32")):  # fmt: skip
        T.assume(n >= 64)
        T.assume(n < 128)
        T.assume(b >= 4)
        T.assume(b < 8)
        with T.Kernel(T.ceildiv(n, 32), b if batches == "all" else 7, threads=128) as (bx, bz):
            q = T.alloc_shared((32, 16), "float32")
            k = T.alloc_shared((48, 16), "float32")
            s = T.alloc_fragment((32, 48), "float32")
            T.copy(Q[bz, bx * 32, 0], q)
            for j in T.Pipelined(T.ceildiv(n, 48), num_stages=2):
                T.copy(K[bz, j * 48, 0], k)
                T.clear(s)
                T.gemm(q, k, s, transpose_B=True)
                T.copy(s, S[bz, bx * 32, j * 48])

    rng = np.random.default_rng()
    artifact = compile(main, "avx2", {}, store)
    is_once = any("up to 21 tiles packed once" in note for note in artifact.manifest.notes)
    assert is_once == (batches == "all")
    shape = (batch, length, 16)
    memory = [Guarded(batch * length * 16 * 4, at_end=True) for _ in range(2)]
    q, k = (m.bytes.view(np.float32).reshape(shape) for m in memory)
    q[:], k[:] = rng.standard_normal(shape), rng.standard_normal(shape)
    found = np.zeros((batch, length, length), np.float32)
    runtime.load(artifact)(q, k, found)
    np.testing.assert_allclose(found, q @ k.transpose(0, 2, 1), rtol=1e-5, atol=1e-5)
