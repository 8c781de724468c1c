"""Computations whose sizes differ from call to call: kernels with symbols in place of extents."""

import itertools
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tilecore
from tests.tilecore.test_computing import BFLOAT16, block, scaled, wide
from tilecore.computing.extents import Extent, Sizes, divides, taken, widened
from tilecore.errors import ShapeMismatch

R = torch.randn
HELD = torch.randn(7, 1)


def rope(x, cos, sin):
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.maximum(a * cos - b * sin, b * cos + a * sin)


def by_hand(q, k, v, bias):
    return F.softmax(q @ k.mT * 0.2 + bias, -1) @ v


def of_rows(x):
    return F.layer_norm(x, x.shape[-1:]) + x.std(-1, keepdim=True, correction=0) + x.amin(-1, True)


def grouped(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def gelu_of_product(x, w, b):
    return F.gelu(x @ w.to(x.dtype) + b.to(x.dtype))


W, B, QKV, SCALE = scaled(64, 96), R(96), scaled(48, 144), R(48)
# name -> function, and its arguments for two sizes
CASES = {
    "product": (gelu_of_product, lambda n, m: (R(n, 64), W, B)),
    "bfloat16": (gelu_of_product, lambda n, m: (R(m, n, 64).to(BFLOAT16), W, B)),
    "block": (lambda *a: block(*a, 4), lambda n, m: (R(m, n, 48), QKV, SCALE)),
    "rope": (rope, lambda n, m: (R(m, n, 4, 32), R(n, 1, 16), R(n, 1, 16))),
    "softmax": (lambda x: x.softmax(-1), lambda n, m: (R(m, 40, n),)),
    "rows": (of_rows, lambda n, m: (R(m, 40, n + 5),)),
    "long rows": (lambda x: x.log_softmax(-1), lambda n, m: (R(m, n * 11),)),
    "count": (lambda x: x.sum(-1) / x.shape[1] * x.shape[0], lambda n, m: (R(m, n, 48),)),
    "elements": (lambda x, y: x * y + y, lambda n, m: (R(m, n, 40), R(n, 40))),
    "neighbours": (lambda x: x[:, 1:] - x[:, :-1], lambda n, m: (R(m, n, 40),)),
    "steps": (lambda x: x[:, ::2] * 2, lambda n, m: (R(m, n, 40),)),
    "last": (lambda x: x[:, -1] + x[:, 0], lambda n, m: (R(m, n, 40),)),
    "batches": (lambda a, b: F.relu(a @ b), lambda n, m: (R(m, n, 32), R(m, 32, 24))),
    "depth": (lambda a, b: a @ b, lambda n, m: (R(3, m, n), scaled(3, n, 24))),
    "by hand": (by_hand, lambda n, m: (R(2, n, 32), R(2, m, 32), R(2, m, 32), R(n, m))),
    "grouped": (grouped, lambda n, m: (R(2, 8, n, 32), R(2, 2, m, 32), R(2, 2, m, 32))),
    "decode": (grouped, lambda n, m: (R(m, 8, 1, 32), R(m, 2, n * 17, 32), R(m, 2, n * 17, 32))),
    "cache": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k),
        lambda n, m: (R(2, 4, 1, 32), R(2, 4, 2000, 32)[:, :, : n * 9]),
    ),
    "means": (lambda x: x.mean(1), lambda n, m: (R(m, n, 40),)),
    "whole": (lambda x: (x * x).sum(), lambda n, m: (R(m, n, 40),)),
    "flat": (
        lambda x, w: (x.flatten(0, 1) @ w).reshape(x.shape[0], -1, 96).transpose(0, 1),
        lambda n, m: (R(m, n, 64), W),
    ),
    "strided": (lambda x, y: x + y.transpose(0, 1), lambda n, m: (R(m, n, 40), R(n, m, 40))),
    "part": (lambda x: x * 2, lambda n, m: (R(m, n, 140)[..., :40],)),
    "parts": (lambda x: [p * 2 for p in x.split(16, -1)], lambda n, m: (R(m, n, 48),)),
    "chosen": (lambda x, y: torch.where(x > y, x, -y), lambda n, m: (R(m, n), R(m, 1))),
    "held": (
        lambda x: x + HELD.to(x.dtype)[: min(x.shape[-2], 7)].sum(),
        lambda n, m: (R(m, n, 48),),
    ),
    "several": (lambda x, y: (x * 2, y + 1, x.sum(-1)), lambda n, m: (R(n, 40), R(m, 24))),
}


def compared(got, want, tolerance):
    pairs = [(got, want)] if isinstance(got, torch.Tensor) else list(zip(got, want, strict=True))
    for ours, exact in pairs:
        assert ours.shape == exact.shape
        assert (ours.double() - exact).abs().max() <= tolerance * exact.abs().max()


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CASES)
def test_kernels_of_symbols_compute_all_sizes(name):
    function, arguments = CASES[name]
    found, drawn = tilecore.compute(function), random.Random(name)
    most = drawn.choice([20, 60, 200])
    for call, n in enumerate(drawn.sample(range(3, most), 8)):
        args = arguments(n, drawn.randrange(1, 8))
        exact = function(*(wide(a) for a in args))
        compared(found(*args), exact, 2e-2 if name == "bfloat16" else 2e-5)
        assert found.plan(*args).is_own == (call < 2)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["emulated h100", "emulated a100", "emulated mi300x"])
@pytest.mark.parametrize("name", ["product", "softmax", "by hand", "neighbours", "flat", "cache"])
def test_kernels_of_symbols_for_gpus(name, target):
    function, arguments = CASES[name]
    found, drawn = tilecore.compute(function, target=target, dynamic=True), random.Random(4)
    for n, m in ((17, 3), (18, 2), (29, 3), (5, 1), (drawn.randrange(32, 64), 5)):
        args = arguments(n, m)
        compared(found(*args), function(*(wide(a) for a in args)), 2e-3)
        assert not found.plan(*args).is_own


def test_one_kernel_serves_what_lies_between_two_powers_of_2():
    found = tilecore.compute(gelu_of_product, dynamic=True)
    kernels = {n: found.plan(R(n, 64), W, B).stages[0].kernel for n in (33, 65, 40, 127, 63, 100)}
    assert len(set(map(id, kernels.values()))) == 2
    assert kernels[33] is kernels[40] is kernels[63]
    assert kernels[65] is kernels[100] is kernels[127]


def test_extents_that_are_alike_and_their_mean():
    """The extent by which a sum is divided was taken for an argument of the kernel."""
    found = tilecore.compute(lambda x: x.mean(1))
    for rows, columns in ((2, 14), (5, 5), (2, 15), (6, 19), (6, 6), (3, 9)):
        x = R(rows, columns, 40)
        compared(found(x), x.double().mean(1), 1e-5)
    assert not found.plan(R(6, 6, 40)).is_own


def test_what_varies_is_learned_from_the_calls():
    readings = itertools.count()

    @tilecore.compute
    def function(x, w):
        next(readings)
        return x @ w

    for n in (33, 34, 35, 36, 57):
        x = R(n, 64)
        compared(function(x, W), x.double() @ W.double(), 1e-5)
    assert next(readings) == 3  # twice for numbers, once for a symbol
    (text,) = function.programs(R(40, 64), W)
    assert "T.dynamic" in text
    assert "T.assume(" in text
    assert "64" in text  # a width that did not vary is a number
    assert function(R(33, 64), W).shape == (33, 96)
    assert function.plan(R(33, 64), W).is_own  # its own kernel is still there


def test_whether_sizes_vary_can_be_said():
    x = R(40, 64)
    own, all_of_them = (
        tilecore.compute(torch.exp, dynamic=False),
        tilecore.compute(torch.exp, dynamic=True),
    )
    assert own.plan(x).is_own
    assert all(own.plan(R(n, 64)).is_own for n in (40, 41, 42, 43))
    assert not all_of_them.plan(x).is_own
    compared(all_of_them(x), x.double().exp(), 1e-5)


def test_what_a_function_asks_of_a_size_is_assumed():
    """Comparisons and numbers that Python needs decide for which sizes a reading holds."""

    @tilecore.compute(dynamic=True)
    def function(x):
        y = x * 2 if x.shape[0] % 2 == 0 else x - 1
        if x.shape[0] > 50:
            y = y + 3
        return y * sum(range(x.shape[1])) / x.shape[1] ** 0.5

    for n, m in ((40, 5), (41, 5), (42, 5), (51, 5), (52, 5), (40, 6), (63, 7), (36, 5)):
        x = R(n, m)
        compared(function(x), function.function(x.double()), 1e-5)


def test_what_symbols_cannot_read_is_tried_once(caplog):
    readings = itertools.count()

    def function(x):
        next(readings)
        if not isinstance(x.shape[0], int):
            raise RuntimeError("wants a number")
        return x + 1

    found = tilecore.compute(function, dynamic=True)
    with caplog.at_level("INFO", "tilecore.computing"):
        for n in (40, 41, 42):
            x = R(n, 5)
            compared(found(x), x.double() + 1, 1e-5)
            assert found.plan(x).is_own
    assert next(readings) == 4  # with symbols once
    assert "is not read with symbols" in caplog.text


def test_errors_tell_of_the_sizes_of_the_call():
    function = tilecore.compute(lambda x, y: x @ y + 1, dynamic=True)
    function(R(40, 50), R(50, 60))
    with pytest.raises(ShapeMismatch, match="51") as error:
        function(R(40, 51), R(52, 60))
    assert "52" in str(error.value)
    assert "n0" not in str(error.value)


@pytest.mark.few(1)
@pytest.mark.parametrize("of", [torch.tensor, np.asarray])
def test_tuned_kernels_are_for_the_sizes_that_were_tuned(of, tmp_path, monkeypatch):
    monkeypatch.setenv("TILECORE_DATA_DIR", str(tmp_path))
    function = tilecore.compute(lambda x: x * 2 + 1, dynamic=True)
    x = of(np.ones((40, 64), np.float32))
    assert not function.plan(x).is_own
    plan = function.tune(x, trials=2)
    assert plan.is_own
    assert function.plan(x) is plan
    assert not function.plan(x[:33]).is_own


# --- the arithmetic -------------------------------------------------------------------------------


def test_extents_are_polynomials():
    sizes = Sizes()
    n, m = sizes.symbol(12), sizes.symbol(5)
    assert isinstance(n * m + 2 * n, Extent)
    assert (n * m + 2 * n).value == 84
    assert n - n == 0
    assert type(n - n) is int
    assert (n * m) // n is not None
    assert ((n * m) // n).text() == m.text()
    assert ((n * m * 4 + 6) // 2).text() == "((2 * n0 * n1) + 3)"
    assert (n * m) % m == 0
    assert (n // 5).value == 2
    assert (n % 5).at({"n0": 18, "n1": 5}) == 3
    assert divides(4, n * 8 + 4)
    assert not divides(4, n * 2)
    assert sizes.symbol(12) == n


def test_what_is_compared_is_assumed():
    sizes = Sizes()
    n, m = sizes.symbol(12), sizes.symbol(5)
    assert sizes.hold({"n0": 15, "n1": 4})
    assert not sizes.hold({"n0": 16, "n1": 4})  # another power of 2
    assert n > m + 2
    assert sizes.hold({"n0": 10, "n1": 7})
    assert not sizes.hold({"n0": 9, "n1": 7})
    assert n != 2 * m
    assert not sizes.hold({"n0": 10, "n1": 5})
    assert len(range(m)) == 5
    assert not sizes.hold({"n0": 12, "n1": 4})
    assert sizes.fixed == {"n1"}


def test_a_wider_extent_is_one_of_four_in_a_power_of_2():
    sizes = Sizes()
    for value, width in ((33, 40), (40, 40), (41, 48), (63, 64), (5, 5), (3, 3)):
        assert widened(sizes.symbol(value))[0] == width


SLICES = (
    slice(None), slice(1, None), slice(None, -1), slice(2, 5), slice(-3, None), slice(0, 0),
    slice(None, None, 2), slice(1, 100, 3), slice(8, 3), slice(-100, 4),
)  # fmt: skip


@pytest.mark.parametrize("index", SLICES, ids=str)
def test_slices_of_an_extent_are_those_of_its_value(index):
    for value in (2, 5, 9, 31):
        sizes = Sizes()
        first, count, step = taken(index, sizes.symbol(value))
        wanted = range(*index.indices(value))
        values = [getattr(n, "value", n) for n in (first, count, step)]
        assert len(wanted) == values[1]
        if wanted:
            assert values == [wanted.start, len(wanted), wanted.step]
