"""Products whose kernels compute their right operand: weights of few bits and their scales."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tilecore
from tilecore.computing.plan import Launch

K, N, GROUP = 96, 80, 32
Form = Callable[..., Any]


def whole(x: Any, w: Any, s: Any) -> Any:
    return x @ w.to(x.dtype)


def by_columns(x: Any, w: Any, s: Any) -> Any:
    return torch.relu(x @ (w.to(x.dtype) * s[:N]))


def linear(x: Any, w: Any, s: Any) -> Any:
    return F.linear(x, (w.mT.contiguous().to(x.dtype) - 3.0) * s[:N, None], s[:N])


def turned(x: Any, w: Any, s: Any) -> Any:
    return x @ (w.view(N, K).to(x.dtype) * s[:N, None]).mT


def in_groups(x: Any, w: Any, s: Any) -> Any:
    parts = w.view(N, K // GROUP, GROUP).to(x.dtype)
    scales = s.view(2, N, K // GROUP, 1)
    return F.linear(x, ((parts - scales[0]) * scales[1]).view(N, K))


FORMS = [whole, by_columns, linear, turned, in_groups]


def arguments(dtype: torch.dtype, kind: torch.dtype, *rows: int) -> list[torch.Tensor]:
    """Return a left operand, weights and scales."""
    torch.manual_seed(sum(rows))
    w = torch.randn(K, N).to(kind) if kind.is_floating_point else torch.randint(-99, 99, (K, N))
    s = torch.rand(2 * N * (K // GROUP)) / 50
    return [torch.randn(*rows, K).to(dtype), w.to(kind), s.to(dtype)]


def check(computation: Any, args: list[torch.Tensor], count: int = 1) -> None:
    """Compare a result with float64, and the number of kernels."""
    exact = computation.function(*[a.double() if a.dtype == args[0].dtype else a for a in args])
    limit = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}[args[0].dtype]
    error = (computation(*args).double() - exact).abs().max() / exact.abs().max()
    assert error < limit
    plan = computation.plan(*args)
    assert sum(isinstance(step, Launch) for step in plan.steps) == count


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 37])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.few(8)
def test_weights_are_computed_where_they_are_multiplied(
    form: Form, rows: int, dtype: torch.dtype, kind: torch.dtype
) -> None:
    check(tilecore.compute(form), arguments(dtype, kind, rows))


@pytest.mark.parametrize("form", [by_columns, in_groups])
@pytest.mark.parametrize("target", ["emulated h100", "emulated a100", "emulated mi300x"])
def test_gpus_copy_weights_ahead(form: Form, target: str) -> None:
    computation = tilecore.compute(form, target=target)
    args = arguments(torch.float16, torch.int8, 5)
    check(computation, args)
    (text,) = computation.programs(*args)
    assert "T.copy(w" in text
    assert "T.alloc_shared((block_" in text


def test_rows_of_a_batch_are_rows() -> None:
    check(tilecore.compute(by_columns), arguments(torch.float32, torch.int8, 2, 5))


def test_numbers_of_rows_may_vary() -> None:
    computation = tilecore.compute(turned, dynamic=True)
    for rows in 33, 40, 62:
        check(computation, arguments(torch.bfloat16, torch.int8, rows))
    assert len({id(s) for plan in computation.plans for s in plan.stages}) == 1


def test_products_of_many_rows_read_what_was_stored_once() -> None:
    check(tilecore.compute(turned), arguments(torch.float32, torch.int8, 257), count=2)


def test_weights_that_others_read_are_stored() -> None:
    @tilecore.compute
    def both(x: Any, w: Any, s: Any) -> Any:
        weights = torch.exp(w.to(x.dtype) * 0.01)
        y = weights * s[:N]
        return x @ y + y.amax()

    check(both, arguments(torch.float32, torch.int8, 4), count=3)


def test_functions_that_end_another_product_stay_there() -> None:
    @tilecore.compute
    def chain(x: Any, w: Any, s: Any) -> Any:
        scores = (w.mT.to(x.dtype) @ w.to(x.dtype)) * 0.01
        return x[:, :N] @ scores

    computation, args = chain, arguments(torch.float32, torch.int8, 4)
    check(computation, args, count=3)
    last = [s.stage for s in computation.plan(*args).steps if isinstance(s, Launch)][-1]
    assert [node.op for node in last.group.members] == ["product"]


def test_one_tensor_may_be_both_operands() -> None:
    @tilecore.compute
    def square(w: Any) -> Any:
        y = w * 0.5
        return y @ y

    w = torch.randn(24, 24)
    torch.testing.assert_close(square(w), square.function(w), atol=1e-4, rtol=1e-4)


def test_explain_tells_of_what_is_computed() -> None:
    args = arguments(torch.bfloat16, torch.int8, 3)
    assert ": cast, mul, product, " in tilecore.compute(by_columns).explain(*args)


class Quantized(torch.nn.Module):
    """A linear layer of integers of 8 bits with a scale per row."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-99, 99, (N, K), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(N).bfloat16() / 50)

    def forward(self, x: Any) -> Any:
        """Return a row of N numbers per row of K."""
        return F.linear(x, self.weight.to(x.dtype)) * self.scales


def test_graphs_of_torch_compile_compute_weights() -> None:
    torch.compiler.reset()
    model, x = Quantized(), torch.randn(3, K).bfloat16()
    compiled = torch.compile(model, backend="tilecore")
    exact = F.linear(x.double(), model.weight.double()) * model.scales.double()
    error = (compiled(x).double() - exact).abs().max() / exact.abs().max()
    assert error < 2e-2
    check(tilecore.compute(lambda x, w, s: F.linear(x, w.to(x.dtype)) * s),
          [x, model.weight, model.scales])  # fmt: skip
