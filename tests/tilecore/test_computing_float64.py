"""Computations of float64, which kernels compute in float64, against torch's own functions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import tilecore
from tests.tilecore.cuda.emulated import run_emulated
from tilecore.computing import graph, operands
from tilecore.computing.functions.by_name import attention
from tilecore.computing.planning.plan import Called, Launch, function_of
from tilecore.errors import SourceSpan

torch.manual_seed(62)
WIDE = torch.float64


def normal(*shape, dtype=WIDE):
    return torch.randn(*shape, dtype=dtype)


X, Y, W, V, NARROW = (
    normal(37, 53),
    normal(37, 53),
    normal(53, 29),
    normal(53),
    normal(37, 53).float(),
)
CLASSES = torch.randint(0, 53, (37,))
HEADS = tuple(normal(2, 3, 17, 16) for _ in range(3))
KEYS = (normal(1, 4, 1, 64), normal(1, 4, 512, 64), normal(1, 4, 512, 64))


def checked(function, *given, by_kernels=True):
    """Compare a computation with its function, to some units in the last place of the largest."""
    computation = tilecore.compute(function)
    found, wanted = computation(*given), function(*given)
    assert found.dtype == wanted.dtype
    if not wanted.is_floating_point():
        assert torch.equal(found, wanted)
    else:
        finite = wanted[torch.isfinite(wanted)].abs()
        most = float(finite.max()) if finite.numel() else 1.0
        closely = 2e-14 if wanted.dtype == WIDE else 1e-6
        torch.testing.assert_close(found, wanted, rtol=closely, atol=closely * most, equal_nan=True)
    steps = computation.plan(*given).steps
    if by_kernels:
        assert not any(isinstance(step, Called) for step in steps), steps
    return sum(isinstance(step, Launch) for step in steps)


@pytest.mark.few(11)
@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda x: torch.softmax(x, -1), (X,)),
        (lambda x: torch.softmax(x, 0), (X,)),
        (F.gelu, (X,)),
        (lambda x: F.gelu(x, approximate="tanh"), (X,)),
        (lambda x: F.silu(x) * 2.1, (X,)),
        (lambda x: F.softplus(x * 30), (X,)),
        (lambda x: torch.sigmoid(x) - torch.erf(x), (X,)),
        (lambda x: torch.sin(x * 100) + torch.cos(x), (X,)),
        (lambda x: torch.log(x.abs()) + torch.log1p(x.abs()) + torch.log2(x.abs()), (X,)),
        (lambda x: torch.log10(x.abs()), (X,)),
        (lambda x: x**2 + x.abs() ** 1.5 + x.abs() ** -0.5, (X,)),
        (lambda x: torch.tanh(x * 1e-7) * 1e7, (X,)),
        (lambda x, v: F.layer_norm(x, (53,), v, v), (X, V)),
        (lambda x, v: F.rms_norm(x, (53,), v), (X, V)),
        (lambda x, v: F.batch_norm(x, v, v.abs() + 1), (X, V)),
        (lambda x: x.std(-1), (X,)),
        (lambda x: x.var(0), (X,)),
        (lambda x: torch.linalg.vector_norm(x), (X,)),
        (lambda x: x.amax(1) - x.amin(1), (X,)),
        (lambda x: torch.logsumexp(x * 1e300, 1), (X,)),
        (lambda x, y: F.mse_loss(x, y), (X, Y)),
        (lambda x: (x * x).sum(-1), (normal(3, 40960),)),
        (lambda x: (x * x).sum(0), (normal(4096, 7),)),
        (lambda x: x * 1e300 * 1e-300 + 1e-200, (X,)),
        (lambda x: x / 3 + math.pi * 0.1, (X,)),
        (lambda x: x.clamp(-0.1, 0.3), (X,)),
        (lambda x, y: torch.where(x > y, 0.1 * x, y / 3), (X, Y)),
        (lambda x: torch.where(x > 0, 0.1, 0.3) + x, (X,)),
        (lambda x: torch.nan_to_num(x / 0), (X,)),
        (lambda x: torch.isinf(x * 1e308 * 10), (X,)),
        (lambda x: (x * 1e6).to(torch.int64), (X,)),
        (lambda x: (x * 1e6).int(), (X,)),
        (lambda x, y: torch.cat([x * 2, y + 1], 1), (X, Y)),
    ],
)
def test_elements_and_rows(function, given):
    checked(function, *given)


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda x, w: x @ w, (X, W)),
        (lambda x, y: x @ y.T, (X, Y)),
        (lambda x, y: x.T @ y, (X, Y)),
        (lambda x, w: torch.tanh(x @ w * 0.1) + 1 / 3, (X, W)),
        (lambda x, w: x @ (w * 0.1), (normal(2, 512), normal(512, 512))),
        (lambda x, w: x @ (w.double() * 0.1), (normal(2, 512), normal(512, 512).float())),
        (lambda x, v: x @ v, (normal(512, 512), normal(512))),
        (lambda x, v: x @ v, (normal(5120), normal(5120))),
        (lambda x, y: x @ y, (normal(3, 20, 30), normal(3, 30, 40))),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), HEADS),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), HEADS),
        (lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v, HEADS),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), KEYS),
    ],
)
def test_products_and_attention(function, given):
    checked(function, *given)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda x, f: x + f, (X, NARROW)),
        (lambda x, f: (x * f).float() * f, (X, NARROW)),
        (lambda f: (f.double() ** 2).sum(-1).sqrt(), (NARROW,)),
        (lambda f, x: (f @ f.T).double() @ x, (NARROW, X)),
        (lambda f, s: f * s, (NARROW, torch.tensor(0.3, dtype=WIDE))),
        (lambda x, i: x * i, (X, torch.randint(0, 2**40, (53,)))),
        (lambda x: (x > 0).double() * x, (X,)),
    ],
)
def test_beside_other_types(function, given):
    checked(function, *given)


def test_a_kernel_computes_in_one_type():
    wide = checked(lambda x, f: ((x * 2).exp(), (f * 2).exp())[0], X, NARROW)
    mixed = checked(lambda x, f: (x * 2).float() * f, X, NARROW)
    assert (wide, mixed) == (1, 2)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("function", "given"),
    [
        (F.cross_entropy, (X, CLASSES)),
        (lambda x, t: F.nll_loss(torch.log_softmax(x, -1), t), (X, CLASSES)),
        (F.embedding, (torch.randint(0, 53, (7, 9)), W)),
        (lambda x, i, y: x.index_add(0, i, y * 2 + 1),
         (normal(5, 53), torch.randint(0, 5, (37,)), Y)),
        (lambda x, i: x[i] * 3, (X, torch.randint(0, 37, (11,)))),
        (lambda x: x.sort(1).values + 1, (X,)),
        (lambda x: torch.expm1(x * 1e-5), (X,)),
        (F.conv2d, (normal(2, 3, 9, 9), normal(4, 3, 3, 3))),
    ],
)  # fmt: skip
def test_what_torch_computes_a_part_of(function, given):
    checked(function, *given, by_kernels=False)


def test_gradients_are_those_of_torch():
    def function(x, w):
        return torch.tanh(x @ w).logsumexp(-1).sum()

    found, wanted = [], []
    for call, kept in ((torch.compile(function, backend="tilecore"), found), (function, wanted)):
        given = [X.clone().requires_grad_(), W.clone().requires_grad_()]
        call(*given).backward()
        kept += [g.grad for g in given]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


def test_sizes_vary():
    computation = tilecore.compute(lambda x, w: torch.softmax(x @ w, -1) * 0.1)
    for rows in (3, 4, 6, 9):
        x = normal(rows, 53)
        wanted = torch.softmax(x @ W, -1) * 0.1
        torch.testing.assert_close(computation(x, W), wanted, rtol=1e-13, atol=1e-15)


def test_arrays_that_numpy_makes_are_computed_by_kernels():
    def function(x):
        centred = x - x.mean(axis=0)
        return np.exp(-(centred**2) / 3).sum(axis=1)

    x = np.random.default_rng(0).standard_normal((40, 24))
    computation = tilecore.compute(function)
    np.testing.assert_allclose(computation(x), function(x), rtol=1e-14)
    assert not any(isinstance(step, Called) for step in computation.plan(x).steps)


@pytest.mark.few(2)
@pytest.mark.parametrize("target", ["a100", "h100"])
@pytest.mark.parametrize(
    ("function", "config"),
    [
        (lambda x: torch.softmax(x * 0.1, -1), {"block_M": 2, "threads": 128}),
        (lambda x: (x * x).exp().sum(0), {"block_N": 64, "threads": 128}),
    ],
)
def test_kernels_of_gpus_compute_in_float64_too(function, config, target):
    x = normal(20, 96)
    found = tilecore.compute(function)
    found(x)
    program = found.plan(x).stages[0].program
    made = function_of(program.name, program.text, target, __name__)
    wanted = function(x).numpy()
    out = np.zeros(wanted.shape)
    run_emulated(made.program(**config), target, [x.numpy(), out])
    np.testing.assert_allclose(out, wanted, rtol=1e-13)


def test_products_of_float64_on_gpus_are_torchs(monkeypatch):
    x = graph.Node("input", "x", (), (8, 8), "float64")
    assert graph.product(x, x, SourceSpan.unknown()).dtype == "float64"
    monkeypatch.setattr(operands, "device", lambda: torch.device("cuda"))
    with pytest.raises(graph.OfTorch):
        graph.product(x, x, SourceSpan.unknown())
    with pytest.raises(graph.OfTorch):
        attention(x, x, x, 1.0, SourceSpan.unknown())
