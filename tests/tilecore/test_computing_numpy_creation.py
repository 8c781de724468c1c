"""Arrays that a computation makes with NumPy: of sizes, of what it computes, and of numbers."""

import math

import numpy as np
import pytest
from scipy import linalg, special

import tilecore
from tilecore.computing.planning.plan import Launch
from tilecore.errors import UnsupportedSyntax

RNG = np.random.default_rng(0)
TABLE = np.arange(10.0)


def shifted(x):
    y = np.zeros(x.shape, x.dtype)
    y[1:] = x[:-1]
    return y


def columns(x):
    y = np.empty((x.shape[0], 2), np.float32)
    y[:, 0] = x.sum(1)
    y[:, 1] = x.max(1)
    return y


def sums_one_by_one(x):
    y = np.zeros(4)
    for k in range(4):
        y[k] = x[k].sum()
    return y


def filtered(x):
    kernel = np.zeros((3, 3), np.float32)
    kernel[1, 1], kernel[0, 2] = 1, 0.5
    y = np.zeros_like(x[1:-1, 1:-1])
    for i in range(3):
        for j in range(3):
            y += kernel[i, j] * x[i : i + y.shape[0], j : j + y.shape[1]]
    return y


def with_ghost_cells(x):
    y = np.zeros(x.shape[0] + 2, dtype=x.dtype)
    y[1:-1] = x[:, 0]
    y[0], y[-1] = y[1], y[-2]
    return (y[2:] - y[:-2]) / 2


def decided_by_elements(x):
    weights = np.ones(3)
    weights[1] = 2
    weights /= weights.sum()
    assert abs(weights.sum() - 1) < 1e-9
    return x * float(weights[0]) if weights[1] > weights[0] else x


def written_one_by_one(x):
    weights = np.zeros(5)
    for k in range(5):
        weights[k] = math.exp(-k)
    return np.convolve(x[0], weights, "same")


def written_as_lists(x):
    turn = np.zeros((2, 2))
    turn[0] = [0, 1]
    turn[1] = np.array([-1, 0])
    return x[:2, :2] @ turn


def flags(x):
    y = np.zeros(x.shape[0], np.int64)
    y[x[:, 0] > 0] = 1
    return y


def counted(x):
    y = np.zeros(x.shape[0])
    np.add.at(y, np.array([0, 0, 1]), x[:3, 0])
    return y


def positive_ones(x):
    y = np.zeros_like(x)
    np.copyto(y, x, where=x > 0)
    return y


FUNCTIONS = {
    "zeros": shifted, "empty": columns, "sums": sums_one_by_one, "filter": filtered,
    "ghost cells": with_ghost_cells, "decided": decided_by_elements, "lists": written_as_lists,
    "weights": written_one_by_one, "flags": flags, "added": counted, "copyto": positive_ones,
    "integers": lambda x: np.zeros(x.shape, int) + x.astype(int),
    "full": lambda x: np.full(x.shape, x.max()) + np.full(7, 2.5, dtype=np.float32),
    "asarray": lambda x: (np.asarray(x, np.int32), np.ascontiguousarray(x.T) @ x, np.array(x) * 2),
    "numbers": lambda x: np.array([[x[0, 0], 1.0], [2, x.max()]]),
    "rows": lambda x: np.array([row - row.mean() for row in x]),
    "mixed rows": lambda x: np.array([x[0], x[1] * 2, np.ones(x.shape[1], x.dtype)]),
    "one of many": lambda x: np.eye(7, dtype=np.float32)[x.argmax(1)].sum(0),
    "places": lambda x: np.arange(7)[x.argmax(1)] * np.array([1, 2, 3, 4, 5, 6, 7])[x.argmin(1)],
    "taken": lambda x: (np.take(TABLE, x.argmax(1)), np.arange(7.0).take(x.argmax(1))),
    "dots": lambda x: (x.dot(np.eye(7, dtype=np.float32)), np.eye(7, dtype=np.float32).dot(x.T)),
    "masks": lambda x: (x[np.arange(4) > 1] if x.shape[0] == 4 else x, np.linspace(0, 1, 7) * x),
    "loop": lambda x: sum(x[i] * i for i in np.arange(1, 4)),
    "of SciPy": lambda x: (
        x[:, :3] @ linalg.toeplitz(np.ones(3), [1, 0.5, 0.25]), special.erf(np.zeros(7)) + x
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_numpys(name):
    function = FUNCTIONS[name]
    computation = tilecore.compute(function)
    for rows in (5, 8, 16, 4, 4):
        x = RNG.standard_normal((rows, 7)).astype(np.float32)
        found, wanted = computation(x), function(x.copy())
        is_tuple = isinstance(wanted, tuple)
        for one, other in zip(*(v if is_tuple else (v,) for v in (found, wanted)), strict=True):
            assert type(one) is np.ndarray
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_zeros_and_ones_are_numbers_in_kernels():
    x = RNG.standard_normal((64, 33)).astype(np.float32)
    computation = tilecore.compute(lambda x: x + np.zeros(33, np.float32) + np.ones((64, 1), "f4"))
    np.testing.assert_allclose(computation(x), x + 1, rtol=1e-6)
    (step,) = computation.plan(x).steps
    assert isinstance(step, Launch)
    assert step.stage.program.text.count("T.Tensor(") == 2


def test_extents_of_what_is_created_vary():
    computation = tilecore.compute(lambda x: shifted(x) * np.ones(x.shape[0], x.dtype)[:, None])
    for rows in range(3, 12):
        x = RNG.standard_normal((rows, 16)).astype(np.float32)
        np.testing.assert_array_equal(computation(x), shifted(x))
    assert len({stage.program.text for plan in computation.plans for stage in plan.stages}) < 5


@pytest.mark.parametrize("make", [lambda: np.arange(5), lambda: np.zeros(5), lambda: np.eye(2)])
def test_every_call_returns_one_of_its_own(make):
    computation = tilecore.compute(lambda x: (x * 2, make()))
    x = np.ones((3, 4), np.float32)
    computation(x)[1][...] = 77
    found = computation(x)[1]
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, make())


def test_what_others_make_meanwhile_is_numpys():
    seen = []

    def made_by_extension_modules(x):
        generator = np.random.default_rng(0)  # calls numpy.empty
        seen.append(type(generator.standard_normal((2, 3))))
        seen.append(type(np.float32(2) * np.hanning(4)))
        return x * np.zeros(4, np.float32)

    x = np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(tilecore.compute(made_by_extension_modules)(x), 0 * x)
    assert seen == [np.ndarray, np.ndarray]
    assert type(np.zeros(3)) is np.ndarray


def test_a_copy_is_one_and_asarray_is_the_array_itself():
    def function(x):
        y = np.array(x)
        z = np.asarray(y)
        z[0] = 5
        return x + 0, y

    x = np.ones((3, 4), np.float32)
    for one, other in zip(tilecore.compute(function)(x), function(x), strict=True):
        np.testing.assert_array_equal(one, other)


def test_numbers_take_nothing_computed():
    def function(x):
        y = np.arange(4.0)
        y[0] = x.sum()
        return y

    with pytest.raises(UnsupportedSyntax, match=r"takes what is computed") as caught:
        tilecore.compute(function)(np.ones((3, 4), np.float32))
    assert caught.value.span.file == __file__
