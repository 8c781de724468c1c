from __future__ import annotations

import numpy as np
import pytest

from tilecore import kernels
from workers.correctness import (
    ALIGNMENT,
    GuardedOutput,
    aligned_copy,
    compare,
    tolerance,
    unit_roundoff,
)


def naive_sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One sequential chain per element: the least accurate order that a kernel may use."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total += a[:, k : k + 1] * b[k : k + 1, :]
    return total


@pytest.mark.parametrize("length", [1, 16, 256, 2048])
def test_honest_sums_pass_and_a_missing_term_fails(length):
    rng = np.random.default_rng(length)
    a = rng.standard_normal((48, length), dtype=np.float32)
    b = rng.standard_normal((length, 64), dtype=np.float32)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    rtol, atol = tolerance("float32", "float32", length)
    honest = compare(naive_sum(a, b), expected, rtol, atol)
    assert honest.passed, honest.detail
    assert honest.max_error <= 1
    short = compare(naive_sum(a[:, 1:], b[1:]), expected, rtol, atol)
    assert short.max_error > 100


def test_a_chain_that_rounds_each_operation_passes_and_a_narrower_one_fails():
    elementwise = kernels.get("elementwise")
    problem = elementwise.parse_problem({"m": 1024, "n": 1024})
    rng = np.random.default_rng(7)
    # Twice as wide as a problem's own inputs: what the largest of many millions are like.
    x, y = 2 * rng.standard_normal((2, 1024, 1024), dtype=np.float32)
    (expected,) = elementwise.reference(problem, [x, y])
    rtol, atol = tolerance("float32", "float32", elementwise.reduction_length(problem))
    each = (x / (np.float32(1) + np.exp(-x))) * y
    assert compare(each, expected, rtol, atol).passed
    narrow = (x / (1 + np.exp(-x))).astype(np.float16).astype(np.float32) * y
    assert not compare(narrow, expected, rtol, atol).passed


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_rounding_the_output_once_passes(dtype):
    from tilecore.ir.dtype import DType

    expected = np.random.default_rng(0).standard_normal(4096)
    rtol, atol = tolerance(dtype, "float64" if dtype == "float64" else "float32", 1)
    assert compare(expected.astype(DType(dtype).numpy), expected, rtol, atol).passed


def test_integers_are_exact():
    assert unit_roundoff("int32") == 0
    assert tolerance("int32", "int32", 1024) == (0.0, 0.0)
    values = np.arange(8)
    assert compare(values.astype(np.int32), values, 0.0, 0.0).passed
    assert not compare(values.astype(np.int32) + 1, values, 0.0, 0.0).passed


def test_the_report_names_the_worst_element():
    found = np.zeros((3, 4), np.float32)
    found[1, 2] = 0.5
    report = compare(found, np.zeros((3, 4)), 1e-6, 1e-3, "output 0")
    assert report.detail.startswith("output 0[1, 2]: expected 0 within 0.001, found 0.5; 1 of 12")
    found[0, 0] = np.nan
    report = compare(found, np.zeros((3, 4)), 1e-6, 1e-3)
    assert "1 never written or NaN" in report.detail
    assert report.max_error == np.inf


def test_guards_notice_one_byte_and_are_renewed():
    out = GuardedOutput.allocate((5, 7), "float32")
    assert out.array.ctypes.data % ALIGNMENT == 0
    out.poison()
    assert np.isnan(out.array).all()
    assert out.is_intact
    out.memory[-1] ^= 1
    assert not out.is_intact
    out.poison()
    assert out.is_intact
    integers = GuardedOutput.allocate((4,), "int32")
    integers.poison()
    assert (integers.array == np.iinfo(np.int32).min).all()


def test_inputs_are_aligned_copies():
    source = np.arange(33, dtype=np.float32)[1:]
    copy = aligned_copy(source)
    assert copy.ctypes.data % ALIGNMENT == 0
    assert np.array_equal(copy, source)
    assert not np.shares_memory(copy, source)
