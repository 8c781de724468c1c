"""How long what a computation computes is kept, and in which order its kernels run."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch

import tilecore
from tilecore.computing.planning.plan import Launch, Plan

N = 48


def products(x: Any, w: Any, count: int) -> Any:
    """Return what as many kernels compute, each of what the one before it does."""
    for _ in range(count):
        x = torch.relu(x @ w)
    return x


def most_kept(plan: Plan, tensors: dict[str, Any]) -> int:
    """Return how many of the tensors that kernels read are there at once, as one of them runs."""
    seen: dict[int, weakref.ref[Any]] = {}
    most = 0

    def look(_: Any, given: Any) -> None:
        nonlocal most
        seen.update({id(tensor): weakref.ref(tensor) for tensor in given})
        most = max(most, sum(ref() is not None for ref in seen.values()))

    plan.computed(tensors, look)
    return most


def test_tensors_between_kernels_are_let_go_of() -> None:
    x, w = torch.randn(N, N), torch.randn(N, N) / 7
    plan = tilecore.compute(products).plan(x, w, 8)
    assert len(plan.steps) == 8
    assert most_kept(plan, {"x": x, "w": w}) <= 4  # x, w and two of what is between


def test_results_are_kept() -> None:
    @tilecore.compute
    def both(x: Any, w: Any) -> Any:
        first = torch.relu(x @ w)
        return first, torch.relu(first @ w), torch.relu(first.mT @ w)

    x, w = torch.randn(N, N), torch.randn(N, N) / 7
    for found, wanted in zip(both(x, w), both.function(x, w), strict=True):
        torch.testing.assert_close(found, wanted)


def test_what_a_function_of_torch_returns_is_let_go_of() -> None:
    @tilecore.compute
    def parts(x: Any) -> Any:
        values, places = torch.topk(torch.exp(x), 3)
        for _ in range(3):
            values, places = torch.topk(torch.exp(values), 2)
        return values.sum(-1), places

    x = torch.randn(6, N)
    torch.testing.assert_close(parts(x), parts.function(x))


def test_arguments_that_nobody_holds_are_let_go_of() -> None:
    x, w = torch.randn(N, N), torch.randn(N, N) / 7
    plan = tilecore.compute(products).plan(x, w, 4)
    wanted = products(x, w, 4)
    tensors = {"x": x.clone(), "w": w}
    first, alive = weakref.ref(tensors["x"]), []
    (found,) = plan.computed(tensors, lambda *_: alive.append(first() is not None))
    assert tensors == {}
    assert alive[0]
    assert alive[2:] == [False, False]
    torch.testing.assert_close(found, wanted)


def test_lists_of_arguments_are_emptied() -> None:
    x, w = torch.randn(N, N), torch.randn(N, N) / 7
    computation, wanted = tilecore.compute(products), products(x, w, 2)
    for _ in range(2):  # read, and found by what the call is like
        given = [x.clone(), w, 2]
        torch.testing.assert_close(computation.consume(given), wanted)
        assert given == []


def test_lists_with_tensors_without_elements_are_emptied() -> None:
    given = [np.zeros((0, 3), np.float32)]
    assert tilecore.compute(torch.sin).consume(given).shape == (0, 3)
    assert given == []


def gradients(kept: Any, weights: Any, gradient: Any) -> Any:
    """Return gradients of a chain of products by its input, and behind that by its weights."""
    found = []
    for w, y in zip(weights, kept, strict=True):
        found.append(y.mT @ gradient)
        gradient = torch.tanh(gradient @ w.mT)
    return gradient, *found


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_weights_are_computed_where_what_they_read_is_there(dynamic: bool) -> None:
    computation = tilecore.compute(gradients, dynamic=dynamic)
    kept, gradient = [torch.randn(4 * N, N) for _ in range(4)], torch.randn(4 * N, N)
    weights = [torch.randn(N, N) / 7 for _ in range(4)]
    for found, wanted in zip(
        computation(kept, weights, gradient), gradients(kept, weights, gradient), strict=True
    ):
        torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)
    plan = computation.plan(kept, weights, gradient)
    shapes = [root.shape for step in plan.steps if isinstance(step, Launch) for root in step.roots]
    assert shapes == [(N, N), (4 * N, N)] * 4


def test_an_order_that_keeps_no_less_is_left() -> None:
    @tilecore.compute
    def apart(x: Any, y: Any) -> Any:
        return torch.softmax(x, -1), torch.softmax(y, -1) @ y

    plan = apart.plan(torch.randn(N, N), torch.randn(N, N))
    assert [step.stage.program.name for step in plan.steps if isinstance(step, Launch)] == [
        "apart_0", "apart_0", "apart_1"
    ]  # fmt: skip
