"""Functions of elements made of comparisons and arithmetic, and elements picked out of rows."""

import math

import pytest
import torch
import torch.nn.functional as F

import tilecore
from tilecore.computing.planning.plan import Called, Launch

SPECIAL = torch.tensor(
    [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 3.0, 1e-6, -1e-6, 100.0,
     -100.0, 1e30, -1e30, 0.3]
)  # fmt: skip


def agrees(function, *given, kernels=None, calls=0, tolerance=None):
    """Compare a computation with torch; return it."""
    computed = tilecore.compute(function)
    torch.testing.assert_close(
        computed(*given), function(*given), equal_nan=True, rtol=tolerance,
        atol=None if tolerance is None else tolerance / 10,
    )  # fmt: skip
    steps = computed.plan(*given).steps
    assert sum(isinstance(step, Called) for step in steps) == calls
    if kernels is not None:
        assert sum(isinstance(step, Launch) for step in steps) == kernels
    return computed


FUNCTIONS = {
    "hardtanh": F.hardtanh, "hardtanh of some": lambda x: F.hardtanh(x, -0.5, 0.7),
    "celu": lambda x: F.celu(x, 2.0), "selu": F.selu, "softsign": F.softsign,
    "threshold": lambda x: F.threshold(x, 0.1, -3), "tanhshrink": F.tanhshrink,
    "hardshrink": F.hardshrink, "softshrink": lambda x: F.softshrink(x, 0.4),
    "log10": torch.log10, "isnan": torch.isnan, "isinf": torch.isinf, "isfinite": torch.isfinite,
    "clamp_min": lambda x: x.clamp_min(0.2), "clamp_max": lambda x: torch.clamp_max(x, 0.2),
    "nan_to_num": torch.nan_to_num, "numbers for NaN": lambda x: x.nan_to_num(1.0, 5.0, -3),
    "in place": lambda x: (x * 1).clamp_min_(0),
}  # fmt: skip


@pytest.mark.few(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_elements_are_those_of_torch(name, dtype):
    tolerance = {torch.float32: 2e-6, torch.bfloat16: 0.2, torch.float16: 0.02}[dtype]
    is_rounded_between = name == "tanhshrink"  # by torch, of halves
    tolerance = tolerance if is_rounded_between or dtype == torch.float32 else None
    agrees(FUNCTIONS[name], SPECIAL.to(dtype), kernels=1, tolerance=tolerance)


def test_functions_of_several_tensors():
    a, b, w = torch.randn(5, 8), torch.randn(5, 8), torch.rand(5, 8)
    agrees(lambda a, b: (torch.lerp(a, b, 0.3), a.lerp(b, 0.9)), a, b)
    agrees(lambda a, b, w: (a.lerp(b, w), torch.lerp(a, b, w[:1])), a, b, w)
    agrees(lambda a, b, w: (a.addcmul(b, w), a.addcmul(b, w, value=-0.5)), a, b, w)
    agrees(lambda a, b, w: torch.addcdiv(a, b, w + 1, value=2), a, b, w)
    agrees(lambda a: F.glu(a), a)
    agrees(lambda a: (torch.var_mean(a, -1), torch.std_mean(a, (0, 1), correction=0)), a)
    agrees(lambda a, b: torch.baddbmm(a[:, None], a[:, :, None], b[:, None], alpha=0.5), a, b)


def adam(p, g, m, v):
    p.mul_(0.999)
    m.lerp_(g, 0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    p.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)


def test_a_step_of_an_optimizer_is_one_kernel_that_writes_its_arguments():
    given = [torch.randn(7, 9).abs() for _ in range(4)]
    wanted = [t.clone() for t in given]
    computed = tilecore.compute(adam)
    computed(*given)
    adam(*wanted)
    torch.testing.assert_close(given, wanted)
    (launch,) = computed.plan(*given).steps
    assert isinstance(launch, Launch)
    assert not launch.roots
    assert set(launch.stage.program.overwritten) == {"p", "m", "v_1"}  # v is a program's own name
    assert "writes to" in computed.explain(*given)


# --- integers and truth among floats --------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64], ids=str)
def test_integers_and_truth_are_numbers_among_floats(dtype):
    x, i = torch.randn(5, 40), torch.randint(0, 9, (5, 40)).to(dtype)
    agrees(lambda x, i: x * i + i / 3.0, x, i, kernels=1)
    agrees(lambda x, i: (torch.add(i, x, alpha=2), i * 2.5), x, i, kernels=1)
    agrees(lambda x, i: (x.bfloat16() * i, i * x[0, 0]), x, i, kernels=1)
    agrees(lambda x, i: (x * i).sum(-1), x, i, kernels=1)
    if dtype != torch.bool:
        agrees(lambda x, i: (1.0 - i) * -1e9 + x, x, i, kernels=1)


def test_large_integers_are_rounded_as_by_torch():
    i = torch.tensor([2**24 + 1, 2**24 + 3, 2**40 + 12345, -(2**62) - 1])
    agrees(lambda i: i * 1.0, i, kernels=1)
    agrees(lambda i: i * 2, i, kernels=0, calls=1)  # integers, exactly


# --- elements that are picked ---------------------------------------------------------------------


def chosen(x, ids):
    return x.log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, ids: chosen(x / 0.7, ids[..., 0]),  # the logarithms are not stored
        lambda x, ids: (x * x[:, :, :1].exp()).gather(2, ids[..., :2]),
        lambda x, ids: (x * x[0, :1]).gather(1, ids[:, :1]),
        lambda x, ids: (x * 2).gather(2, ids[..., :50]),  # many
        lambda x, ids: (x * 2).gather(2, ids[:2, :, :1]),  # of some rows
        lambda x, ids: (x * x[0, 0]).gather(2, ids[..., :1]),
        lambda x, ids: (x > 0).gather(2, ids[..., :1]),
    ],
)
def test_of_few_elements_only_these_are_computed(function):
    agrees(function, torch.randn(3, 5, 60), torch.randint(0, 5, (3, 5, 60)), kernels=1, calls=1)


def test_picked_elements_of_a_product_are_those_that_are_stored():
    h, w, b, ids = torch.randn(3, 5, 16), torch.randn(16, 60), torch.randn(60), torch.ones(3, 5)
    agrees(lambda h, w, b, ids: chosen(h @ w + b, ids), h, w, b, ids.long(), kernels=2, calls=1)


def test_picked_elements_have_torchs_gradient():
    x, ids = torch.randn(3, 5, 60, requires_grad=True), torch.randint(0, 60, (3, 5))
    (found,) = torch.autograd.grad(tilecore.compute(chosen)(x, ids).sum(), x)
    (wanted,) = torch.autograd.grad(chosen(x, ids).sum(), x)
    torch.testing.assert_close(found, wanted)


# --- the largest elements along an axis -----------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "kernels", "calls"),
    [
        (lambda x: x - x.max(-1, keepdim=True)[0].detach(), 1, 0),
        (lambda x: torch.min(x, dim=0).values * 2, None, 0),
        (lambda x: (lambda values, at: (values * 2, at))(*x.max(1, keepdim=True)), 1, 0),
        (lambda x: torch.max(x, 1).indices, 1, 0),
        (lambda x: x.nan_to_num().int().max(1)[0] * 2.0, 2, 1),
        (lambda x: (x > 0).max(1)[0], 1, 1),
    ],
)
def test_extremes_whose_positions_nobody_reads_are_reductions(function, kernels, calls):
    x = torch.randn(9, 70)
    x[3, 5] = math.nan
    agrees(function, x, kernels=kernels, calls=calls)
