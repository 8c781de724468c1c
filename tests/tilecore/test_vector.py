"""Vectors: construction, lanes, arithmetic, variables, reinterpretation, wide loads and stores."""

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tilecore import interpreter, runtime
from tilecore.artifact import ArtifactStore
from tilecore.compiler import compile
from tilecore.errors import ShapeMismatch, TypeMismatch


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return ArtifactStore(tmp_path_factory.mktemp("artifacts"))


def run_both(func, *arguments, store):
    mine, oracle = ([a.copy() for a in arguments] for _ in range(2))
    runtime.load(compile(func, store=store))(*mine)
    interpreter.run(func, *oracle, seed=1)
    for a, b in zip(mine, oracle, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6, equal_nan=True)
    return mine


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_arithmetic_lane_by_lane_and_variables(store):
    @T.prim_func
    def main(A: T.Tensor((9, 4), "float32"), B: T.Tensor((9, 4), "float32"),
             C: T.Tensor((9, 2), "float32")):  # fmt: skip
        with T.Kernel(9) as r:
            total = T.alloc_var(T.float32x2)
            pair = T.float32x2(A[r, 0], A[r, 1])
            B[r, 0:2] = T.fma2(pair, A[r, 2:4], 2.0) - pair / 4.0
            B[r, T.Ramp(2, 1, 2)] = T.max2(T.add2(pair, 1.0), T.abs2(-pair)) * 3.0
            for i in T.serial(3):
                total += T.float32x2(A[r, i], A[r, i + 1])
            swapped = T.Shuffle([total], [1, 0])
            C[r, 0] = T.extract_lane(swapped, 0) + T.extract_lane(T.Broadcast(0.5, 2), 1)
            C[r, 1] = T.extract_lane(swapped, 1)

    a = normal(9, 4)
    _, b, c = run_both(main, a, np.zeros_like(a), np.zeros((9, 2), np.float32), store=store)
    pair, rest = a[:, :2], a[:, 2:]
    np.testing.assert_allclose(b[:, :2], pair * rest + 2 - pair / 4, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(b[:, 2:], np.maximum(pair + 1, np.abs(pair)) * 3, rtol=1e-6)
    np.testing.assert_allclose(c[:, 0], a[:, 1:].sum(1) + 0.5, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(c[:, 1], a[:, :3].sum(1), rtol=1e-5, atol=1e-5)


def test_lanes_are_read_before_they_are_written(store):
    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(4) as b:
            A[b * 2 : b * 2 + 2] = T.int32x2(A[b * 2 + 1], A[b * 2])

    (a,) = run_both(main, np.arange(8, dtype=np.int32), store=store)
    assert a.tolist() == [1, 0, 3, 2, 5, 4, 7, 6]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("source", "target"),
    [("float32", "int8"), ("int8", "float32"), ("bfloat16", "uint32"), ("uint64", "float16"),
     ("float16", "int16"), ("uint16", "int64"), ("uint8", "uint4"), ("int4", "int16")],
)  # fmt: skip
def test_reinterpretation_between_widths(store, source, target):
    size = {"int4": 0.5, "uint4": 0.5, "int8": 1, "uint8": 1, "bfloat16": 2, "float16": 2,
            "int16": 2, "uint16": 2, "uint32": 4, "float32": 4, "uint64": 8,
            "int64": 8}  # fmt: skip
    n, m = int(16 / size[source]), int(16 / size[target])

    @T.prim_func
    def main(A: T.Tensor((7, n), source), B: T.Tensor((7, m), target)):
        with T.Kernel(7) as r:
            B[r, 0:m] = T.reinterpret(A[r, 0:n], f"{target}x{m}")

    raw = np.random.default_rng(1).integers(0, 120, (7, 16), np.uint8)
    named = {"bfloat16": ml_dtypes.bfloat16, "int4": np.uint8, "uint4": np.uint8}
    a = raw.view(named.get(source, source))
    b = np.zeros((7, 16), np.uint8).view(named.get(target, target))
    found = run_both(main, a, b, store=store)[1]
    np.testing.assert_array_equal(found.view(np.uint8), raw)


@pytest.mark.few(1)
@pytest.mark.parametrize("bits", [32, 64, 128, 256])
def test_loads_and_stores_of_a_width(store, bits):
    lanes = bits // 32
    load, save = getattr(T, f"ldg{bits}"), getattr(T, f"stg{bits}")

    @T.prim_func
    def main(A: T.Tensor((8 * lanes,), "float32"), B: T.Tensor((8 * lanes,), "float32")):
        with T.Kernel(8) as r:
            word = load(A[r * lanes], pred=r != 3)
            save(B[r * lanes : (r + 1) * lanes], word, pred=r != 5)

    a = normal(8 * lanes)
    b = run_both(main, a, np.ones_like(a), store=store)[1].reshape(8, lanes)
    want = a.reshape(8, lanes).copy()
    want[3], want[5] = 0, 1
    np.testing.assert_array_equal(b, want)


def in_kernel(body):
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = T.extract_lane(body(A), 0)

    return main


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (lambda A: T.float32x2(A[0], A[1], A[2]), TypeMismatch, "2 values of float32x2, found 3"),
        (lambda A: T.float32x2(1, 2) + T.float32x4(1), ShapeMismatch, "float32x2, found float32x4"),
        (lambda A: T.reinterpret(A[0:2], "float16x2"), TypeMismatch, "32 bits for float16x2"),
        (lambda A: A[0], TypeMismatch, "expected a vector, found Load"),
        (
            lambda A: T.alloc_reducer((4,), T.float32x2),
            TypeMismatch,
            "use float32 and one more axis of 2",
        ),
        (lambda A: [T.extract_lane(A[0:2], 2)], TypeMismatch, "a known lane from 0 to 1, found 2"),
    ],
)
def test_bad_use_is_named(body, error, message):
    with pytest.raises(error, match=message):
        in_kernel(body)


def test_atomic_additions_of_lanes_return_what_was_there(store):
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), B: T.Tensor((4,), "float32"),
             P: T.Tensor((8,), "float32")):  # fmt: skip
        with T.Kernel(1):
            P[0:2] = T.atomic_addx2(A[0:2], B[0:2], return_prev=True)
            old = T.atomic_addx4(A[T.Ramp(2, 1, 4)], B[T.Ramp(0, 1, 4)], return_prev=True)
            P[4:8] = old

    a, b = normal(8), normal(4, seed=1)
    after, _, before = run_both(main, a, b, np.zeros(8, np.float32), store=store)
    np.testing.assert_array_equal(before[[0, 1, 4, 5, 6, 7]], a[:6])
    np.testing.assert_allclose(after[:6], a[:6] + np.concatenate([b[:2], b]))
    np.testing.assert_array_equal(after[6:], a[6:])


def test_vectors_as_indices_take_no_slices():
    with pytest.raises(TypeMismatch, match="vectors of one length as indices of `A`, and no slic"):

        @T.prim_func
        def main(A: T.Tensor((8, 8), "float32")):
            with T.Kernel(1):
                A[T.Ramp(0, 1, 4), 0:4] = 0.0


def test_vectors_as_indices(store):
    """Strides, two axes at once, broadcasts, and lanes that count from the end."""

    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32"), B: T.Tensor((6, 4), "float32")):
        with T.Kernel(1):
            B[0, T.Ramp(0, 1, 4)] = A[T.Ramp(0, 2, 4), T.Ramp(1, 1, 4)]
            B[1, T.Ramp(3, -1, 4)] = A[3, T.Ramp(0, 1, 4)]
            B[2, T.Ramp(0, 1, 4)] = A[T.Broadcast(5, 4), T.Ramp(-2, 1, 4)]
            B[3, T.Ramp(0, 1, 4)] = A[7, 4:8]
            B[4, T.Ramp(0, 3, 2)] = 9.0

    a = normal(8, 8)
    _, b = run_both(main, a, np.zeros((6, 4), np.float32), store=store)
    steps = np.arange(4)
    expected = np.zeros((6, 4), np.float32)
    expected[0] = a[2 * steps, steps + 1]
    expected[1] = a[3, :4][::-1]
    expected[2] = a[5, [6, 7, 0, 1]]
    expected[3] = a[7, 4:]
    expected[4, [0, 3]] = 9
    np.testing.assert_array_equal(b, expected)
