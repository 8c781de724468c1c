"""Products of bytes by vpdpbusd on registers of 256 bits: exact, whatever shapes and forms."""

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.test_narrow_gemm import blank, product
from tests.tilecore.x86_paths import CLIENT, here
from tilecore import runtime
from tilecore.artifact import ArtifactStore
from tilecore.compiler import compile
from tilecore.ir.dtype import DType

pytestmark = pytest.mark.few(1)  # a case takes long

KINDS = ("int8", "uint8")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return ArtifactStore(tmp_path_factory.mktemp("artifacts"))


def compiled(func, store, config=None):
    """Return the kernel of a program all of whose products are by the instruction."""
    artifact = compile(func, here(CLIENT), config or {}, store)
    assert any(note.endswith("; vpdpbusd") for note in artifact.manifest.notes)
    assert artifact.manifest.isa.endswith(CLIENT)
    return runtime.load(artifact)


def any_bytes(shape, dtype):
    """All values, the outermost ones often."""
    rng, limits = np.random.default_rng(), np.iinfo(dtype)
    found = rng.integers(limits.min, limits.max + 1, shape)
    ends = rng.choice([limits.min, limits.max], shape)
    return np.where(rng.random(shape) < 0.3, ends, found).astype(DType(dtype).numpy)


def wanted(a, b):
    return a.astype(np.int64) @ b.astype(np.int64)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(
    ("shape", "trans_a", "trans_b"),
    [((70, 90, 45), False, True), ((33, 17, 201), True, False), ((1, 1, 1), True, True),
     ((130, 77, 128), False, False), ((2, 100, 3), False, True)],
)  # fmt: skip
def test_every_product_is_exact(store, shape, dtype, trans_a, trans_b):
    m, n, k = shape
    a = any_bytes((k, m) if trans_a else (m, k), dtype)
    b = any_bytes((n, k) if trans_b else (k, n), dtype)
    out = blank((m, n), "int32")
    func = product(m, n, k, dtype, trans_a=trans_a, trans_b=trans_b)
    compiled(func, store, {"pack_b": "block"})(a, b, out)
    np.testing.assert_array_equal(out, wanted(a.T if trans_a else a, b.T if trans_b else b))


@pytest.mark.parametrize("dtype", KINDS)
def test_sums_of_outermost_values_over_a_long_reduction(store, dtype):
    limits, k = np.iinfo(dtype), 4099
    kernel = compiled(product(9, 19, k, dtype, (16, 32, 512)), store)
    for x, y in ((limits.min, limits.min), (limits.min, limits.max), (limits.max, limits.max)):
        a, b, out = np.full((9, k), x, dtype), np.full((k, 19), y, dtype), blank((9, 19), "int32")
        kernel(a, b, out)
        assert (out == k * int(x) * int(y)).all()


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("config", [{"micro_m": 4, "micro_n": 3}, {"micro_m": 12, "micro_n": 1},
                                    {"pack_a": "rows"}, {"pack_b": "block"}], ids=str)  # fmt: skip
def test_register_tiles_and_packing(store, dtype, config):
    a, b, out = any_bytes((61, 77), dtype), any_bytes((77, 100), dtype), blank((61, 100), "int32")
    compiled(product(61, 100, 77, dtype, (32, 72, 40)), store, config)(a, b, out)
    np.testing.assert_array_equal(out, wanted(a, b))


def test_one_kernel_for_every_size(store):
    func = product(T.dynamic("m"), T.dynamic("n"), T.dynamic("k"), "int8", trans_b=True)
    kernel = compiled(func, store)
    for m, n, k in np.random.default_rng().integers(1, 150, (6, 3)):
        a, b, out = any_bytes((m, k), "int8"), any_bytes((n, k), "int8"), blank((m, n), "int32")
        kernel(a, b, out)
        np.testing.assert_array_equal(out, wanted(a, b.T))


@pytest.mark.parametrize("dtype", KINDS)
def test_groups_of_rows_with_weights_of_their_own(store, dtype):
    """Experts: block by block the rows of one group times its matrix (N, K)."""
    experts, rows, n, k = 3, 20, 50, 70

    @T.prim_func
    def main(
        A: T.Tensor((4 * rows, k), dtype),
        B: T.Tensor((experts, n, k), dtype),
        expert_of: T.Tensor((4,), "int32"),
        C: T.Tensor((4 * rows, n), "int32"),
    ):
        with T.Kernel(T.ceildiv(n, 32), 4, threads=128) as (bx, by):
            a = T.alloc_shared((rows, 32), dtype)
            b = T.alloc_shared((32, 32), dtype)
            c = T.alloc_fragment((rows, 32), "int32")
            T.clear(c)
            for ko in T.Pipelined(T.ceildiv(k, 32), num_stages=2):
                T.copy(A[by * rows, ko * 32], a)
                T.copy(B[expert_of[by], bx * 32, ko * 32], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[by * rows, bx * 32])

    a, b = any_bytes((4 * rows, k), dtype), any_bytes((experts, n, k), dtype)
    expert_of, out = np.array([2, 0, 0, 1], np.int32), blank((4 * rows, n), "int32")
    compiled(main, store)(a, b, expert_of, out)
    for block, expert in enumerate(expert_of):
        at = slice(block * rows, (block + 1) * rows)
        np.testing.assert_array_equal(out[at], wanted(a[at], b[expert].T))
