"""Norms and averages, and functions of elements that reductions over several axes take in."""

import math

import pytest
import torch
import torch.nn.functional as F

import tilecore
from tilecore.computing.planning.plan import Called, Copy, Launch
from tilecore.errors import UnsupportedSyntax

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
HALVES = [torch.float32, torch.float16, torch.bfloat16]


def agrees(function, *given, kernels=None, calls=0, copies=0, target="auto"):
    """Compare a computation with its function in float64; return it."""
    computation = tilecore.compute(function, target=target)
    found, wanted = computation(*given), function(*(t.double() for t in given))
    in_torch = function(*given)
    assert (found.dtype, found.shape) == (in_torch.dtype, in_torch.shape)
    error = (found.double() - wanted).abs().max() / wanted.abs().max()
    assert error <= TOLERANCE[found.dtype], error
    steps = computation.plan(*given).steps
    assert sum(isinstance(step, Called) for step in steps) == calls
    assert sum(isinstance(step, Copy) for step in steps) == copies
    if kernels is not None:
        assert sum(isinstance(step, Launch) for step in steps) == kernels
    return computation


def made(*shape, dtype=torch.float32, mean=0.0):
    return (torch.randn(*shape) + mean).to(dtype)


# --- functions of elements in front of reductions over several axes ----------------------------


@pytest.mark.few(4)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("function", "kernels"),
    [
        (lambda x, w: torch.relu(x).mean((2, 3)), 1),
        (lambda x, w: F.hardswish(x * w[:, None, None] + 1).amax((-2, -1), True), 1),
        (lambda x, w: (x * w[None, :, None, None]).sum((0, 2, 3)), 2),
        (lambda x, w: (x - x.mean((2, 3), keepdim=True)).square().mean((2, 3)), 1),
        (lambda x, w: (x - x.mean((0, 2, 3), keepdim=True)).square().mean((0, 2, 3)), 4),
        (lambda x, w: torch.relu(x + w[:, None, None]).sum((0, 1)), 2),  # w is of one of the axes
        (lambda x, w: x.exp().sum((0, 1), True), 1),
        (lambda x, w: x.square().mean(1), 1),  # of what lies behind the axis, as one row
    ],
)
def test_they_are_not_stored(function, kernels, dtype):
    agrees(function, made(3, 5, 12, 14, dtype=dtype), made(5, dtype=dtype), kernels=kernels)


@pytest.mark.parametrize("target", ["auto", "emulated h100", "emulated mi300x"])
def test_long_rows_in_parts(target):
    x, y = made(3, 96, 256), made(3, 96, 256)  # 24,576 elements a row, of few rows
    agrees(lambda x, y: (x - y).square().mean((1, 2)), x, y, kernels=2, target=target)
    agrees(lambda x: (x * 2.0).abs().sum(), x[0], kernels=2, target=target)


@pytest.mark.parametrize(
    ("function", "kernels", "copies"),
    [
        (lambda x, w: torch.relu(x.permute(0, 2, 3, 1)).mean((1, 2)), 2, 1),
        (lambda x, w: torch.relu(x[:, :, ::2]).mean((2, 3)), 2, 1),
        (lambda x, w: (x * w).sum((2, 3)), 2, 0),  # w is of one of the axes
        (lambda x, w: (x.mT * 2).amax((2, 3)), 2, 1),
        (lambda x, w: (x @ x.mT).relu().mean((2, 3)), 2, 0),  # computed behind the product
    ],
)
def test_others_are_stored(function, kernels, copies):
    agrees(function, made(3, 5, 12, 14), made(14), kernels=kernels, copies=copies)


def test_kernels_read_halves_rather_than_what_is_made_of_them():
    def function(x):
        exact = x.float()
        return exact.mean(0) * (exact - 1).amax(0)

    x = made(40, 33, dtype=torch.bfloat16)
    computation = agrees(function, x, kernels=2)
    assert not any("T.Tensor((40, 33), 'float32')" in text for text in computation.programs(x))


def test_what_is_used_twice_is_right():
    def function(x):
        made = torch.relu(x)
        return made * made.mean((2, 3), keepdim=True) + made.amax((0, 2, 3), True)

    agrees(function, made(4, 6, 7, 9))


def test_sizes_that_vary():
    function = tilecore.compute(lambda x: torch.relu(x).mean((2, 3)) + x.norm(dim=(2, 3)))
    for batch, length in ((2, 8), (3, 12), (4, 20), (5, 9)):
        x = made(batch, 4, length, 16)
        wanted = torch.relu(x.double()).mean((2, 3)) + x.double().norm(dim=(2, 3))
        torch.testing.assert_close(function(x), wanted.float(), rtol=1e-5, atol=1e-5)


# --- norms ------------------------------------------------------------------------------------


@pytest.mark.few(5)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.norm(dim=-1),
        lambda x: x.norm(),
        lambda x: x.norm(1, 1, True) + torch.norm(x, math.inf, dim=1, keepdim=True),
        lambda x: torch.norm(x, "fro", (0, 1)),
        lambda x: torch.linalg.vector_norm(x, dim=(0, 2)),
        lambda x: torch.linalg.vector_norm(x, 1, dim=()),
        lambda x: torch.linalg.norm(x, dim=-1) / torch.linalg.norm(x),
        lambda x: torch.linalg.norm(x, math.inf, 1),
        lambda x: F.normalize(x) + F.normalize(x, 1, -1),
        lambda x: F.normalize(input=x, p=math.inf, dim=(0, 1)),
        lambda x: x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6),
        lambda x: F.cosine_similarity(x, x.flip(0) + 1, dim=-1),
        lambda x: F.cosine_similarity(x[:1], x.square(), dim=2),
    ],
)
def test_norms(function, dtype):
    calls = 1 if "flip" in function.__code__.co_names else 0
    agrees(function, made(4, 20, 24, dtype=dtype), calls=calls)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.norm(3, -1),
        lambda x: torch.linalg.vector_norm(x, 0.5, -1),
        lambda x: torch.linalg.norm(x, 2, (0, 1)),
        lambda x: torch.linalg.norm(x, "nuc", (0, 1)),
        lambda x: F.normalize(x, 4.0),
        lambda x: x.norm(dim=-1, dtype=torch.float64).float(),
        lambda x: F.cosine_similarity(x, x[:, :1], dim=1),
        lambda x: F.adaptive_avg_pool2d(x[None], (2, 1))[0],
        lambda x: F.instance_norm(
            x[None], torch.ones(12), torch.ones(12), use_input_stats=False
        )[0],
    ],
)  # fmt: skip
def test_torch_computes_other_norms(function):
    found = tilecore.compute(function)
    x = made(12, 20)
    torch.testing.assert_close(found(x), function(x))
    assert any(isinstance(step, Called) for step in found.plan(x).steps)


def test_norms_of_large_half_precision_numbers():
    x = torch.full((3, 4096), 6.0, dtype=torch.float16)  # the sum of squares is beyond float16
    assert tilecore.compute(lambda x: x.norm(dim=1))(x).tolist() == [384.0] * 3
    found = tilecore.compute(lambda x: F.normalize(x, dim=1))(x)
    torch.testing.assert_close(found, torch.full_like(x, 1 / 64))


def test_vectors_of_zeros():
    x = torch.zeros(3, 8)
    x[0, 1] = 1.0
    for function in (lambda x: F.normalize(x, dim=1), lambda x: F.cosine_similarity(x, x + 0.0, 1)):
        torch.testing.assert_close(tilecore.compute(function)(x), function(x))


# --- channels ---------------------------------------------------------------------------------


@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shape", [(3, 6, 9, 11), (2, 5, 70), (2, 3, 4, 5, 6)])
def test_instance_norm(shape, dtype):
    x, weight, bias = made(*shape, dtype=dtype), made(shape[1], mean=1.0), made(shape[1])
    weight, bias = weight.to(dtype), bias.to(dtype)
    agrees(lambda x: F.instance_norm(x), x, kernels=1)
    agrees(lambda x, w, b: F.instance_norm(x, weight=w, bias=b), x, weight, bias)


@pytest.mark.parametrize("function", [
    lambda x: F.instance_norm(x), lambda x: x.var((0, 2, 3), correction=0), lambda x: x.var(-1),
    lambda x: F.layer_norm(x, (16, 16)), lambda x: F.layer_norm(x.view(2, 4, 2560), (2560,)),
    lambda x: F.layer_norm(x.view(2, 10240)[:, :8192], (8192,)),  # a row in parts
])  # fmt: skip
def test_means_of_bfloat16_are_not_rounded(function):
    x = made(4, 20, 16, 16, dtype=torch.bfloat16, mean=100.0)  # rounded: off by up to 0.25
    agrees(function, x)


@pytest.mark.parametrize("dtype", HALVES)
def test_norms_of_several_axes_are_of_one_row(dtype):
    x, w, b = made(5, 6, 7, 9, dtype=dtype), made(7, 9, dtype=dtype), made(7, 9, dtype=dtype)
    agrees(lambda x, w, b: F.layer_norm(x, (7, 9), w, b).relu(), x, w, b, kernels=1)
    agrees(lambda x, w: F.rms_norm(x, (7, 9), w, 1e-5), x, w, kernels=1)


def test_variances_of_too_few_are_no_numbers_or_infinite():
    x = torch.randn(3, 2)
    found = tilecore.compute(lambda x: (x[:, :1].var(1), x.var(1, correction=2), x[:1, :1].std()))
    for ours, wanted in zip(found(x), (torch.full((3,), torch.nan), torch.full((3,), torch.inf),
                                       torch.tensor(torch.nan)), strict=True):  # fmt: skip
        torch.testing.assert_close(ours, wanted, equal_nan=True)


@pytest.mark.parametrize("function", [
    lambda x: F.instance_norm(x[:, :, :1, :1]), lambda x: F.instance_norm(x[:, :, 0, 0]),
    lambda x: F.adaptive_avg_pool2d(x, (1, 1, 1)),
    lambda x: F.instance_norm(x, torch.zeros(4), torch.ones(4)),
])  # fmt: skip
def test_what_torch_refuses_is_refused(function):
    with pytest.raises(UnsupportedSyntax, match=r"instance_norm|adaptive_avg_pool2d"):
        tilecore.compute(function)(made(2, 4, 5, 6))


@pytest.mark.few(3)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("dtype", HALVES)
def test_averages_of_all_positions(rank, dtype):
    pool = getattr(F, f"adaptive_avg_pool{rank}d")
    x = made(2, 3, *(4 + axis for axis in range(rank)), dtype=dtype)
    agrees(lambda x: pool(torch.relu(x), 1), x, kernels=1)
    agrees(lambda x: pool(x, (1,) * rank), x[0], kernels=1)
    module = getattr(torch.nn, f"AdaptiveAvgPool{rank}d")(output_size=1)
    agrees(lambda x: module(x).flatten(1), x, kernels=1)


# --- functions behind another shape -------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "kernels"),
    [
        (lambda a, w: F.linear(a, w).view(5, 7, 4, 16).relu() * 0.5, 1),
        (lambda a, w: F.instance_norm(a[:, None] * w[0]).relu().neg().exp(), 2),  # one in front
        (lambda a, w: F.linear(a, w).view(35, -1).square() + 1, 1),
        (lambda a, w: torch.where(F.linear(a, w).flatten() > 0, 1.0, -1.0).to(a.dtype) + 1, 1),
        (lambda a, w: F.linear(a, w).view(5, 7, 4, 16).exp().mean(-1), 2),  # another row
        (lambda a, w: F.linear(a, w).view(5, 7, 4, 16) * w[0, :16], 2),  # of two tensors
        (lambda a, w: torch.cat([y := F.linear(a, w).view(5, -1), y.relu()]), 2),  # read twice
        (lambda a, w: (a.view(5, 12, 28).exp() - 1).view(5, -1).relu(), 1),
        (lambda a, w: a.norm().exp(), 2),
    ],
)
def test_they_are_computed_where_it_is_made(function, kernels):
    agrees(function, made(5, 7, 48) / 7, made(64, 48) / 7, kernels=kernels)


def test_results_keep_their_values():
    def function(x):
        y = (x * 2).view(6, -1)
        z = y.relu()
        return y, z, z.view(3, -1) + 1

    x = made(3, 4, 10)
    for ours, wanted in zip(tilecore.compute(function)(x), function(x), strict=True):
        torch.testing.assert_close(ours, wanted)


@pytest.mark.few(4)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shape", [(3, 8), (3, 8, 5), (3, 8, 12, 14)], ids=str)
def test_group_norms_take_what_follows(shape, dtype):
    x, w, b = made(*shape, dtype=dtype), made(8, dtype=dtype), made(8, dtype=dtype)
    agrees(lambda x, w, b: F.silu(F.group_norm(x, 4, w, b)), x, w, b)
    agrees(lambda x: F.group_norm(x, 1, eps=1e-3), x)
