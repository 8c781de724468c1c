"""Eight-bit floats against torch: every code, and rounding to nearest even of random floats."""

import ml_dtypes
import numpy as np
import pytest
import torch

import tilecore.language as T
from tests.tilecore.x86_paths import here, paths
from tilecore import runtime
from tilecore.artifact import ArtifactStore
from tilecore.compiler import compile
from tilecore.interpreter import run

NAMES = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return ArtifactStore(tmp_path_factory.mktemp("artifacts"))


def convert(source, target):
    n = T.dynamic("n")

    @T.prim_func
    def main(X: T.Tensor((n,), source), Y: T.Tensor((n,), target)):
        with T.Kernel(T.ceildiv(n, 128)) as b:
            for i in T.Parallel(128):
                Y[b * 128 + i] = T.cast(X[b * 128 + i], target)

    return main


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NAMES)
def test_every_code_has_the_value_torch_gives_it(store, name):
    kernel = runtime.load(compile(convert(name, "float32"), store=store))
    codes = torch.arange(256, dtype=torch.uint8).view(getattr(torch, name))
    found = torch.empty(256)
    kernel(codes, found)
    torch.testing.assert_close(found, codes.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NAMES)
def test_floats_round_as_in_torch(store, name):
    kernel = runtime.load(compile(convert("float32", name), store=store))
    dtype = getattr(torch, name)
    every = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    finite = every[torch.isfinite(every)].sort().values
    ties = (finite[1:].double() + finite[:-1].double()) / 2
    rng = np.random.default_rng(0)
    bits = torch.from_numpy(rng.integers(0, 2**32, 50_000, np.uint32).view(np.float32))
    near = torch.from_numpy(rng.uniform(-600, 600, 20_000).astype(np.float32))
    scales = 2.0 ** torch.from_numpy(rng.integers(-30, 10, 20_000)).float()
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 448, 464, 480, 1e9, -1e9])
    values = torch.cat([bits, near, near * scales, ties.float(), special, finite])
    if name == "float8_e8m0fnu":
        values = values.abs()
    found = torch.empty(len(values), dtype=dtype)
    kernel(values, found)
    got, want = found.float(), values.to(dtype).float()
    wrong = ~((got == want) | (got.isnan() & want.isnan()))
    assert not wrong.any(), (values[wrong][:5], got[wrong][:5], want[wrong][:5])
    zero = want == 0
    assert torch.equal(got[zero].signbit(), want[zero].signbit())


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NAMES[:4])
def test_powers_of_two_become_other_floats(store, name):
    """NumPy knows no such conversion: the oracle raised its TypeError."""
    kernel = runtime.load(compile(convert("float8_e8m0fnu", name), store=store))
    codes = torch.arange(254, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    found, oracle = (np.zeros(254, T.dtype(name).numpy) for _ in range(2))
    given = codes.view(torch.uint8).numpy().view(ml_dtypes.float8_e8m0fnu)
    kernel(given, found)
    run(convert("float8_e8m0fnu", name), given, oracle)
    wanted = codes.float().to(getattr(torch, name)).view(torch.uint8).numpy()
    np.testing.assert_array_equal(found.view(np.uint8), wanted)
    np.testing.assert_array_equal(oracle.view(np.uint8), wanted)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_gemm_of_eight_bit_operands(store, name):
    m = T.dynamic("m")

    @T.prim_func
    def main(A: T.Tensor((m, 64), name), B: T.Tensor((40, 64), name), C: T.Tensor((m, 40), name)):
        with T.Kernel(T.ceildiv(m, 16)) as by:
            a = T.alloc_shared((16, 64), name)
            b = T.alloc_shared((40, 64), name)
            c = T.alloc_fragment((16, 40), "float32")
            T.copy(A[by * 16, 0], a)
            T.copy(B, b)
            T.gemm(a, b, c, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(16, 40):
                c[i, j] = c[i, j] * 0.125
            T.copy(c, C[by * 16, 0])

    dtype = getattr(torch, name)
    kernel = runtime.load(compile(main, store=store))
    for rows in (1, 16, 37):
        a, b = (torch.randn(s).to(dtype) for s in ((rows, 64), (40, 64)))
        c = torch.zeros(rows, 40).to(dtype)
        kernel(a, b, c)
        exact = a.double() @ b.double().T * 0.125
        error = (c.double() - exact).abs() / exact.abs().clamp(min=0.1)
        assert error.max() <= {"float8_e4m3fn": 2**-4, "float8_e5m2": 2**-3}[name] * 1.01


def test_numpy_arrays_and_arithmetic_between_types(store):
    @T.prim_func
    def main(X: T.Tensor((64,), "float8_e4m3fn"), Y: T.Tensor((64,), "float8_e5m2")):
        with T.Kernel(1):
            for i in T.Parallel(64):
                Y[i] = T.cast(T.cast(X[i], "float32") * 2 + 1, "float8_e5m2")

    x = np.random.default_rng(1).standard_normal(64).astype(T.dtype("float8_e4m3fn").numpy)
    y = np.zeros(64, T.dtype("float8_e5m2").numpy)
    runtime.load(compile(main, store=store))(x, y)
    expected = (x.astype(np.float32) * 2 + 1).astype(y.dtype)
    np.testing.assert_array_equal(y.view(np.uint8), expected.view(np.uint8))


def test_tfloat32_is_float32():
    assert T.tfloat32 == T.float32
    assert T.dtype("tfloat32") == "float32"


ENDS = {
    "sum": lambda a, b: a + b,
    "quotient": lambda a, b: a / b,
    "logarithm": lambda a, _: T.log(a),
    "power": lambda a, b: T.pow(a, b),
    "negative": lambda a, _: -a,
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("operation", ENDS)
def test_oracle_and_kernel_agree_on_what_goes_beyond_a_type(store, name, operation):
    """The oracle had NaN where float8_e4m3fn has its largest, as in log(0)."""
    compute = ENDS[operation]

    @T.prim_func
    def main(A: T.Tensor((4096,), name), B: T.Tensor((4096,), name), C: T.Tensor((4096,), name)):
        with T.Kernel(1):
            for i in T.Parallel(4096):
                C[i] = compute(A[i], B[i])

    a, b = np.arange(4096).astype(np.uint8), np.arange(4096, dtype=np.uint32) * 2654435761 >> 13
    kind, b = getattr(ml_dtypes, name), b.astype(np.uint8)
    expected = np.zeros(4096, kind)
    run(main, a.view(kind), b.view(kind), expected)
    found = torch.empty(4096, dtype=torch.uint8)
    shaped = [
        x.view(getattr(torch, name)) for x in (torch.from_numpy(a), torch.from_numpy(b), found)
    ]
    runtime.load(compile(main, store=store))(*shaped)
    got, want = (x.view(kind).astype(np.float32) for x in (found.numpy(), expected))
    np.testing.assert_array_equal(got, want)
    assert np.isfinite(want).any()


@pytest.mark.few(2)
@pytest.mark.parametrize("path", paths("avx2", "avx512"))
@pytest.mark.parametrize("columns", [112, 128, 384])
def test_weights_of_a_block_that_data_chooses(store, path, columns):
    """Vectors of 32 bytes were stored across panels of 16 columns; found by a random program."""

    @T.prim_func
    def main(
        A: T.Tensor((2, 16, 128), "float8_e4m3fn"), B: T.Tensor((2, 128, columns), "float8_e4m3fn"),
        ids: T.Tensor((2,), "int32"), C: T.Tensor((2, 16, columns), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(columns, 128), 2, threads=128) as (bx, by):
            a = T.alloc_shared((16, 64), "float8_e4m3fn")
            b = T.alloc_shared((64, 128), "float8_e4m3fn")
            c = T.alloc_fragment((16, 128), "float32")
            T.clear(c)
            for k in T.serial(2):
                T.copy(A[by, 0, k * 64], a)
                T.copy(B[ids[by], k * 64, bx * 128], b)
                T.gemm(a, b, c)
            T.copy(c, C[by, 0, bx * 128])

    rng = np.random.default_rng(1)
    a, b = (
        rng.integers(-3, 4, s).astype(ml_dtypes.float8_e4m3fn)
        for s in ((2, 16, 128), (2, 128, columns))
    )
    c, ids = np.zeros((2, 16, columns), np.float32), np.array([1, 0], np.int32)
    runtime.load(compile(main, here(path), store=store))(a, b, ids, c)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b[ids].astype(np.float32))
