"""Reductions over axes that are not the last ones: rows are added up where they lie."""

import pytest
import torch

import tilecore
from tilecore.computing.planning.plan import Copy

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 8e-3}
GPUS = ("emulated h100", "emulated a100", "emulated mi300x")


def agrees(function, *given, target="auto", kernels=None):
    """Compare a computation with its function in float64."""
    computation = tilecore.compute(function, target=target)
    found, wanted = computation(*given), function(*(t.double() for t in given))
    tolerance = TOLERANCE[given[0].dtype]
    assert found.dtype == given[0].dtype
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)
    plan = computation.plan(*given)
    assert not any(isinstance(step, Copy) for step in plan.steps)
    assert kernels is None or len(plan.stages) == kernels


def made(*shape, dtype=torch.float32):
    return (torch.rand(*shape) + 0.5).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("op", ["mean", "amax", "amin"])
@pytest.mark.parametrize("axes", [0, 1, (0, 1)])
def test_leading_axes(axes, op, keepdim, dtype):
    x = made(9, 13, 70, dtype=dtype)
    agrees(lambda x: getattr(x, op)(axes, keepdim), x, kernels=1)


@pytest.mark.parametrize(
    ("shape", "axes", "kernels"),
    [
        ((3, 11, 5, 40), 1, 1),
        ((3, 11, 5, 40), (1, 2), 1),
        ((9, 11, 12, 40), (0, 2), 2),
        ((9, 33, 5, 4), (0, 2, 3), 2),
        ((300, 40), 0, 1),  # several blocks share the rows
        ((1, 300, 1, 40), 1, 1),
        ((5, 2, 40), 1, 1),  # so few that they are parts of one expression
    ],
)
def test_axes_between_others(shape, axes, kernels):
    agrees(lambda x: x.mean(axes), made(*shape), kernels=kernels)
    agrees(lambda x: x.amax(axes, True), made(*shape), kernels=kernels)


def test_what_is_added_up_and_what_follows_is_in_the_kernel():
    def function(x, y, scale, bias):
        return torch.relu((x * y + scale).square().mean(1) * 2 - bias).sqrt()

    given = made(4, 21, 48), made(4, 21, 48), made(21, 1), made(48)
    agrees(function, *given, kernels=1)
    agrees(lambda x, y: (x * y).sum((0, 1)), *given[:2], kernels=1)


def test_what_others_read_is_stored():
    def function(x, y):
        made = x * y
        return made.mean(0) + made[0]

    agrees(function, made(20, 40), made(20, 40))
    agrees(lambda x, y: x * y - (x * y).mean(0), made(20, 40), made(20, 40))


def test_strided_and_transposed_tensors():
    x = made(12, 20, 64)
    agrees(lambda x: x[:, ::2, :40].amax(1), x)
    agrees(lambda x: x.transpose(0, 1).amax(0), x)
    agrees(lambda x: x.transpose(0, 1).mean(1), x)


@pytest.mark.few(4)
@pytest.mark.parametrize("op", ["amax", "amin", "sum"])
@pytest.mark.parametrize("rows", [3, 20, 300])
@pytest.mark.parametrize("target", ["auto", "emulated a100"])
def test_nan_and_infinity_go_on(target, op, rows):
    x = torch.randn(rows, 40)
    x[1, 3], x[2, 4], x[0, 5], x[1, 6] = torch.nan, torch.inf, -torch.inf, torch.nan
    x[2, 6] = torch.inf
    found = tilecore.compute(lambda x: getattr(x, op)(0), target=target)(x)
    wanted = getattr(x.double(), op)(0)
    # sums of 300 normal numbers: rounded where the parts are 10 and what is left may be near 0
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-4, equal_nan=True)


def test_softmax_and_variance_along_a_leading_axis():
    agrees(lambda x: x.log_softmax(0), torch.randn(19, 33) + 1)
    agrees(lambda x: x.var(1, correction=1), made(5, 17, 40))
    agrees(lambda x: torch.logsumexp(x, 1), made(5, 17, 40))


@pytest.mark.few(3)
@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("shape", [(3, 19, 72), (300, 72)])
def test_on_gpus(shape, target):
    x, y = made(*shape, dtype=torch.bfloat16), made(*shape, dtype=torch.bfloat16)
    agrees(lambda x, y: (x * y).mean(-2).exp(), x, y, target=target, kernels=1)


def test_sizes_that_vary_have_one_plan():
    computation = tilecore.compute(lambda x: (x * 2).mean(1).exp())
    for rows, length in ((5, 20), (6, 24), (7, 30), (5, 17), (6, 31)):
        x = made(rows, length, 40)
        torch.testing.assert_close(computation(x), (x.double() * 2).mean(1).exp().float())
    assert not computation.plan(x).is_own


@pytest.mark.parametrize(
    "function",
    [
        lambda x, row, batch: (x * row).sum(),
        lambda x, row, batch: ((x - batch) ** 2).mean(),
        lambda x, row, batch: torch.where(row > 0, x, 0.0).amax((1, 2)),
        lambda x, row, batch: (x + row).abs().sum((0, 2)),
    ],
)
def test_sums_of_what_is_broadcast_are_made_row_by_row(function):
    """What has an element per row or column cannot be read as one long row: nothing is stored."""
    x, row, batch = torch.randn(8, 96, 130), torch.randn(130), torch.randn(8, 1, 1)
    computation = tilecore.compute(function)
    found, wanted = computation(x, row, batch), function(x, row, batch)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-3)
    made = [root.size for step in computation.plan(x, row, batch).steps for root in step.roots]
    assert max(made) <= x.numel() // 130
