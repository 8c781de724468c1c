"""Floats that vary between calls: after some values one plan serves all."""

import itertools
import math

import numpy as np
import pytest
import torch

import tilecore
from tilecore.computing.planning.plan import Launch

VALUES = (0.1, 0.2, -0.3, 0.4, 0.5, 0.25)


def readings(function, x, values=VALUES):
    """Call a computation with several floats, compare, and return how often it was read."""
    count = itertools.count()

    def counted(x, t):
        next(count)
        return function(x, t)

    computation = tilecore.compute(counted)
    for value in values:
        found, wanted = computation(x, value), function(x, value)
        if x.dtype == torch.bfloat16:  # which torch rounds after every step
            wanted = function(x.double(), value).bfloat16()
        closely = {"rtol": 1e-14, "atol": 0} if x.dtype == torch.float64 else {}
        torch.testing.assert_close(found, wanted, **closely)
        assert type(found) is type(wanted)
    return next(count)


@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, t: (x / t).softmax(-1),
        lambda x, t: x * t + (1 - t) * 2,
        lambda x, t: torch.lerp(x, x * 2, t).sum(-1),
        lambda x, t: torch.where(x > t, x, t),
        lambda x, t: x @ x.T * t,
        lambda x, t: {"a": [x + t]}["a"][0] ** 2,
    ],
)
def test_one_plan_serves_all(function, dtype):
    x = torch.rand(4, 8) + 1
    assert readings(function, x.to(dtype)) == 3  # two for a number each


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, t: x * math.sqrt(abs(t)),  # Python wants the number
        lambda x, t: x * 2 if t > 0.15 else x,
        lambda x, t: torch.add(x, x, alpha=t),
        lambda x, t: (x * t, t * 2),  # a float is returned
        lambda x, t: [x + t, {"by": t}],
        lambda x, t: torch.nn.functional.leaky_relu(x, t),
        lambda x, t: torch.full_like(x, t) + x,
    ],
)
def test_others_get_plans_of_their_own(function):
    assert readings(function, torch.rand(4, 8) + 1) == len(VALUES) + 1  # once in vain


def test_sizes_vary_where_floats_do_not():
    computation = tilecore.compute(lambda x, t: torch.add(x.exp(), x, alpha=t))
    for n in range(8):
        x, t = torch.rand(10 + n, 8), 0.5 + n % 2
        torch.testing.assert_close(computation(x, t), torch.add(x.exp(), x, alpha=t))
    plans = [computation.plan(torch.rand(n, 8), 0.5) for n in (12, 13, 14)]
    assert not any(plan.is_own for plan in plans)


def test_floats_that_do_not_vary_are_numbers_in_kernels():
    computation, x = tilecore.compute(lambda x, t: x * t, dynamic=True), torch.rand(4, 8)
    torch.testing.assert_close(computation(x, 0.5), x * 0.5)
    assert [type(step) for step in computation.plan(x, 0.5).steps] == [Launch]
    for t in (0.25, 0.75):
        torch.testing.assert_close(computation(x, t), x * t)
    assert len(computation.plan(x, 0.75).steps) == 2  # the number is a tensor


def test_integers_of_tensors_and_types_that_follow():
    assert readings(lambda x, t: x * t, torch.arange(8)) >= 3
    assert readings(lambda x, t: (x > t).float() + t, torch.arange(8)) >= 3


def test_floats_in_what_is_passed_and_held():
    class State:
        def __init__(self):
            self.scale, self.decay = 1.0, 0.5

    def function(x, state, named):
        y = x * state.scale + named["shift"][0]
        state.scale = state.scale * state.decay
        return y

    computation, ours, theirs = tilecore.compute(function), State(), State()
    for n in range(5):
        x, named = torch.randn(4), {"shift": (n / 8, 3)}
        torch.testing.assert_close(computation(x, ours, named), function(x, theirs, named))
        assert ours.scale == theirs.scale
        assert type(ours.scale) is float


def test_attributes_that_vary():
    class Model:
        temperature, steps = 1.0, itertools.count()

        def sharpened(self, x):
            next(self.steps)
            return (x / self.temperature).softmax(-1)

    model = Model()
    computation = tilecore.compute(model.sharpened)
    for n in range(7):
        model.temperature, x = 1.0 + n / 4, torch.randn(3, 5)
        torch.testing.assert_close(computation(x), (x / model.temperature).softmax(-1))
    assert next(model.steps) == 4  # one before it was seen to vary


def test_arrays_of_numpy_have_plans_of_their_own():
    computation, x = tilecore.compute(lambda x, t: np.exp(x) * t), np.ones((3, 4), np.float32)
    for value in VALUES:
        np.testing.assert_allclose(computation(x, value), np.exp(x) * value, rtol=1e-6)
