"""Arithmetic on two numbers of a word (T.fma_halves), and words that are stored whole on GPUs."""

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tests.tilecore.rocm.llvm_on_cpu import run_text
from tilecore.errors import TypeMismatch
from tilecore.interpreter import run as interpret
from tilecore.ir.document import digest, read, write

KINDS = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
WORDS = 96


def program(dtype):
    @T.prim_func
    def main(X: T.Tensor((3, WORDS), "uint32"), Y: T.Tensor((WORDS,), "uint32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(WORDS):
                Y[i] = T.fma_halves(X[0, i], X[1, i], X[2, i], dtype)

    return main


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", KINDS)
def test_both_numbers_of_a_word_are_multiplied_and_added(run_both, dtype):
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal((3, 2 * WORDS)).astype(KINDS[dtype])
    a, b, c = numbers.astype(np.float32)
    expected = (a * b + c).astype(KINDS[dtype])
    x, empty = numbers.view(np.uint32), np.zeros(WORDS, np.uint32)
    (compiled,) = run_both(program(dtype), [x], [empty], rtol=0, atol=0)
    np.testing.assert_array_equal(compiled.view(KINDS[dtype]), expected)
    meant = empty.copy()
    interpret(program(dtype), x, meant)
    np.testing.assert_array_equal(meant, compiled)
    targets = [(run_emulated, t) for t in ("h100", "sm_80", "sm_75", "gfx942")]
    for run, target in (*targets, (run_text, "gfx942")):
        if (target, dtype) == ("sm_75", "bfloat16"):  # float32 is computed with there
            assert "tc_fma2" not in lowered(program(dtype), target)[2].text
        found = empty.copy()
        run(program(dtype), target, [x, found])
        # An instruction rounds once.
        off = found.view(KINDS[dtype]) != expected
        assert off.sum() <= 2


def test_a_document_keeps_it():
    func = program("bfloat16")
    written = write(func)
    assert digest(read(written)[0]) == digest(func)


def test_of_numbers_of_16_bits_alone():
    with pytest.raises(TypeMismatch, match="float16 or bfloat16"):
        T.fma_halves(1, 2, 3, "float32")


def decoding(shift):
    """Codes of 4 bits become the left operand of a product, in registers."""
    M, N, K = 64, 16, 64

    @T.prim_func
    def main(
        A: T.Tensor((N, K), "bfloat16"), W: T.Tensor((M, K // 8), "int32"),
        C: T.Tensor((M, N), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((N, K), "bfloat16")
            w = T.alloc_shared((M, K // 8), "int32")
            b = T.alloc_fragment((M, K), "bfloat16")
            c = T.alloc_fragment((M, N), "float32")
            T.copy(A, a)
            T.copy(W, w)
            for i, k in T.Parallel(M, K):
                word = ((w[i, k // 8] >> (4 * (k % 8 // 2))) & 0x000F000F) | 0x43004300
                half = T.cast(word >> (shift * (k % 2)), "uint16")
                b[i, k] = T.reinterpret(half, "bfloat16")
            T.clear(c)
            T.gemm(b, a, c, transpose_B=True)
            T.copy(c, C)

    return main


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["h100", "sm_80"])
@pytest.mark.parametrize("shift", [16, 8])
def test_halves_of_a_word_are_stored_as_a_word(target, shift):
    rng = np.random.default_rng(1)
    a = rng.standard_normal((16, 64)).astype(ml_dtypes.bfloat16)
    w = rng.integers(-(2**31), 2**31 - 1, (64, 8), np.int32)
    c = np.zeros((64, 16), np.float32)
    run_emulated(decoding(shift), target, [a, w, c])
    k = np.arange(64)
    words = (w[:, k // 8] >> (4 * (k % 8 // 2))) & 0x000F000F | 0x43004300
    halves = ((words >> (shift * (k % 2))) & 0xFFFF).astype(np.uint16).view(ml_dtypes.bfloat16)
    expected = halves.astype(np.float64) @ a.astype(np.float64).T
    np.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-2)
    text = lowered(decoding(shift), target)[2].text
    kernel = text.partition('extern "C" __global__')[2]
    assert ("tc_pack_halves(" in kernel) == (shift == 16)
    assert "tc_masked_or(" in kernel
