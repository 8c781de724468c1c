"""Counts, any and all, places of ends, comparisons of integers, as torch and NumPy have them."""

import math

import numpy as np
import pytest
import torch

import tilecore
from tilecore.computing.planning.plan import Called

INF, NAN = math.inf, math.nan
SHAPES = [(7,), (5, 33), (3, 4, 65), (2, 9000), (1,), (4, 1), (9000, 3)]


def check(function, *args, by_torch: int | None = 0):
    """Compare with torch; ``by_torch``: how many steps it computes (None: any number)."""
    computation = tilecore.compute(function)
    found, wanted = computation(*args), function(*args)
    several = wanted if isinstance(wanted, tuple) else (wanted,)
    assert type(found) is type(wanted)
    for got, want in zip(found if isinstance(found, tuple) else (found,), several, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        torch.testing.assert_close(got, want, equal_nan=True)
    steps = computation.plan(*args).steps
    if by_torch is not None:
        assert sum(isinstance(step, Called) for step in steps) == by_torch, computation.explain(
            *args
        )


COUNTS = {
    "sum": lambda x: (x > 0).sum(),
    "sum of rows": lambda x: (x > 0).sum(-1),
    "sum of columns": lambda x: (x > 0).sum(0, keepdim=True),
    "said type": lambda x: torch.sum(x > 0, dtype=torch.int64),
    "nonzero": lambda x: torch.count_nonzero(x.clamp(min=0)),
    "nonzero of rows": lambda x: torch.count_nonzero(x > 0, dim=-1),
    "any": lambda x: (x > 2).any(),
    "any of rows": lambda x: torch.any(x > 2, dim=-1, keepdim=True),
    "any of numbers": lambda x: x.any(0),
    "all": lambda x: (x > -4).all(),
    "all of rows": lambda x: torch.all(x > -1, dim=-1),
    "share": lambda x: (x > 0).sum() / x.numel(),
    "rate": lambda x: (x > 0).float().mean(),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", COUNTS)
def test_truth_is_counted_by_kernels(name, shape) -> None:
    check(COUNTS[name], torch.randn(shape))


def test_what_is_no_number_is_not_nothing() -> None:
    x = torch.tensor([[NAN, 0.0], [0.0, -0.0], [INF, 1.0]])
    check(lambda x: (x.any(), x.all(), x.any(1), x.all(1), torch.count_nonzero(x)), x)


def test_tensors_of_truth_are_counted() -> None:
    x = torch.rand(13, 70) > 0.5
    check(lambda x: (x.sum(), x.sum(1), x.any(1), x.all(0)), x)


def test_more_elements_than_float32_counts() -> None:
    x = torch.zeros(2**24 + 8)
    check(lambda x: (x == 0).sum(), x)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "int64"])
def test_integers_are_counted_by_torch(kind) -> None:
    x = torch.randint(0, 9, (5, 40)).to(getattr(torch, kind))
    check(lambda x: (x.sum(1), x.any()), x, by_torch=2)


PLACES = {
    "argmax": lambda x: x.argmax(),
    "argmax of rows": lambda x: x.argmax(-1),
    "argmin of columns": lambda x: torch.argmin(x, 0),
    "kept": lambda x: x.argmax(-1, keepdim=True),
    "all kept": lambda x: torch.argmax(x, keepdim=True),
    "largest": lambda x: x.max(-1),
    "least": lambda x: torch.min(x, dim=0, keepdim=True),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", PLACES)
def test_places_of_ends(name, shape) -> None:
    check(PLACES[name], torch.randn(shape))


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_first_of_equal_ends_and_of_what_is_no_number(name, dtype) -> None:
    rows = [
        [1, 3, 3, 0],
        [NAN, 1, 2, NAN],
        [2, NAN, INF, 5],
        [-INF] * 4,
        [7, 7, 7, 7],
        [0, -1, 2, 2],
    ]
    check(PLACES[name], torch.tensor(rows, dtype=dtype))


def test_parts_of_what_max_returns() -> None:
    check(lambda x: x.max(1).values + x.max(1)[0], torch.randn(6, 50))
    check(lambda x: (x.max(1).indices == 3).sum(), torch.randn(6, 50))


@pytest.mark.parametrize("length", [2**18 + 1, 2**20])
def test_places_of_long_rows(length) -> None:
    """By way of their parts; by torch where these have no length in common."""
    x = torch.randn(length)
    x[length // 2 :: 77] = 9.0
    check(lambda x: x.argmax(), x, by_torch=None)


def test_places_of_rows_that_vary() -> None:
    computation = tilecore.compute(lambda x: (x.argmax(1), (x > 0).sum(1)))
    for rows, columns in ((3, 40), (5, 40), (9, 40), (9, 41), (2, 70), (6, 300)):
        x = torch.randn(rows, columns)
        places, counts = computation(x)
        assert torch.equal(places, x.argmax(1))
        assert torch.equal(counts, (x > 0).sum(1))


COMPARED = {
    "accuracy": lambda x, t: (x.argmax(1) == t).float().mean(),
    "ignored": lambda x, t: (t != -100).sum(),
    "chosen": lambda x, t: torch.where((t > 3)[:, None], x, 0.0).sum(1),
    "far": lambda x, t: (t < 2**24 - 1).all(),
    "of a number": lambda x, t: (t >= 2.5).sum(),
}


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.int16])
@pytest.mark.parametrize("name", COMPARED)
def test_integers_are_compared_by_kernels(name, kind) -> None:
    if name == "far" and kind is torch.int16:
        pytest.skip("torch refuses it")
    torch.manual_seed(0)
    t = torch.randint(-5, 9, (40,)).to(kind)
    check(COMPARED[name], torch.randn(40, 9), t)


def test_places_are_compared_with_any_integer() -> None:
    x, far = torch.randn(64, 5), torch.randint(-(2**62), 2**62, (64,))
    far[:32] = x[:32].argmax(1)
    check(lambda x, far: (x.argmax(1) == far, far > x.argmax(1)), x, far)


@pytest.mark.parametrize("number", [2**24, 2**24 + 1, -(2**24), INF])
def test_what_float32_does_not_tell_apart_is_compared_by_torch(number) -> None:
    t = torch.tensor([2**24 - 1, 2**24, 2**24 + 1, -(2**24), 5])
    check(lambda t: (t == number, t < number), t, by_torch=2)
    check(lambda t: t == t.flip(0), t, by_torch=None)


def test_narrow_integers_are_compared_with_each_other() -> None:
    a, b = torch.randint(-9, 9, (2, 50)).to(torch.int8)
    check(lambda a, b: (a == b).sum(), a, b)


@pytest.mark.parametrize("equal_nan", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_elements_that_are_close(equal_nan, dtype) -> None:
    numbers = torch.tensor([0.0, 1.0, -1.0, 1e-9, INF, -INF, NAN, 1e30], dtype=dtype)
    a, b = numbers[:, None].expand(8, 8).contiguous(), numbers[None].repeat(8, 1) * (1 + 4e-6)
    check(lambda a, b: torch.isclose(a, b, equal_nan=equal_nan), a, b)
    check(lambda a, b: torch.isclose(a, b, rtol=1e-7, atol=1e-3).all(), a, b)


@pytest.mark.parametrize("kind", ["int8", "int32", "int64"])
def test_quotients_of_integers(kind) -> None:
    a, b = torch.randint(1, 99, (2, 3, 50)).to(getattr(torch, kind))
    check(lambda a, b: (a / b, a / 3, 7 / b), a, b)


def test_gradients_go_past_counts() -> None:
    x = torch.randn(8, 9, requires_grad=True)
    computation = tilecore.compute(lambda x: (x * x).sum() / (x > 0).sum() + x.max(1).values.sum())
    want = x.detach().clone().requires_grad_()
    computation(x).backward()
    ((want * want).sum() / (want > 0).sum() + want.max(1).values.sum()).backward()
    torch.testing.assert_close(x.grad, want.grad)


OF_NUMPY = {
    "count": lambda a, t: (a > 0).sum(axis=1),
    "any": lambda a, t: np.any(a > 2, axis=0),
    "all": lambda a, t: np.all(a > -9),
    "nonzero": lambda a, t: np.count_nonzero(a > 0, axis=1),
    "argmax": lambda a, t: a.argmax(axis=1),
    "argmin": lambda a, t: np.argmin(a),
    "right": lambda a, t: np.mean((a.argmax(1) == t).astype(np.float32)),
    "close": lambda a, t: np.isclose(a, a + 1e-6),
    "integers": lambda a, t: (t == 3).sum(),
}


@pytest.mark.parametrize("name", OF_NUMPY)
def test_arrays_of_numpy(name) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((30, 41), dtype=np.float32)
    t = rng.integers(0, 41, 30)
    found, want = tilecore.compute(OF_NUMPY[name])(a, t), OF_NUMPY[name](a, t)
    assert np.asarray(found).dtype == np.asarray(want).dtype
    np.testing.assert_allclose(found, want, rtol=1e-6)


@pytest.mark.few(2)
@pytest.mark.parametrize("diagonal", [0, 3, -2, 100])
@pytest.mark.parametrize("shape", [(7, 7), (5, 33), (2, 65, 4), (1, 1)])
def test_triangles(shape, diagonal) -> None:
    x = torch.randn(shape)
    x.view(-1)[::5] = INF
    check(lambda x: (torch.tril(x, diagonal), x.triu(diagonal) + 1), x)


def test_products_of_all_pairs() -> None:
    check(lambda a, b: (torch.outer(a, b), torch.outer(a, b).sum(), a.outer(b).amax(0)),
          torch.randn(70), torch.randn(130))  # fmt: skip
