"""Elements that masks pick (``x[x > 0]``): sums, means, ends, and what is written back."""

import numpy as np
import pytest
import torch

import tilecore
from tilecore.errors import UnsupportedSyntax

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 8)).astype(np.float32)
GROUPS = RNG.integers(0, 3, 40)
V = RNG.standard_normal(8).astype(np.float32)


def clipped(x, groups, v):
    x = x * 1
    x[x < 0] = 0
    x[x > 1] *= 2
    return x


def squared(x, groups, v):
    x = x * 1
    x[x > 0] = x[x > 0] ** 2 - 1
    return x


def scaled_rows(x, groups, v):
    x = x * 1
    x[groups == 1] *= 3
    x[groups == 2] += v
    return x


def picked_before(x, groups, v):
    """What a mask picked stays what it was when its tensor is written to."""
    x = x * 1
    mask = x > 0
    positive = x[mask]
    x[mask] = 0
    return positive.sum() + x.sum()


FUNCTIONS = (
    clipped, squared, scaled_rows, picked_before,
    lambda x, groups, v: x[x > 0].sum(),
    lambda x, groups, v: x[x > 0].mean(),
    lambda x, groups, v: x[x < 0].max(),
    lambda x, groups, v: x[x > 0].min(),
    lambda x, groups, v: x[x > 0].std(),
    lambda x, groups, v: (x[x > 0] ** 2 + 1).mean(),
    lambda x, groups, v: (x[x > 0] > 1).sum(),
    lambda x, groups, v: (x[x > 0] > 9).any() | (x[x > 0] > 0).all(),
    lambda x, groups, v: (-x[x < 0]).sum(),
    lambda x, groups, v: x[groups == 1].sum(),
    lambda x, groups, v: x[groups == 1].mean(),
    lambda x, groups, v: x[groups == 1].mean(0),
    lambda x, groups, v: x[groups == 1].var(0),
    lambda x, groups, v: ((x[groups == 1] - v) ** 2).sum(0),
    lambda x, groups, v: (x[groups == 1] * 2 + x[groups == 1]).mean(0),
    lambda x, groups, v: (x - x.mean(0))[groups == 0].mean(0) * 2,
    lambda x, groups, v: groups[groups > 0].sum(),
    lambda x, groups, v: groups[groups > 0].max() + groups[groups > 0].min(),
)  # fmt: skip
OF_NUMPY = (
    lambda x, groups, v: np.mean(x[x > 0]),
    lambda x, groups, v: np.sum(np.exp(x[x > 0])),
    lambda x, groups, v: np.where(x[x > 0] > 1, 2, 1).sum(),
    lambda x, groups, v: x[groups == 1].max(0),
    lambda x, groups, v: np.std(x[x > 0], ddof=1),
    lambda x, groups, v: groups[groups > 0].mean(),
    lambda x, groups, v: np.stack([x[groups == k].mean(0) for k in range(3)]),
    lambda x, groups, v: np.count_nonzero(x[x > 0] > 1),
)
OF_TORCH = (
    lambda x, groups, v: torch.mean(x[x > 0]),
    lambda x, groups, v: torch.exp(x[x > 0]).sum(),
    lambda x, groups, v: torch.masked_select(x, x > 0).mean(),
    lambda x, groups, v: x[groups == 1].amax(0),
    lambda x, groups, v: torch.std(x[x > 0]),
    lambda x, groups, v: x[x > 0].double().sum(),
    lambda x, groups, v: torch.relu(x[x < 1].clamp(max=0.5)).sum(),
    lambda x, groups, v: torch.nn.functional.mse_loss(x, x * 0, reduction="none")[x > 0].mean(),
)


def check(function, given, like):
    found, wanted = tilecore.compute(function)(*map(like, given)), function(*map(like, given))
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("function", [*FUNCTIONS, *OF_NUMPY])
def test_of_arrays(function):
    check(function, (X, GROUPS, V), np.copy)


@pytest.mark.parametrize("function", [*FUNCTIONS, *OF_TORCH])
def test_of_tensors(function):
    check(function, (X, GROUPS, V), torch.tensor)


def cross_entropy(logits, targets, mask, **kwargs):
    return torch.nn.functional.cross_entropy(logits[mask], targets[mask], **kwargs)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("shape", [(40,), (3, 17)])
def test_cross_entropy(shape, reduction):
    """Targets that the mask leaves out are often no classes."""
    logits, mask = torch.randn(*shape, 11), torch.rand(shape) > 0.4
    targets = torch.where(mask, torch.randint(0, 11, shape), -1)
    targets.view(-1)[torch.nonzero(mask.view(-1))[0]] = -100

    def function(logits, targets, mask):
        return cross_entropy(logits, targets, mask, reduction=reduction)

    found = tilecore.compute(function)(logits, targets, mask)
    torch.testing.assert_close(found, function(logits, targets, mask))
    with pytest.raises(UnsupportedSyntax, match="elements that a mask picks"):
        tilecore.compute(lambda *a: cross_entropy(*a, label_smoothing=0.1))(logits, targets, mask)
    weights = torch.rand(11)
    with pytest.raises(UnsupportedSyntax, match="elements that a mask picks"):
        tilecore.compute(lambda *a: cross_entropy(*a, weight=weights))(logits, targets, mask)


@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss"])
def test_losses_of_elements(name):
    loss = getattr(torch.nn.functional, name)
    x, y, rows = torch.randn(30, 5), torch.randn(30, 5), torch.rand(30) > 0.5
    for function in (
        lambda x, y, rows: loss(x[rows], y[rows]),
        lambda x, y, rows: loss(x[y > 0], y[y > 0], reduction="sum"),
    ):
        found = tilecore.compute(function)(x, y, rows)
        torch.testing.assert_close(found, function(x, y, rows))


def test_the_mean_of_nothing_is_no_number():
    assert np.isnan(tilecore.compute(lambda x: x[x > 99].mean())(X))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_means_of_more_elements_than_16_bits_count(dtype):
    x = torch.rand(300, 301).to(dtype)
    for function in (lambda x: x[x > 0.1].mean(), lambda x: x[x > 0.1].std()):
        found = tilecore.compute(function)(x)
        assert found.dtype == dtype
        torch.testing.assert_close(found.float(), function(x.float()), rtol=1e-2, atol=1e-3)


def test_torch_s_gradient_is_that_of_the_function():
    x = torch.from_numpy(X).requires_grad_()

    def loss(x):
        return torch.log(x[x > 0]).mean()

    (wanted,) = torch.autograd.grad(loss(x), x)
    (found,) = torch.autograd.grad(tilecore.compute(loss)(x), x)
    torch.testing.assert_close(found, wanted)


def overwritten_by_others(x):
    x = x * 1
    x[x > 0] = x[x > 1]
    return x


def copied(x):
    y = x * 1
    y[:3] = x[x > 0]
    return y


def of_other_axes(x):
    y = x[:8] * 1
    rows = x[:8, 0] > 0
    y[rows] = x[:8, 0][rows]
    return y


REFUSED = (
    of_other_axes,
    lambda x: (x[:8][x[:8, 0] > 0] + x[:8, 1][x[:8, 0] > 0]).sum(),  # of one and of two axes
    overwritten_by_others, copied,
    lambda x: x[x > 0],
    lambda x: [x * 1, x[x > 0]],
    lambda x: np.sort(x[x > 0]),
    lambda x: x[x > 0] + x[x < 0],
    lambda x: x[x > 0] * x[0],
    lambda x: x * len(x[x > 0]),
    lambda x: sum(x[x > 0]),
    lambda x: np.median(x[x > 0]),
    lambda x: x[x[:, 0] > 0].sum(1),
    lambda x: np.asarray(x[x > 0]),
)  # fmt: skip


@pytest.mark.parametrize("function", REFUSED)
def test_what_needs_their_number_is_refused_with_its_line(function):
    with pytest.raises(UnsupportedSyntax, match="elements that a mask picks") as told:
        tilecore.compute(function)(X)
    assert told.value.span.file == __file__
    assert "where(mask, x, 0)" in str(told.value)


def test_divisors_that_the_mask_leaves_out_may_be_zero():
    x, y = torch.arange(40), torch.arange(40) % 3
    with pytest.raises(UnsupportedSyntax, match="elements that a mask picks"):
        tilecore.compute(lambda x, y: (x[y > 0] // y[y > 0]).sum())(x, y)
    found = tilecore.compute(lambda x, y: (x[y > 0] / y[y > 0]).sum())(x, y)
    torch.testing.assert_close(found, (x[y > 0] / y[y > 0]).sum())


def test_torch_s_positions_are_refused():
    with pytest.raises(UnsupportedSyntax, match="elements that a mask picks"):
        tilecore.compute(lambda x: x[x[:, 0] > 0].max(0).values)(torch.from_numpy(X))
