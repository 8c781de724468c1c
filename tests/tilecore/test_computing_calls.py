"""Functions that torch computes within computations: what they return, read and refuse."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tilecore
from tilecore.errors import ArgumentError, ShapeMismatch, UnsupportedSyntax

IDS = torch.tensor([[3, 1, 0], [2, 2, 4]])


@pytest.fixture(autouse=True)
def seeded():
    """Have every test draw the same numbers each time."""
    torch.manual_seed(0)


def agrees(function, *given):
    """Compare a computation with its function; return its plan."""
    computation = tilecore.compute(function)
    found, wanted = computation(*given), function(*given)
    for one, other in zip(
        *(x if isinstance(x, tuple) else (x,) for x in (found, wanted)), strict=True
    ):
        torch.testing.assert_close(one, other)
    return computation.plan(*given)


def halves_turned(x):
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.cat([x, x * 2], -1) + 1,
        lambda x: torch.stack([x, x.exp()], 1).flatten(1),
        lambda x: torch.stack([x * 2], 1),
        lambda x: torch.stack([x.exp()], -1) + 1,
        lambda x: torch.concatenate([x, x[:1]]),
        lambda x: torch.cat([x, x.bfloat16()]),  # torch says of which type
        lambda x: x.cumsum(-1) * 2,
        lambda x: F.pad(x * 2, (1, 1)).sigmoid(),
        lambda x: x.roll(1, 0) + x.flip(1),
        lambda x: torch.tril(x.exp()) @ x.T,
        lambda x: F.group_norm(x.reshape(2, 4, 8), 2) * 3,
        lambda x: F.conv1d(x[None], torch.ones(8, 8, 3)).relu(),
        lambda x: (x.sort(-1).values, x.argmax(-1), x.topk(2).indices),
        lambda x: (x.max(dim=-1).values + x.var(-1) + x.std(-1, False), x.isnan()),
        lambda x: (x // 0.3, 2 % x, x.to(torch.int32) - 1, 3 - x.argmax(0)),
        lambda x: F.dropout(x + 1, 0.5, training=False),
        lambda x: torch.nan_to_num(torch.where(x > 0, x, float("nan"))).sum(),
        lambda x: F.mse_loss(x, x * 0.5),
        lambda x: x + torch.arange(x.shape[-1], device=x.device),
        lambda x: (x.to(x) * 2).to("cpu", non_blocking=True),
        lambda x: x.to(x.device).masked_fill(torch.eye(8, device=x.device) > 0, -1.0),
    ],
)  # fmt: skip
def test_torch_computes_what_kernels_do_not(function):
    agrees(function, torch.randn(8, 8))


def test_tables_are_read_by_integers_and_masks_by_truth():
    def model(ids, table, mask):
        x = F.embedding(ids, table)
        scores = (x @ x.mT).masked_fill(~mask, float("-inf"))
        return scores.softmax(-1) @ x, table[ids[:, 0]], torch.gather(table, 1, ids % 2)

    mask = torch.ones(3, 3, dtype=torch.bool).tril()
    plan = agrees(model, IDS, torch.randn(5, 16)[:2].repeat(4, 1)[:5], mask)
    made = [type(step).__name__ for step in plan.steps]
    assert made.count("Launch") == 3  # two products and the softmax between them
    assert made.count("Called") == 4


@pytest.mark.parametrize("mask", [torch.rand(5, 7) > 0.3, torch.ones(1, 7, dtype=torch.bool)])
def test_attention_takes_masks_of_truth(mask):
    q, k, v = torch.randn(2, 5, 32), torch.randn(2, 7, 32), torch.randn(2, 7, 32)
    mask = mask | (torch.arange(7) == 0)  # each query sees a key
    agrees(F.scaled_dot_product_attention, q, k, v, mask)
    agrees(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, q @ k.mT > -2), q, k, v)


def test_one_call_has_all_its_results():
    calls = []

    class Counted(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            calls.append(function.__name__)
            return function(*args, **(kwargs or {}))

    @tilecore.compute
    def best(x):
        found = x.topk(2)
        return found.values * 2, found.indices

    x = torch.randn(4, 8)
    best(x)
    with Counted():
        values, indices = best(x)
    assert calls.count("topk") == 1
    torch.testing.assert_close(values, x.topk(2).values * 2)
    assert torch.equal(indices, x.topk(2).indices)


def test_what_is_returned_as_it_came_is_no_result():
    def function(x):
        return torch.atleast_2d(x, x[0])  # the first one as it is

    found = tilecore.compute(function)(torch.eye(3))
    assert [tuple(t.shape) for t in found] == [(3, 3), (1, 3)]
    torch.testing.assert_close(found[1], torch.eye(3)[:1])


@pytest.mark.parametrize("rotated", [4, 8])
def test_parts_without_elements_are_left_out_of_what_is_joined(rotated):
    """Models that turn a part of each head turn all of it in some configurations."""

    def partly(x, y):
        return torch.cat([x[..., :rotated] * 2, y[..., :0], x[..., rotated:]], -1) + y

    agrees(partly, torch.randn(3, 8), torch.randn(3, 8))
    for function in (lambda x: x[3:], lambda x: x[:0] + 1, lambda x: (x[:0].sum(), x)):
        with pytest.raises(ShapeMismatch, match="expected elements"):
            tilecore.compute(function)(torch.randn(3, 8))


def test_keys_of_one_head_are_those_of_all():
    q, k, v = torch.randn(2, 4, 5, 16), torch.randn(2, 1, 7, 16), torch.randn(2, 1, 7, 16)
    agrees(F.scaled_dot_product_attention, q, k, v)


def test_sizes_vary_around_what_is_joined():
    @tilecore.compute
    def grown(cache, new, q):
        keys = torch.cat([cache, new], 2)
        return F.scaled_dot_product_attention(q, keys, keys)

    for length in (10, 20, 25, 29, 31):
        given = torch.randn(1, 2, length, 32), torch.randn(1, 2, 1, 32), torch.randn(1, 2, 1, 32)
        torch.testing.assert_close(grown(*given), grown.function(*given), rtol=1e-4, atol=1e-5)
    plan = grown.plan(*given)
    assert not plan.is_own  # one for sizes between powers of 2
    assert "torch's cat of (1, 2, 31, 32), (1, 2, 1, 32)" in grown.explain(*given)


def repeated(x, count):
    """Return each head so many times, as models write it for grouped queries."""
    batch, heads, rows, width = x.shape
    apart = x[:, :, None, :, :].expand(batch, heads, count, rows, width)
    return apart.reshape(batch, heads * count, rows, width)


def decoded(x, cache, new, mask):
    """Attention of a token, by hand: two heads of queries for one of keys."""
    keys = repeated(torch.cat([cache, new], -2), 2)
    scores = torch.matmul(x, keys.transpose(2, 3)) * 0.25 + mask
    weights = F.dropout(F.softmax(scores, -1, dtype=torch.float32).to(x.dtype), 0.0, training=False)
    return torch.matmul(weights, keys)


def test_a_cache_that_grows_has_one_plan_and_no_copies_of_its_heads():
    decode = tilecore.compute(decoded)
    plans = []
    for past in (10, 16, 17, 18, 24, 30):
        x, cache, new = (torch.randn(1, h, n, 32) for h, n in ((4, 1), (2, past), (2, 1)))
        given = x, cache, new, torch.randn(1, 1, 1, past + 1)
        torch.testing.assert_close(decode(*given), decoded(*given), rtol=1e-4, atol=1e-5)
        plans.append(decode.plan(*given))
    kernels = {plan.stages[-1].kernel for plan in plans[2:]}
    assert len(kernels) == 1
    assert [type(step).__name__ for step in plans[-1].steps] == ["Called", "Launch"]
    assert "expand" not in decode.explain(*given)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.expand(3, -1, 4, 8) + x,
        lambda x: torch.broadcast_to(x, (2, 2, 4, 8)).exp(),
        lambda x: x.repeat_interleave(3, 1) * 2,
        lambda x: torch.repeat_interleave(x, 2).sum(),
        lambda x: x + torch.arange(8),
        lambda x: torch.where(torch.arange(8) > 3, x, 0.0).exp(),
        lambda x: F.scaled_dot_product_attention(repeated(x, 2), repeated(x, 2), repeated(x, 2)),
    ],
)
def test_repeated_tensors(function):
    agrees(function, torch.randn(1, 2, 4, 8))


def test_a_function_may_ask_what_a_tensor_has():
    def function(x):
        known = [name for name in ("jax", "cumsum", "shape") if hasattr(x, name)]
        return x * len(known)

    agrees(function, torch.randn(3))


@pytest.mark.parametrize("name", ["grad", "requires_grad", "is_leaf"])
def test_what_is_no_method_is_told(name):
    with pytest.raises(UnsupportedSyntax, match=f"`Tensor.{name}`"):
        tilecore.compute(lambda x: getattr(x, name))(torch.randn(3))


def test_what_does_not_expand_is_told():
    with pytest.raises(ShapeMismatch, match="expand: expected the extents of"):
        tilecore.compute(lambda x: x.expand(3, 5))(torch.randn(3, 4))


def test_gradients_and_graphs_of_torch_go_through():
    def turned(x, c, s):
        return x * c + halves_turned(x) * s

    rope = tilecore.compute(turned)
    x, c, s = torch.randn(2, 6, 16), torch.randn(6, 16), torch.randn(6, 16)
    torch.testing.assert_close(rope(x, c, s), turned(x, c, s))
    own, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    rope(own, c, s).square().sum().backward()
    turned(other, c, s).square().sum().backward()
    torch.testing.assert_close(own.grad, other.grad)
    compiled = torch.compile(lambda x: rope(x, c, s) + 1, backend="eager")
    torch.testing.assert_close(compiled(x), turned(x, c, s) + 1)


def test_arrays_of_numpy_go_to_torch_and_back():
    @tilecore.compute
    def model(table, ids, x):
        return np.concatenate([F.embedding(ids, table), x], -1) * 2

    table, x = (np.random.default_rng(0).random(s, np.float32) for s in ((5, 4), (3, 2)))
    ids = np.array([4, 0, 2])
    found = model(table, ids, x)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, np.concatenate([table[ids], x], -1) * 2, rtol=1e-6)
    narrow = tilecore.compute(lambda x: F.pad(x, (1, 0)))(table.astype("bfloat16"))
    assert narrow.dtype.name == "bfloat16"
    np.testing.assert_array_equal(narrow[:, 1:], table.astype("bfloat16"))


def test_what_torch_refuses_of_elements_is_told_with_its_line():
    look_up = tilecore.compute(lambda ids, table: F.embedding(ids, table))
    with pytest.raises(
        ArgumentError, match="of `embedding`: expected what torch takes, found ind"
    ) as caught:
        look_up(torch.tensor([7]), torch.randn(5, 4))
    assert caught.value.span.file == __file__


class Block(torch.nn.Module):
    """Attention behind a norm, and images behind it."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv = torch.nn.LayerNorm(32), torch.nn.Linear(32, 96)
        self.images = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
            torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Dropout(0.5),
        )  # fmt: skip
        self.target = "what is its own"

    def forward(self, x, mask=None):
        parts = self.qkv(self.norm(x)).view(2, 6, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        y = x + F.scaled_dot_product_attention(*parts, attn_mask=mask).transpose(1, 2).flatten(2)
        return self.images(y[:, None])


@pytest.mark.parametrize("keeps_gradients", [False, True])
def test_modules_of_torch_are_functions(keeps_gradients):
    module = Block().eval()
    computation = tilecore.compute(module)
    x, mask = torch.randn(2, 6, 32), torch.rand(6, 6) > 0.2
    mask |= torch.eye(6, dtype=torch.bool)
    with torch.set_grad_enabled(keeps_gradients):
        found = computation(x, mask=mask)
    torch.testing.assert_close(found, module(x, mask=mask), rtol=1e-4, atol=1e-5)
    assert "Block_0" in computation.programs(x, mask=mask)[0]
    assert (
        len(computation.plan(x, mask=mask).stages) == 6
    )  # norm, product, mask, attention, sum, images
    assert computation.target == "auto"
    if keeps_gradients:
        found.sum().backward()
        assert module.qkv.weight.grad is not None


def test_modules_that_train_are_refused():
    x = torch.randn(2, 4, 3)
    for module in (torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5)):
        with pytest.raises(UnsupportedSyntax, match=r"known statistics|no random numbers"):
            tilecore.compute(module)(x)
        torch.testing.assert_close(tilecore.compute(module.eval())(x), module(x))


# --- complex numbers ------------------------------------------------------------------------------


def rotated(x, turns):
    """Rotary embeddings as Llama's first code has them."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(-2).type_as(x) * 2


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "function",
    [
        rotated,
        lambda x, turns: rotated(x, torch.polar(turns.abs(), turns.angle())),
        lambda x, turns: torch.fft.irfft(torch.fft.rfft(x, n=16) * turns.sum().real, n=16) + 1,
        lambda x, turns: torch.fft.fft(x * 2).real + turns.imag.sum(),
        lambda x, turns: (turns.H @ turns, turns.conj().T[1:] * 1j, (turns + 1).abs() * x[0, 0]),
        lambda x, turns: (turns * x[..., ::2], turns.real > 0, torch.einsum("ij,ij", turns, turns)),
    ],
)
def test_complex_numbers_are_torchs(function):
    """They were refused; what is made of their parts is not."""
    for rows in (3, 5, 6, 7):  # sizes that vary
        given = torch.randn(rows, 8), torch.randn(rows, 4) + 1j * torch.randn(rows, 4)
        torch.testing.assert_close(tilecore.compute(function)(*given), function(*given))


def test_complex_tensors_are_written_to():
    x = torch.randn(3, 4) + 1j
    other = x.clone()
    found = tilecore.compute(lambda x: (x.mul_(2j), x[:, 0].zero_(), x.abs())[2])(x)
    other.mul_(2j)[:, 0] = 0
    torch.testing.assert_close(x, other)
    torch.testing.assert_close(found, other.abs())


def test_results_of_torch_keep_its_strides() -> None:
    """They are not laid out anew where no kernel reads them."""
    x = torch.randn(30, 20)
    turned = tilecore.compute(lambda x: torch.rot90(x * 2))(x)
    assert turned.stride() == torch.rot90(x).stride()
    torch.testing.assert_close(turned, torch.rot90(x * 2))
    again = tilecore.compute(lambda x: (torch.rot90(x), torch.rot90(x) + 1))(x)
    torch.testing.assert_close(again, (torch.rot90(x), torch.rot90(x) + 1))
