"""Products whose kernels compute their right operand: weights of few bits and their scales."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tilecore
from tilecore.computing.planning.plan import Launch
from tilecore.errors import ArgumentError

K, N, GROUP = 96, 80, 32
Form = Callable[..., Any]


def whole(x: Any, w: Any, s: Any) -> Any:
    return x @ w.to(x.dtype)


def by_columns(x: Any, w: Any, s: Any) -> Any:
    return torch.relu(x @ (w.to(x.dtype) * s[:N]))


def linear(x: Any, w: Any, s: Any) -> Any:
    return F.linear(x, (w.to(x.dtype) - 3.0) * s[:N, None], s[:N])


def turned(x: Any, w: Any, s: Any) -> Any:
    return x @ (w.to(x.dtype) * s[:N, None]).mT


def in_groups(x: Any, w: Any, s: Any) -> Any:
    parts = w.view(N, K // GROUP, GROUP).to(x.dtype)
    scales = s.view(2, N, K // GROUP, 1)
    return F.linear(x, ((parts - scales[0]) * scales[1]).view(N, K))


def of_other_shape(x: Any, w: Any, s: Any) -> Any:
    return x @ (w.view(K, N).to(x.dtype) * s[:N])


FORMS = [whole, by_columns, linear, turned, in_groups, of_other_shape]
BY_ROWS = (whole, by_columns)  # weights are (K, N)


def arguments(form: Form, dtype: torch.dtype, kind: torch.dtype, *rows: int) -> list[torch.Tensor]:
    """Return a left operand, weights and scales."""
    torch.manual_seed(sum(rows))
    shape = (K, N) if form in BY_ROWS else (N, K)
    w = torch.randn(shape).to(kind) if kind.is_floating_point else torch.randint(-99, 99, shape)
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
    check(tilecore.compute(form), arguments(form, dtype, kind, rows))


@pytest.mark.few(2)
@pytest.mark.parametrize("form", [by_columns, in_groups])
@pytest.mark.parametrize("target", ["emulated h100", "emulated a100", "emulated mi300x"])
def test_gpus_copy_weights_ahead(form: Form, target: str) -> None:
    computation = tilecore.compute(form, target=target)
    args = arguments(form, torch.float16, torch.int8, 5)
    check(computation, args)
    (text,) = computation.programs(*args)
    assert "T.copy(w" in text
    assert "T.alloc_shared((block_" in text


# --- integers of 4 bits ---------------------------------------------------------------------------

PARTS = N * K // GROUP
SHIFTS = torch.arange(0, 32, 4, dtype=torch.int32)
CODES = torch.linspace(-1, 1, 16).pow(3)


def scaled(codes: Any, x: Any, s: Any) -> Any:
    """Return weights (N, K) for codes from 0 to 15."""
    zeros, scales = s.view(2, N, K // GROUP, 1)
    parts = codes.view(N, K // GROUP, GROUP).to(x.dtype)
    return ((parts - zeros) * scales).view(N, K)


def neighbours(x: Any, w: Any, s: Any) -> Any:
    return F.linear(x, scaled(torch.stack([w & 15, w >> 4], -1).view(N, K), x, s))


def floats_of_neighbours(x: Any, w: Any, s: Any) -> Any:
    low, high = (w & 15).to(x.dtype), torch.bitwise_right_shift(w, 4).to(x.dtype)
    return F.linear(x, scaled(torch.stack([low, high], -1).view(N, K), x, s))


def columns_apart(x: Any, w: Any, s: Any) -> Any:
    return F.linear(x, scaled(torch.cat([w >> 4, w & 15], -1), x, s))


def rows_apart(x: Any, w: Any, s: Any) -> Any:
    w = w.view(N // 2, K)
    return F.linear(x, scaled(torch.cat([w >> 4, w & 15]), x, s))


def less_eight(x: Any, w: Any, s: Any) -> Any:
    codes = torch.stack([w & 15, w >> 4], -1).to(torch.int8) - 8
    return F.linear(x, scaled(codes.reshape(N, K), x, s))


def written_in_turn(x: Any, w: Any, s: Any) -> Any:
    codes = torch.empty(N, K, dtype=torch.uint8)
    codes[:, 0::2], codes[:, 1::2] = w & 15, w >> 4
    return F.linear(x, scaled(codes, x, s))


def by_table(x: Any, w: Any, s: Any) -> Any:
    codes = torch.stack([w & 15, w >> 4], -1).view(N, K)
    return F.linear(
        x, CODES[codes.int()].to(x.dtype) * s[:PARTS].view(N, -1).repeat_interleave(GROUP, 1)
    )


def words(x: Any, w: Any, s: Any) -> Any:  # as GPTQ packs them, eight neighbours along K
    w = w.view(K // 8, 1, N).expand(-1, 8, -1)
    codes = (torch.bitwise_right_shift(w, SHIFTS[:, None]) & 15).view(K // GROUP, GROUP, N)
    zeros, scales = s.view(2, K // GROUP, 1, N)
    return x @ ((codes.to(x.dtype) - zeros) * scales).view(K, N)


PACKED = [
    neighbours, floats_of_neighbours, columns_apart, rows_apart, less_eight, written_in_turn,
    by_table, words,
]  # fmt: skip


def packed(form: Form, dtype: torch.dtype, rows: int) -> list[torch.Tensor]:
    """Return a left operand, two codes per byte, and zeros and scales of groups."""
    torch.manual_seed(rows)
    w, s = torch.randint(0, 256, (N, K // 2), dtype=torch.uint8), torch.rand(2 * PARTS)
    w = w.view(torch.int32) if form is words else w
    return [torch.randn(rows, K).to(dtype), w, s.to(dtype)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 19])
@pytest.mark.parametrize("form", PACKED)
@pytest.mark.few(12)
def test_codes_are_unpacked_where_they_are_multiplied(
    form: Form, rows: int, dtype: torch.dtype
) -> None:
    computation, args = tilecore.compute(form), packed(form, dtype, rows)
    check(computation, args)
    assert "torch's" not in computation.explain(*args)


@pytest.mark.parametrize("block_k", [64, 128])
def test_tiles_that_end_within_vectors_of_chosen_codes(block_k: int) -> None:
    """TVM failed on the interval that it took a choice of two masked loads for."""
    x, w, s = packed(rows_apart, torch.float32, 19)
    (launch,) = tilecore.compute(rows_apart).plan(x, w, s).steps
    assert isinstance(launch, Launch)
    tiles = {"block_M": 16, "block_N": 32, "block_K": block_k}
    kernel = launch.stage.function(**{**launch.stage.chosen.config, **tiles})
    exact = rows_apart(x.double(), w, s.double())
    got = kernel(x, w.view(N // 2, K), *s.view(2, N, K // GROUP).unbind())
    assert (got.double() - exact).abs().max() / exact.abs().max() < 2e-5


@pytest.mark.parametrize("form", PACKED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.few(4)
def test_codes_are_unpacked_by_a_kernel_for_many_rows(form: Form, dtype: torch.dtype) -> None:
    computation, args = tilecore.compute(form), packed(form, dtype, 513)
    check(computation, args, count=2)
    assert "torch's" not in computation.explain(*args)


@pytest.mark.parametrize("form", PACKED)
@pytest.mark.parametrize("target", ["emulated h100", "emulated mi300x"])
@pytest.mark.few(4)
def test_gpus_unpack_codes(form: Form, target: str) -> None:
    check(tilecore.compute(form, target=target), packed(form, torch.float16, 3))


@pytest.mark.few(2)
@pytest.mark.parametrize("target", ["auto", "emulated h100"])
@pytest.mark.parametrize("rows", [1, 20])
def test_what_is_behind_the_last_column_adds_nothing(rows: int, target: str) -> None:
    @tilecore.compute(target=target)
    def divided(x: Any, w: Any, s: Any) -> Any:  # there by 0
        return F.linear(x, (w.view(48, 5, GROUP).to(x.dtype) / s).view(48, 5 * GROUP))

    torch.manual_seed(rows)
    w, s = torch.randint(1, 99, (48, 5 * GROUP), dtype=torch.int8), torch.rand(48, 5, 1) + 0.5
    check(divided, [torch.randn(rows, 5 * GROUP).half(), w, s.half()])


def test_gpus_unpack_codes_by_a_kernel() -> None:
    computation = tilecore.compute(neighbours, target="emulated a100")
    check(computation, packed(neighbours, torch.float16, 65), count=2)


@pytest.mark.few(2)
@pytest.mark.parametrize("form", [neighbours, columns_apart, by_table, words])
def test_torch_compile_unpacks_codes(form: Form) -> None:
    torch.compiler.reset()
    args = packed(form, torch.float32, 2)
    exact = form(*[a.double() if a.is_floating_point() else a for a in args])
    error = torch.compile(form, backend="tilecore")(*args).double() - exact
    assert error.abs().max() / exact.abs().max() < 2e-5


def test_shifts_by_as_many_bits_as_there_are_are_those_of_torch() -> None:
    @tilecore.compute
    def shifted(x: Any, w: Any, by: Any) -> Any:
        return x @ torch.bitwise_right_shift(w, by).to(x.dtype)

    w, by = torch.randint(-99, 99, (16, 8), dtype=torch.int8), torch.arange(-2, 14).int()[:, None]
    x = torch.randn(2, 16)
    torch.testing.assert_close(
        shifted(x, w, by.to(torch.int8)), shifted.function(x, w, by.to(torch.int8))
    )
    torch.testing.assert_close(shifted(x, w, by), shifted.function(x, w, by))


def test_integers_wrap_as_those_of_torch() -> None:
    @tilecore.compute
    def wrapped(x: Any, w: Any) -> Any:
        masked = (w | -16) + (w ^ -1) - (w & 255)
        return x @ ((w * 3 - 100) + (w << 2) + masked).to(x.dtype)

    for dtype in torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64:
        w = torch.randint(0, 127, (16, 8)).to(dtype)
        x = torch.randn(2, 16)
        torch.testing.assert_close(wrapped(x, w), wrapped.function(x, w), atol=1e-3, rtol=1e-4)


def test_entries_that_may_not_be_there_are_looked_up_by_torch() -> None:
    @tilecore.compute
    def looked_up(x: Any, w: Any, table: Any) -> Any:
        return x @ table[w.long()]

    x, w, table = torch.randn(2, 16), torch.randint(-5, 5, (16, 8)), torch.randn(5)
    torch.testing.assert_close(looked_up(x, w, table), looked_up.function(x, w, table))
    with pytest.raises(ArgumentError, match="out of bounds"):
        looked_up(x, w + 9, table)


# --- where it is, and is not ------------------------------------------------------------------


def test_rows_of_a_batch_are_rows() -> None:
    check(tilecore.compute(by_columns), arguments(by_columns, torch.float32, torch.int8, 2, 5))


def test_numbers_of_rows_may_vary() -> None:
    computation = tilecore.compute(turned, dynamic=True)
    for rows in 33, 40, 62:
        check(computation, arguments(turned, torch.bfloat16, torch.int8, rows))
    assert len({id(s) for plan in computation.plans for s in plan.stages}) == 1


def test_products_of_many_rows_read_what_was_stored_once() -> None:
    check(tilecore.compute(turned), arguments(turned, torch.float32, torch.int8, 513), count=2)


def test_weights_that_others_read_are_stored() -> None:
    @tilecore.compute
    def both(x: Any, w: Any, s: Any) -> Any:
        weights = torch.exp(w.to(x.dtype) * 0.01)
        y = weights * s[:N]
        return x @ y + y.amax()

    check(both, arguments(by_columns, torch.float32, torch.int8, 4), count=3)


def test_functions_that_end_another_product_stay_there() -> None:
    @tilecore.compute
    def chain(x: Any, w: Any, s: Any) -> Any:
        scores = (w.mT.to(x.dtype) @ w.to(x.dtype)) * 0.01
        return x[:, :N] @ scores

    computation, args = chain, arguments(by_columns, torch.float32, torch.int8, 4)
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
    args = arguments(by_columns, torch.bfloat16, torch.int8, 3)
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
