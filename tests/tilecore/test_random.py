"""Random numbers: the generator's published vectors, and streams drawn in every way."""

import numpy as np
import pytest

import tilecore.language as T
from tilecore.errors import ScopeError, TypeMismatch
from tilecore.language.random import philox

WORD = 0xFFFFFFFF

# Random123 1.09, examples/kat_vectors: philox4x32, 10 rounds: counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((WORD,) * 4, (WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def reference(counter, key):
    """Philox4x32-10 in Python integers."""
    words, keys = list(counter), list(key)
    for _ in range(10):
        a, b = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [
            (b >> 32) ^ words[1] ^ keys[0], b & WORD, (a >> 32) ^ words[3] ^ keys[1], a & WORD,
        ]  # fmt: skip
        keys = [(keys[0] + 0x9E3779B9) & WORD, (keys[1] + 0xBB67AE85) & WORD]
    return tuple(words)


def stream(seed, sequence, start, count):
    """Return words of cuRAND's stream."""
    found = []
    for place in range(start, start + count):
        counter, word = divmod(place, 4)
        at = (counter & WORD, counter >> 32, sequence & WORD, sequence >> 32)
        found.append(reference(at, (seed & WORD, seed >> 32 & WORD))[word])
    return np.array(found, np.uint32)


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_known_vectors(run_both, counter, key, result):
    assert reference(counter, key) == result

    @T.prim_func
    def main(X: T.Tensor((6,), "uint32"), Y: T.Tensor((4,), "uint32")):
        with T.Kernel(1):
            given = [T.cast(X[i], "uint64") for i in range(6)]
            words = philox(tuple(given[:4]), tuple(given[4:]))
            Y[0] = T.cast(words[0], "uint32")
            Y[1] = T.cast(words[1], "uint32")
            Y[2] = T.cast(words[2], "uint32")
            Y[3] = T.cast(words[3], "uint32")

    given = np.array([*counter, *key], np.uint32)
    run_both(main, [given], [np.zeros(4, np.uint32)], [np.array(result)], rtol=0, atol=0)


@pytest.mark.few(1)
@pytest.mark.parametrize(("seed", "offset"), [(42, 0), (-5, 3), (2**40 + 9, 1)])
def test_each_thread_draws_from_its_own_stream(run_both, seed, offset):
    blocks, threads, count = 3, 8, 7

    @T.prim_func
    def main(A: T.Tensor((blocks, threads, count), "uint32")):
        with T.Kernel(blocks, threads=threads) as b:
            tx = T.get_thread_binding()
            T.rng_init(seed, off=offset)
            for i in T.serial(count):
                A[b, tx, i] = T.rng_rand()

    expected = [stream(seed & (2**64 - 1), i, offset, count) for i in range(blocks * threads)]
    shape = (blocks, threads, count)
    expected = np.array(expected, np.uint32).reshape(shape).astype(np.float64)
    run_both(main, [], [np.zeros(shape, np.uint32)], [expected], rtol=0, atol=0)


@pytest.mark.exhaustive
def test_parallel_loops_draw_for_all_iterations(run_both):
    n = 50

    @T.prim_func
    def main(
        A: T.Tensor((4, n), "uint32"),
        B: T.Tensor((4, n), "float32"),
        C: T.Tensor((4, n), "float64"),
        D: T.Tensor((4,), "uint32"),
    ):
        with T.Kernel(4) as b:
            T.rng_init(7, b, 2)
            for i, j in T.Parallel(5, 10):
                if i * 10 + j < n - 1:
                    A[b, i * 10 + j] = T.rng_rand()
            for i in T.Parallel(n):
                B[b, i] = T.rng_rand_float()
            for i in T.Parallel(n):
                C[b, i] = T.rng_rand_float(bit=64)
            D[b] = T.rng_rand()

    outputs = [np.zeros((4, n), k) for k in ("uint32", "float32", "float64")]
    outputs.append(np.zeros(4, np.uint32))
    expected = [np.zeros((4, n)), np.zeros((4, n)), np.zeros((4, n)), np.zeros(4)]
    for b in range(4):
        words = stream(7, b, 2, 4 * n + 1)
        expected[0][b, : n - 1] = words[: n - 1]
        scale = np.float32(2**-32)
        expected[1][b] = words[n : 2 * n].astype(np.float32) * scale + scale / 2
        low, high = words[2 * n : 4 * n : 2], words[2 * n + 1 : 4 * n : 2]
        wide = low.astype(np.uint64) ^ (high.astype(np.uint64) << np.uint64(21))
        expected[2][b] = wide.astype(np.float64) * 2.0**-53 + 2.0**-54
        expected[3][b] = words[4 * n]
    run_both(main, [], outputs, expected, rtol=0, atol=0)


@pytest.mark.few(1)
@pytest.mark.parametrize("bit", [32, 64])
def test_normal_numbers_come_in_pairs(run_both, bit):
    n = 2001
    kind = f"float{bit}"

    @T.prim_func
    def main(A: T.Tensor((n,), kind), B: T.Tensor((1,), kind)):
        with T.Kernel(1):
            T.rng_init(123, 5)
            for i in T.Parallel(n):
                A[i] = T.rng_rand_float(bit, "normal")
            B[0] = T.rng_rand_float(bit, "normal")

    size = bit // 32
    words = stream(123, 5, 0, (n + 3) * size).astype(np.uint64)
    if bit == 64:
        numbers = (words[::2] ^ (words[1::2] << np.uint64(21))).astype(np.float64)
    else:
        numbers = words.astype(np.float64)
    unit = 2.0**-53 if bit == 64 else 2.0**-32
    u, v = numbers[::2] * unit + unit / 2, (numbers[1::2] * unit + unit / 2) * 2 * np.pi
    pairs = np.sqrt(-2 * np.log(u))[:, None] * np.stack([np.sin(v), np.cos(v)], 1)
    expected = [pairs.reshape(-1)[:n], pairs.reshape(-1)[n + 1 : n + 2]]
    outputs = [np.zeros(n, kind), np.zeros(1, kind)]
    (a, _) = run_both(main, [], outputs, expected, rtol=1e-4, atol=1e-5)
    assert abs(a.mean()) < 0.07
    assert abs(a.std() - 1) < 0.05


@pytest.mark.exhaustive
def test_a_stream_begun_in_a_branch_lasts(run_both):
    @T.prim_func
    def main(n: T.int32, A: T.Tensor((6,), "uint32")):
        with T.Kernel(6, threads=32) as b:
            tx = T.get_thread_binding()
            tile = T.alloc_shared((32,), "int32")
            if b < n:
                T.rng_init(42, 0, b)
                tile[tx] = 1
                T.cumsum(tile, dim=0)
                if tx == 0:
                    A[b] = T.rng_rand() + T.cast(tile[31] - 32, "uint32")

    expected = np.full(6, 9)
    expected[:4] = stream(42, 0, 0, 4)

    run_both(main, [4], [np.full(6, 9, np.uint32)], [expected], rtol=0)


def test_bad_use_is_named():
    def kernel(body):
        @T.prim_func
        def main(A: T.Tensor((4,), "uint32")):
            with T.Kernel(1):
                body(A)

        return main

    @T.macro
    def uninitialised(A):
        A[0] = T.rng_rand()

    @T.macro
    def looped(A):
        T.rng_init(1, 0)
        for i in T.Parallel(4):
            for j in T.serial(4):
                A[i] = T.rng_rand() + j

    @T.macro
    def inside(A):
        for i in T.Parallel(4):
            T.rng_init(1, i)
            A[i] = T.rng_rand()

    with pytest.raises(ScopeError, match=r"T\.rng_rand in a kernel without T\.rng_init"):
        kernel(uninitialised)
    with pytest.raises(ScopeError, match=r"in a loop inside T\.Parallel"):
        kernel(looped)
    with pytest.raises(ScopeError, match=r"T\.rng_init stands inside T\.Parallel"):
        kernel(inside)
    with pytest.raises(TypeMismatch, match="curandStateXORWOW_t"):
        kernel(lambda A: T.rng_init(1, 0, generator="curandStateXORWOW_t"))
    with pytest.raises(TypeMismatch, match='bit 32 or 64, dist "uniform" or "normal"'):
        kernel(lambda A: T.rng_rand_float(16))
    with pytest.raises(ScopeError, match=r"T\.rng_init stands outside T\.Kernel"):

        @T.prim_func
        def main(A: T.Tensor((4,), "uint32")):
            T.rng_init(1, 0)
