"""Tensors that computations create: of the call's sizes, on its device, of the right type."""

import itertools
import threading

import pytest
import torch
import torch.nn.functional as F

import tilecore
from tests.tilecore.test_computing_in_place import agrees, whole
from tilecore.errors import UnsupportedSyntax


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.zeros(4, 8),
        lambda x: torch.ones((4, 8), dtype=torch.int64),
        lambda x: torch.full((2, 3), 7),
        lambda x: torch.full(size=[2, 3], fill_value=0.1, dtype=torch.bfloat16),
        lambda x: (torch.full_like(x, 3), torch.zeros_like(x, dtype=torch.int32)),
        lambda x: (x.new_zeros(2, 3), x.new_full((2,), 4), x.new_ones((3, 1), dtype=torch.bool)),
        lambda x: (torch.arange(5), torch.arange(2, 9, 3), torch.arange(0, 1, 0.25)),
        lambda x: (torch.arange(end=4.0), torch.arange(9, 2, -2, dtype=torch.float16)),
        lambda x: (torch.eye(3), torch.eye(2, 4), torch.linspace(0, 4, steps=5)),
        lambda x: torch.zeros(3, dtype=torch.float64) + 1,
        lambda x: x + torch.zeros(8, device=x.device) * 2 + torch.ones(4, 1),
        lambda x: torch.where(x > 0, x, torch.full((8,), -1.0)),
        lambda x: torch.where(torch.arange(8) > 3, x, torch.zeros(4, 8)),
        lambda x: torch.maximum(x, torch.zeros_like(x)) * torch.ones(1).expand(4, 8),
        lambda x: x.masked_fill(torch.ones(4, 8, dtype=torch.bool).tril(), 0.0),
        lambda x: torch.cat([x, torch.zeros(4, 2), torch.ones(4, 2)], 1),
        lambda x: x @ torch.eye(8) + torch.arange(8.0),
        lambda x: F.one_hot(torch.arange(3), 4) + torch.zeros(1, dtype=torch.int64),
        lambda x: torch.zeros(4, 8).to(x.device).to("cpu").type_as(x) + x,
        lambda x: torch.arange(8, dtype=torch.float32)[None, :4].repeat(4, 2) + x,
    ],
)
def test_what_is_created_is_what_torch_creates(function):
    agrees(function, whole(4, 8))


def test_numbers_stand_for_tensors_of_one_number():
    steps = agrees(lambda x: (x + torch.ones_like(x)) * torch.full((4, 1), 0.5), whole(4, 8))
    assert steps == ["Launch"]


def test_constants_are_made_once_but_never_returned_twice():
    def function(x):
        return x + torch.arange(8), torch.arange(3)

    computed, x = tilecore.compute(function), whole(4, 8)
    assert "arange" not in [
        step.node.op for step in computed.plan(x).steps[:-1] if hasattr(step, "node")
    ]
    computed(x)[1].zero_()
    for found, wanted in zip(computed(x), function(x), strict=True):
        assert torch.equal(found, wanted)


def test_parameters_are_read_at_every_call_and_have_gradients():
    table = torch.nn.Embedding(8, 4)

    @tilecore.compute
    def function(x):
        return x + table(torch.arange(x.shape[0]))

    x = whole(4, 4)
    with torch.no_grad():
        torch.testing.assert_close(function(x), function.function(x))
        table.weight.mul_(2)
        torch.testing.assert_close(function(x), function.function(x))
    function(x).sum().backward()
    assert torch.equal(table.weight.grad, (torch.arange(8) < 4)[:, None].expand(8, 4).float())


def test_python_may_ask_for_elements_that_no_argument_decides():
    def function(x):
        steps = torch.arange(3)
        if (steps[1:] > 0).all() and torch.ones(2).sum().item() == 2:
            x = x * int(steps[2]) + float(torch.full((), 0.5)) + sum(steps.tolist())
        return x + [row + 1 for row in torch.eye(2)][1][1]

    agrees(function, whole(4, 8))
    with pytest.raises(UnsupportedSyntax, match="where Python decides"):
        tilecore.compute(lambda x: x if (torch.zeros(4, 8) + x).sum() > 0 else -x)(whole(4, 8))


CASES = {
    "zeros": lambda x: torch.zeros(x.shape[0], 8) + x,
    "positions": lambda x: x * torch.arange(x.shape[0])[:, None],
    "floats": lambda x: x + torch.arange(x.shape[0], dtype=torch.float32, device=x.device)[:, None],
    "rows": lambda x: torch.arange(8.0).repeat(x.shape[0], 1) * x,
    "full": lambda x: torch.full((x.shape[0],), 1.5)[:, None] + x,
    "number": lambda x: torch.full((2, 8), x.shape[0]).sum(0) + x,
    "mask": lambda x: x.masked_fill(torch.arange(x.shape[0])[:, None] >= torch.arange(8), 0.0),
    "joined": lambda x: torch.cat([x.new_zeros(x.shape[0], 2), x, torch.ones(x.shape[0], 1)], 1),
    "grown": lambda x: torch.cat([x, torch.zeros(3, 8)]) * torch.arange(x.shape[0] + 3)[:, None],
    "table": lambda x: F.embedding(torch.arange(x.shape[0]), torch.arange(80.0).view(16, 5)) @ W,
    "clone": lambda x: x.new_empty(x.shape).copy_(x).add_(1),
}
W = torch.ones(5, 8)


@pytest.mark.parametrize("name", CASES)
def test_one_plan_serves_sizes_of_what_is_created(name):
    function = CASES[name]
    readings = itertools.count()

    @tilecore.compute(dynamic=True)
    def counted(x):
        next(readings)
        return function(x)

    for n in (9, 8, 12, 15, 9):
        x = whole(n, 8)
        found, wanted = counted(x), function(x)
        assert found.dtype == wanted.dtype
        assert torch.equal(found, wanted)
        assert not counted.plan(x).is_own
    assert next(readings) == 1 + (name == "grown")  # by 3, to beyond a power of 2


def test_torch_has_its_functions_again_when_a_function_was_read():
    before, seen = torch.arange, []

    def function(x):
        other = threading.Thread(target=lambda: seen.append(torch.arange(3)))
        other.start()
        other.join()
        return x + torch.arange(x.shape[0])[:, None]

    tilecore.compute(function, dynamic=True)(whole(4, 8))
    assert torch.equal(seen[0], before(3))
    assert torch.arange is before
    with torch.device("meta"):
        assert torch.arange(3).is_meta


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["emulated h100"])
def test_what_is_created_for_gpus(target):
    def function(x):
        out = torch.zeros(x.shape[0], 32, device=x.device, dtype=x.dtype)
        out[:, :16] = x[:, 16:] * 2
        out[:, 16:] = torch.full_like(x[:, :16], 3.0)
        return out + torch.ones(32, device=x.device, dtype=x.dtype)

    x = whole(6, 32).half()
    assert torch.equal(tilecore.compute(function, target=target)(x), function(x))


def test_torch_compiles_what_creates_tensors_after_a_function_was_read():
    """Torch's compiler may look up its functions while others take their places."""
    rules = pytest.importorskip("torch._dynamo.trace_rules")

    def function(x):
        rules.clear_lru_cache()
        rules.get_torch_obj_rule_map()
        return F.gelu(x + torch.ones(x.shape[-1]))

    x = torch.randn(3, 4)
    found = tilecore.compute(function)(x)
    torch.testing.assert_close(found, F.gelu(x + 1))
    compiled = torch.compile(lambda x: x @ torch.ones(4, 4), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), x @ torch.ones(4, 4))
