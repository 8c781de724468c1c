"""Computations where torch takes part: gradients, graphs of torch.compile and torch.export."""

import pytest
import torch
import torch.nn.functional as F

import tilecore
from tilecore.computing import torch_calls
from tilecore.errors import UnsupportedSyntax


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


def hidden(x, weights, scale=2.0):
    up, bias, down = weights
    return F.gelu(x @ up + bias) @ down * scale


def operands(rows=9, is_double=False):
    torch.manual_seed(rows)
    found = [torch.randn(rows, 40), torch.randn(40, 50) / 7, torch.randn(50), torch.randn(50, 30)]
    return [t.double() if is_double else t for t in found]


def test_within_autocast_torch_computes():
    """Results were float32, whatever it was told."""
    given, found = operands(), tilecore.compute(hidden)
    want = found(given[0], given[1:])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = found(given[0], given[1:])
        assert torch.equal(narrow, hidden(given[0], given[1:]))
        assert narrow.dtype == torch.bfloat16
        with torch.autocast("cpu", enabled=False):
            assert torch.equal(found(given[0], given[1:]), want)

    @tilecore.compute
    def itself(x, w, is_on):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_on):
            return x @ w

    assert itself(*given[:2], False).dtype == torch.float32
    with pytest.raises(UnsupportedSyntax, match=r"found torch\.autocast"):
        itself(*given[:2], True)


def test_gradients_are_those_of_the_function():
    own, exact = operands(), operands(is_double=True)
    for tensor in (*own, *exact):
        tensor.requires_grad_()
    own[2].requires_grad_(False)
    found = tilecore.compute(hidden)(own[0], own[1:], scale=0.5)
    want = hidden(exact[0], exact[1:], scale=0.5)
    back = torch.randn(9, 30)
    found.backward(back)
    want.backward(back.double())
    torch.testing.assert_close(found.double(), want, rtol=1e-4, atol=1e-4)
    for i in (0, 1, 3):
        torch.testing.assert_close(own[i].grad.double(), exact[i].grad, rtol=1e-4, atol=1e-4)
    assert own[2].grad is None


def test_gradients_reach_tensors_that_the_function_holds_and_several_results():
    weight = torch.nn.Parameter(torch.randn(7, 5))

    @tilecore.compute
    def both(x):
        y = x @ weight
        return y.softmax(-1), y.sum(-1), x

    x = torch.randn(6, 7)
    first, second, _ = both(x)
    (first.square().sum() + 3 * second.sum()).backward()
    found, weight.grad = weight.grad, None
    y = x @ weight
    (y.softmax(-1).square().sum() + 3 * y.sum(-1).sum()).backward()
    torch.testing.assert_close(found, weight.grad, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        assert not both(x)[0].requires_grad


def test_bfloat16_gradients_keep_their_types():
    x = torch.randn(8, 64, dtype=torch.bfloat16, requires_grad=True)
    w = torch.randn(64, 24, dtype=torch.bfloat16, requires_grad=True)
    tilecore.compute(lambda x, w: torch.relu(x @ w))(x, w).sum().backward()
    kept = x.grad.clone(), w.grad.clone()
    exact = [t.detach().double().requires_grad_() for t in (x, w)]
    torch.relu(exact[0] @ exact[1]).sum().backward()
    for found, want in zip(kept, exact, strict=True):
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.double(), want.grad, rtol=2e-2, atol=0.2)


def test_what_torch_cannot_run_has_no_gradient_and_says_so():
    import numpy as np

    x = torch.randn(4, 4, requires_grad=True)
    y = tilecore.compute(lambda x: np.exp(x))(x)
    with pytest.raises(UnsupportedSyntax, match=r"torch's operations") as found:
        y.sum().backward()
    assert "no_grad" in str(found.value)


def test_gradients_have_gradients():
    def norm(x, w):
        return (x @ w).sigmoid().square().sum()

    found = []
    for call, dtype in ((tilecore.compute(norm), torch.float32), (norm, torch.float64)):
        torch.manual_seed(0)
        x, w = (torch.randn(5, 5).to(dtype).requires_grad_() for _ in range(2))
        (first,) = torch.autograd.grad(call(x, w), x, create_graph=True)
        first.square().sum().backward()
        found.append((first.detach(), x.grad, w.grad))
    for ours, want in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.few(1)  # other tests here use inductor
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_call_is_one_node_of_one_graph(backend):
    computed = tilecore.compute(hidden)
    _, *weights = operands()

    def model(x):
        return computed(torch.sin(x), weights) + 1

    from torch._dynamo.testing import CompileCounterWithBackend  # takes seconds

    counted = CompileCounterWithBackend(backend)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counted)
    with torch.no_grad():
        for rows in (9, 5, 12):
            x = torch.randn(rows, 40)
            want = hidden(x.double().sin(), [w.double() for w in weights]) + 1
            torch.testing.assert_close(compiled(x).double(), want, rtol=1e-4, atol=1e-4)
    assert counted.frame_count == 1


@pytest.mark.exhaustive
def test_several_results_strides_and_tensors_that_are_returned_as_they_came():
    held = torch.randn(6)

    @tilecore.compute
    def parts(x, *, by):
        left, right = (x * held).chunk(2, -1)
        return [left + by["shift"], right.transpose(0, 1), x]

    def model(x):
        one, two, three = parts(x.T.relu(), by={"shift": 3.0})
        return one + 1, two, three

    x = torch.randn(6, 10).T.contiguous().T
    found = torch.compile(model, fullgraph=True)(x)
    left, right = (x.T.relu() * held).chunk(2, -1)
    want = left + 4.0, right.transpose(0, 1), x.T.relu()
    for ours, expected in zip(found, want, strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.exhaustive
def test_where_a_gradient_is_wanted_the_graph_has_the_function_itself():
    computed = tilecore.compute(hidden)
    x, *weights = operands()

    def model(x):
        return computed(x.sin(), weights).square()

    x.requires_grad_()
    torch.compile(model, fullgraph=True)(x).sum().backward()
    found, x.grad = x.grad, None
    hidden(x.sin(), weights).square().sum().backward()
    torch.testing.assert_close(found, x.grad, rtol=1e-4, atol=1e-4)


def test_exported_programs_hold_a_node_per_call():
    computed = tilecore.compute(hidden)
    x, *weights = operands()

    class Model(torch.nn.Module):
        def forward(self, x, up, bias, down):
            return computed(computed(x, [up, bias, down])[:, :10].repeat(1, 4), [up, bias, down])

    with torch.no_grad():
        rows = torch.export.Dim("rows", min=2, max=64)
        exported = torch.export.export(
            Model(), (x, *weights), dynamic_shapes=({0: rows}, None, None, None)
        )
        assert str(exported.graph).count("tilecore.compute_hidden") == 2
        for count in (9, 3):
            given = torch.randn(count, 40)
            want = Model()(given, *weights)
            torch.testing.assert_close(exported.module()(given, *weights), want)


def test_a_node_leaves_torch_s_mode_as_it_was():
    """Torch was left taking real tensors among fakes: a name stood for two things."""
    computation, x = tilecore.compute(lambda x, kept: x * 3 + kept[0]), torch.randn(4)
    node = torch_calls._Operator(computation, computation.bound((x, [x]), {}))
    node.fake([x, x])
    assert torch._subclasses.fake_tensor.fake_tensor_tls.allow_non_fake_inputs_override is None
