"""Equal parts that ``cat`` and ``stack`` join: one kernel computes them, with what follows."""

import pytest
import torch

import tilecore
from tilecore.computing.planning.plan import Called, Launch

# Of what is rounded once; some functions round on their way.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 8e-3}


def halves(x, c, s):
    half = x.shape[-1] // 2
    return x * c + torch.cat([-x[..., half:], x[..., :half]], -1) * s


def pairs(x, c, s):
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2)


def steps(computation, *given):
    """Return the kinds of steps of a call's plan, after a comparison with the exact result."""
    found, wanted = computation(*given), computation.function(*given)
    exact = computation.function(*(tensor.double() for tensor in given)).double()
    assert found.dtype == wanted.dtype
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance)
    return [type(step).__name__ for step in computation.plan(*given).steps]


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rotated", [halves, pairs])
def test_rotary_embeddings_are_one_kernel(rotated, dtype):
    width = 32 if rotated is halves else 16
    x, c, s = (torch.randn(*shape).to(dtype) for shape in ((2, 3, 5, 32), (5, width), (5, width)))
    rope = tilecore.compute(rotated)
    assert steps(rope, x, c, s) == ["Launch"]
    assert steps(rope, x.transpose(1, 2).contiguous().transpose(1, 2), c, s) == ["Launch"]
    for length in (4, 3, 7, 6):
        given = (
            torch.randn(2, 3, length, 32).to(dtype),
            *(torch.randn(length, width).to(dtype),) * 2,
        )
        assert steps(rope, *given) == ["Launch"]
    assert not rope.plan(*given).is_own


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("join", [torch.cat, torch.stack])
def test_parts_along_every_axis(join, axis):
    x, y = torch.randn(3, 1, 40), torch.randn(3, 1, 40)
    whole = join([x, y, x], axis).shape
    ones = [torch.ones(whole), torch.ones(whole[-1:]), torch.ones([*whole[:-1], 1])]

    def function(x, y, one, last, rows):
        made = join([x.exp(), y, x - y], axis)
        return (made * one + last).relu() * rows

    assert steps(tilecore.compute(function), x, y, *(torch.randn_like(n) for n in ones)) == [
        "Launch"
    ]


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("function", "kernels"),
    [
        (lambda x, y: torch.cat([x.exp(), y]), 1),
        (lambda x, y: torch.stack([x[0].exp(), y[0]], 1), 1),
        (lambda x, y: torch.cat([x.exp(), y], 1) + torch.cat([y, y.abs()], 1), 1),
        (lambda x, y: torch.cat([x.half().exp(), y.half()], 1) * 2, 1),
        (lambda x, y: (torch.cat([x.exp(), y], 1) @ torch.cat([x, y], 1).T).relu(), 2),
        (lambda x, y: torch.cat([x @ y.T, y @ x.T], 1) + 1, 2),  # by each product
        (lambda x, y: torch.cat([x[:, :20].exp(), y[:, 20:]], 1) + x @ (y.T @ y), 3),
        (lambda x, y: torch.cat([x.softmax(-1), y], 1) * 2, 2),
        (lambda x, y: torch.cat([x.sum(-1, keepdim=True), y.exp()[:, :1]], 1), 2),
        (lambda x, y: torch.cat([x.exp(), y[:1]]) * 2, 2),  # which are not equal
    ],
)
def test_what_is_fused_with_parts(function, kernels):
    x, y = torch.randn(6, 40), torch.randn(6, 40)
    assert steps(tilecore.compute(function), x, y).count("Launch") == kernels


@pytest.mark.few(1)
@pytest.mark.parametrize("rotated", [halves, pairs])
@pytest.mark.parametrize("target", ["emulated sm_80", "emulated h100"])
def test_rotary_embeddings_on_gpus(rotated, target):
    width = 64 if rotated is halves else 32
    x, c, s = (
        torch.randn(1, 2, 5, 64).half(),
        torch.randn(5, width).half(),
        torch.randn(5, width).half(),
    )
    rope = tilecore.compute(rotated, target=target)
    kinds = steps(rope, x, c, s)
    assert kinds.count("Launch") == 1
    assert "Copy" not in kinds


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["emulated h100", "emulated mi300x"])
@pytest.mark.parametrize("width", [64, 65])  # of an odd number the last pair is not whole
def test_neighbours_on_gpus_are_read_where_they_lie(width, target):
    x = torch.randn(6, width).half()
    count = width // 2
    pairs_of = tilecore.compute(lambda x: x[:, ::2][:, :count] * 2 - x[:, 1::2], target=target)
    assert steps(pairs_of, x) == ["Launch"]
    assert steps(tilecore.compute(lambda x: x[:, ::2].exp(), target=target), x) == ["Launch"]
    third = torch.randn(6, 96).half()  # the one in front of the first of these has no good address
    assert steps(tilecore.compute(lambda x: x[:, 8::2].exp(), target=target), third) == ["Launch"]
    strided = tilecore.compute(
        lambda x: torch.stack([x[:, 8:89:3], x[:, 8:89:3] * 2, x[:, 8:89:3] * 3], -1), target=target
    )
    assert "Launch" in steps(strided, third)


VIEWS_OF_ONE = [  # and how many kernels there are
    (lambda x, y: torch.stack([x * 2, y + 1])[1] * x, 1),
    (lambda x, y: torch.stack([x * 2, y + 1], -1)[..., 0] * x, 1),
    (lambda x, y: torch.stack([x * 2, y + 1], 1)[:, -1, ::2].exp(), 2),
    (lambda x, y: torch.stack([x * 2, y + 1], 1)[2:, 1:2].exp(), 2),
    (lambda x, y: torch.cat([x * 2, y + 1])[x.shape[0]] + 1, 2),
    (lambda x, y: torch.cat([x, y + 1], 1)[:, -3:] * 2, 2),
    (lambda x, y: torch.cat([x, y + 1], 1)[:, -8:] * 2, 1),
    (lambda x, y: torch.cat([x, y + 1], 1)[None, 1:3, 2:7:2] * 2, 1),
    (lambda x, y: torch.stack([x @ y.T, y @ x.T])[0].relu(), 1),
]


@pytest.mark.parametrize(("function", "kernels"), VIEWS_OF_ONE)
def test_what_lies_within_one_part_is_read_there(function, kernels):
    x, y = torch.randn(6, 8), torch.randn(6, 8)
    computation = tilecore.compute(function)
    torch.testing.assert_close(computation(x, y), function(x, y), rtol=1e-5, atol=1e-5)
    steps = computation.plan(x, y).steps
    assert not any(isinstance(step, Called) for step in steps)
    assert sum(isinstance(step, Launch) for step in steps) == kernels


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.cat([x, y])[x.shape[0] - 1 : x.shape[0] + 2] * 2,  # of both
        lambda x, y: torch.cat([x, y.double()])[1] * 2,  # of another type
        lambda x, y: torch.cat([x, y]).flip(0)[1:3] * 2,
    ],
)
def test_what_does_not_is_read_of_the_whole(function):
    x, y = torch.randn(6, 8), torch.randn(6, 8)
    found, wanted = tilecore.compute(function)(x, y), function(x, y)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted)


def test_results_that_share_memory_go_on_to():
    def function(x, y):
        whole = torch.stack([x * 2, y + 1])
        return whole, whole[0]

    whole, part = tilecore.compute(function)(torch.randn(6, 8), torch.randn(6, 8))
    part.zero_()
    assert float(whole[0].abs().max()) == 0
