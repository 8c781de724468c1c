"""Loops of a function that make long chains of functions of elements."""

import numpy as np
import pytest
import torch

import tilecore
from tilecore.computing.planning.fusion import MOST_MEMBERS
from tilecore.computing.planning.plan import Launch


def decayed(x, steps):
    y = x
    for _ in range(steps):
        y = y * 0.5 + x
    return y


def pendulum(x, steps):
    a, b = x[0], x[1]
    for _ in range(steps):
        a, b = a + 0.01 * b, b - 0.01 * a
    return a, b


def runge_kutta(y, step):
    def slope(y):
        return np.array([y[1], -y[0]])

    for _ in range(5):
        first = slope(y)
        second = slope(y + step / 2 * first)
        third = slope(y + step / 2 * second)
        fourth = slope(y + step * third)
        y = y + step / 6 * (first + 2 * second + 2 * third + fourth)
    return y


def launches(plan):
    return [step.stage for step in plan.steps if isinstance(step, Launch)]


@pytest.mark.parametrize("function", [decayed, pendulum])
@pytest.mark.parametrize("steps", [20, 150])
def test_long_chains_are_several_kernels(function, steps):
    x = torch.rand(4, 8)
    computation = tilecore.compute(lambda x: function(x, steps))
    torch.testing.assert_close(computation(x), function(x, steps))
    found = [len(stage.group.members) for stage in launches(computation.plan(x))]
    assert max(found) <= MOST_MEMBERS
    assert len(found) <= 2 * -(-sum(found) // MOST_MEMBERS)


def test_equal_links_of_a_chain_are_one_kernel():
    x = torch.rand(4, 8)
    stages = launches(tilecore.compute(lambda x: decayed(x, 500)).plan(x))
    assert len(stages) > 5
    assert len({stage.kernel.artifact.manifest.entry for stage in stages}) < 5


def test_sums_of_many_terms_are_counted():
    x = torch.rand(4, 2000)
    computation = tilecore.compute(lambda x: sum(x[:, k : k + 3] for k in range(120)))
    torch.testing.assert_close(computation(x), sum(x[:, k : k + 3] for k in range(120)))


def test_numbers_that_are_joined_and_taken_apart_are_few_kernels():
    y = np.array([1.0, 0.5])
    computation = tilecore.compute(runge_kutta)
    np.testing.assert_allclose(computation(y, 0.01), runge_kutta(y, 0.01), rtol=1e-12)
    assert len(launches(computation.plan(y, 0.01))) <= 4
