"""Products of few rows by weights as linear layers have them, on tiles: their transposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tilecore
from tests.tilecore.x86_paths import TILES, here
from tilecore.computing.programs.products import MOST_BY_SMALL, MOST_TURNED

K, N = 200, 136
Form = Callable[..., Any]


def linear(x: Any, w: Any, b: Any) -> Any:
    return F.linear(x, w)


def with_bias(x: Any, w: Any, b: Any) -> Any:
    return F.gelu(F.linear(x, w, b))


def added(x: Any, w: Any, b: Any) -> Any:
    return x[..., :N] + x @ w.mT


def wide(x: Any, w: Any, b: Any) -> Any:
    return F.linear(x, w).float()


def by_heads(x: Any, w: Any, b: Any) -> Any:
    return F.linear(x, w).view(*x.shape[:-1], 4, N // 4).transpose(-2, -3)


def of_columns(x: Any, w: Any, b: Any) -> Any:
    return F.linear(x.mT, w)


FORMS = [linear, with_bias, added, wide, by_heads, of_columns]


def arguments(form: Form, *rows: int) -> list[torch.Tensor]:
    torch.manual_seed(sum(rows))
    shape = (*rows[:-1], K, rows[-1]) if form is of_columns else (*rows, K)
    shapes = [shape, (N, K), (N,)]
    return [torch.randn(s).bfloat16() for s in shapes]


def check(computation: Any, form: Form, args: list[torch.Tensor], *, is_turned: bool) -> None:
    exact, found = form(*[a.double() for a in args]), computation(*args)
    assert found.shape == exact.shape
    assert found.dtype == form(*args).dtype
    assert (found.double() - exact).abs().max() / exact.abs().max() < 1e-2
    (stage,) = computation.plan(*args).stages
    assert ("turned[i, j] = c[j, i]" in stage.program.text) == is_turned


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [(2,), (16,), (3, 7), (60,)])
@pytest.mark.few(3)
def test_the_transpose_is_computed(form: Form, rows: tuple[int, ...]) -> None:
    flat = form is not of_columns or len(rows) == 1
    check(tilecore.compute(form, target=here(TILES)), form, arguments(form, *rows), is_turned=flat)


@pytest.mark.parametrize(
    ("target", "rows", "n"),
    [(TILES, 1, N), (TILES, MOST_BY_SMALL + 1, N), (TILES, 40, 32), ("avx2", 9, N)],
)
def test_it_is_not_where_that_is_slower(target: str, rows: int, n: int) -> None:
    x, w, b = arguments(linear, rows)
    args = [x, w[:n], b]
    check(tilecore.compute(linear, target=here(target)), linear, args, is_turned=False)


def test_more_rows_do_by_large_weights() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(MOST_TURNED + 1, 2064).bfloat16(), torch.randn(3100, 2064).bfloat16()
    computation = tilecore.compute(F.linear, target=here(TILES))
    exact, found = F.linear(x[:70].double(), w.double()), computation(x[:70], w)
    assert (found.double() - exact).abs().max() / exact.abs().max() < 1e-2
    texts = [computation.programs(x[:n], w)[0] for n in (MOST_TURNED, MOST_TURNED + 1)]
    assert ["turned" in text for text in texts] == [True, False]


@pytest.mark.few(2)
@pytest.mark.parametrize("block_m", [16, 64])
@pytest.mark.parametrize("block_n", [64, 128])
@pytest.mark.parametrize("block_k", [64, 256])
@pytest.mark.parametrize("pack_a", ["none", "rows"])
@pytest.mark.parametrize("pack_b", ["grid", "block"])
def test_every_config_computes_the_same(
    block_m: int, block_n: int, block_k: int, pack_a: str, pack_b: str
) -> None:
    x, w, b = arguments(with_bias, 37)
    (stage,) = tilecore.compute(with_bias, target=here(TILES)).plan(x, w, b).stages
    kernel = stage.function(
        block_M=block_m, block_N=block_n, block_K=block_k, pack_a=pack_a, pack_b=pack_b
    )
    exact = with_bias(*(a.double() for a in (x, w, b)))
    assert (kernel(x, w, b).double() - exact).abs().max() / exact.abs().max() < 1e-2


def test_numbers_of_rows_may_vary() -> None:
    computation = tilecore.compute(with_bias, target=here(TILES), dynamic=True)
    for rows in 33, 40, 62:
        check(computation, with_bias, arguments(with_bias, rows), is_turned=True)
    assert len({id(s) for plan in computation.plans for s in plan.stages}) == 1
