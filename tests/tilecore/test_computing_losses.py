"""Losses: of elements, in one kernel with what they are of, and of rows of logits."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

import tilecore
from tests.tilecore.test_computing_norms import HALVES, TOLERANCE, agrees, made
from tilecore.computing.functions.reductions import LONG_ROW
from tilecore.computing.planning.plan import Called, Launch
from tilecore.errors import ArgumentError, UnsupportedSyntax

OF_ELEMENTS = {
    "mse": F.mse_loss, "l1": F.l1_loss, "smooth l1": F.smooth_l1_loss,
    "smooth l1, bent early": partial(F.smooth_l1_loss, beta=0.3),
    "huber": partial(F.huber_loss, delta=0.7), "logits": F.binary_cross_entropy_with_logits,
}  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", OF_ELEMENTS)
def test_losses_of_elements(name, reduction, dtype):
    loss = OF_ELEMENTS[name]
    x, y = 2 * made(13, 70, dtype=dtype), made(13, 70, dtype=dtype)
    agrees(lambda x, y: loss(x * 2.0, y, reduction=reduction), x, y, kernels=1)


def test_losses_of_extremes():
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, 90.0])
    for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss):
        found = tilecore.compute(partial(loss, reduction="none"))(x, torch.zeros(5))
        torch.testing.assert_close(found, loss(x, torch.zeros(5), reduction="none"), equal_nan=True)


@pytest.mark.filterwarnings("ignore:size_average and reduce")
@pytest.mark.parametrize("options", [
    {"weight": torch.rand(3, 4)}, {"size_average": False}, {"reduce": False},
])  # fmt: skip
def test_old_options_and_weights_are_torchs(options):
    x, y = made(3, 4), made(3, 4)
    agrees_exactly(lambda x, y: F.mse_loss(x, y, **options), x, y, calls=1)


def test_losses_of_what_broadcasts_or_differs_in_type_are_torchs():
    x, y = made(3, 4), made(3, 4)
    agrees_exactly(lambda x, y: F.smooth_l1_loss(x, y, beta=0.0), x, y, calls=1)
    agrees_exactly(lambda x, y: F.mse_loss(x, y.double()), x, y, calls=1)
    with pytest.warns(UserWarning, match="broadcasting"):
        agrees_exactly(lambda x, y: F.l1_loss(x, y[:1]), x, y, calls=1)


def agrees_exactly(function, *given, calls):
    """Compare a computation whose last step is torch's with its function; count torch's calls."""
    computation = tilecore.compute(function)
    torch.testing.assert_close(computation(*given), function(*given), rtol=1e-6, atol=1e-6)
    steps = computation.plan(*given).steps
    assert sum(isinstance(step, Called) for step in steps) == calls


def launches(computation, *given):
    return sum(isinstance(step, Launch) for step in computation.plan(*given).steps)


# --- cross entropy ----------------------------------------------------------------------------


def classes(rows, count, ignored=()):
    found = torch.randint(0, count, (rows,))
    found[list(ignored)] = -100
    return found


@pytest.mark.covering
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(37, 130), (1, 9000), (3, 1), (300, 77)])
def test_cross_entropy(shape, smoothing, reduction, dtype):
    x, t = (3 * made(*shape, dtype=dtype)), classes(*shape, ignored=[0] if shape[0] > 3 else [])
    options = {"reduction": reduction, "label_smoothing": smoothing}
    computation = tilecore.compute(lambda x, t: F.cross_entropy(x, t, **options))
    exact, error = F.cross_entropy(x.double(), t, **options), TOLERANCE[dtype]
    found = computation(x, t)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, rtol=error, atol=error)
    if shape[1] < LONG_ROW:
        assert launches(computation, x, t) == 1 + (reduction != "none")


def test_logits_of_a_product_are_stored_once():
    h, w, t = made(40, 64), made(700, 64) / 8, classes(40, 700, ignored=[3, 39])
    computation = tilecore.compute(lambda h, w, t: F.cross_entropy(F.linear(h, w), t))
    torch.testing.assert_close(computation(h, w, t), F.cross_entropy(F.linear(h, w), t))
    assert launches(computation, h, w, t) == 3


def test_no_wanted_class_is_no_number_and_a_wrong_one_an_error():
    x = made(5, 7)
    assert tilecore.compute(F.cross_entropy)(x, torch.full((5,), -100)).isnan()
    with pytest.raises(ArgumentError, match="index 7 is out of bounds"):
        tilecore.compute(F.cross_entropy)(x, torch.full((5,), 7))
    with pytest.raises(UnsupportedSyntax, match="cross_entropy"):
        tilecore.compute(F.cross_entropy)(x, torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize("case", [
    lambda x, t: F.cross_entropy(x.view(2, 5, 12), t[:24].view(2, 12) % 5),  # an axis behind
    lambda x, t: F.cross_entropy(x, t[:10] % 12, weight=torch.arange(1.0, 13)),
    lambda x, t: F.cross_entropy(x, x.softmax(1)),  # shares of classes
    lambda x, t: F.cross_entropy(x[0], t[0] % 12),  # no rows
])  # fmt: skip
def test_other_cross_entropies_torch_computes(case):
    x, t = made(10, 12), torch.randint(0, 12, (24,))
    found = tilecore.compute(case)(x, t)
    torch.testing.assert_close(found, case(x, t))


def test_cross_entropy_of_sizes_that_vary():
    computation = tilecore.compute(F.cross_entropy)
    for rows, count in ((12, 50), (20, 70), (33, 70), (64, 129), (100, 128)):
        x, t = made(rows, count), classes(rows, count, ignored=[rows // 2])
        torch.testing.assert_close(computation(x, t), F.cross_entropy(x, t))


def test_gradients_of_losses_are_torchs():
    x, t = made(9, 21).requires_grad_(), classes(9, 21)
    (found,) = torch.autograd.grad(tilecore.compute(F.cross_entropy)(x, t), x)
    (wanted,) = torch.autograd.grad(F.cross_entropy(x, t), x)
    torch.testing.assert_close(found, wanted)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["emulated h100", "emulated mi300x"])
def test_losses_on_gpus(target):
    x, y, t = made(6, 90), made(6, 90), classes(6, 90, ignored=[2])
    agrees(lambda x, y: F.huber_loss(x, y), x, y, target=target)
    computation = tilecore.compute(F.cross_entropy, target=target)
    torch.testing.assert_close(computation(x, t), F.cross_entropy(x, t))


# --- of logarithms --------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_logarithms_of_wanted_classes(reduction):
    x, wanted = torch.randn(9, 33), torch.randint(0, 33, (9,))
    wanted[2] = -100
    found = tilecore.compute(lambda x, w: F.nll_loss(x.log_softmax(1), w, reduction=reduction))
    exact = F.nll_loss(x.double().log_softmax(1), wanted, reduction=reduction)
    torch.testing.assert_close(found(x, wanted), exact.float())
    weighted = tilecore.compute(lambda x, w: F.nll_loss(x, w, torch.ones(33)))
    torch.testing.assert_close(weighted(x, wanted), F.nll_loss(x, wanted))


@pytest.mark.parametrize("reduction", ["none", "batchmean", "sum"])
@pytest.mark.parametrize("log_target", [False, True])
def test_how_far_shares_are_from_others(reduction, log_target):
    x, y = torch.randn(9, 33).log_softmax(-1), torch.randn(9, 33).softmax(-1)
    y[0, :5] = 0

    def function(x, y):
        return F.kl_div(x, y, reduction=reduction, log_target=log_target)

    torch.testing.assert_close(tilecore.compute(function)(x, y), function(x, y))
