"""``torch.compile(backend="tilecore")``: results and gradients are those of torch itself."""

import copy
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tilecore import torch_backend
from tilecore.computing.functions import attention_gradients
from tilecore.computing.planning.plan import Called, Copy, Launch

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


@pytest.fixture
def computations(monkeypatch):
    """The computations of the graphs that a test has compiled, in the order of their making."""
    torch.compiler.reset()
    made = []
    real = torch_backend.Computation

    def computation(*args, **kwargs):
        made.append(real(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(torch_backend, "Computation", computation)
    return made


def steps(computation, kind):
    """Return what a computation has run of a kind of steps."""
    return [s for plan in computation.plans for s in plan.steps if isinstance(s, kind)]


def listed(found):
    return list(found) if isinstance(found, tuple) else [found]


def trained(function, args, leaves):
    """Return results, and the gradients of leaves for one made of all results."""
    for leaf in leaves:
        leaf.grad = None
    found = listed(function(*args))
    torch.manual_seed(0)
    sum((t.float() * torch.randn(t.shape)).sum() for t in found).backward()
    return [*(t.detach().clone() for t in found), *(leaf.grad.clone() for leaf in leaves)]


def check(function, *args, tolerance=1e-5, **options):
    """Compare results and gradients with torch's; no graph may be torch's own."""
    leaves = [a for a in args if a.requires_grad]
    leaves += list(function.parameters()) if isinstance(function, nn.Module) else []
    wanted = trained(function, args, leaves)
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch_backend.GraphByTorch)
        found = trained(torch.compile(function, backend="tilecore", **options), args, leaves)
    for ours, exact in zip(found, wanted, strict=True):
        assert ours.dtype == exact.dtype
        torch.testing.assert_close(ours, exact, rtol=tolerance, atol=tolerance)


def compare(function, *args, **options):
    """Compare results with torch's, without a gradient; no graph may be torch's own."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch_backend.GraphByTorch)
        found = listed(torch.compile(function, backend="tilecore", **options)(*args))
    for ours, exact in zip(found, listed(function(*args)), strict=True):
        torch.testing.assert_close(ours, exact, check_stride=ours.numel() > 0)


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads, self.first, self.last = heads, nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, length, width = x.shape
        parts = self.qkv(self.first(x)).chunk(3, -1)
        q, k, v = (p.view(rows, length, self.heads, -1).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.last(x)), approximate="tanh"))


class Language(nn.Module):
    """A model of language, with its loss."""

    def __init__(self, words=53, width=32):
        super().__init__()
        self.table, self.block = nn.Embedding(words, width), Block(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids, wanted):
        logits = self.head(self.block(self.table(ids)))
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())


class Pictures(nn.Module):
    """A small network of convolutions."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def test_a_layer_is_trained(computations):
    check(Block(), torch.randn(2, 9, 32, requires_grad=True))
    forward, backward = computations
    assert not steps(forward, Called)
    assert len(steps(forward, Launch)) <= 9
    assert len(steps(backward, Launch)) <= 20


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("rows", "keys", "dim", "options", "is_ours"),
    [
        (64, 64, 64, {"is_causal": True}, True), (70, 90, 64, {}, True),
        (130, 130, 80, {"is_causal": True, "scale": 80**-0.5}, True),
        (64, 64, 64, {"scale": 0.3}, False), (9, 9, 64, {}, False),
        (70, 90, 64, {"is_causal": True}, False), (64, 64, 64, {"has_mask": True}, False),
    ],
)  # fmt: skip
def test_gradients_of_attention(rows, keys, dim, options, is_ours, dtype, monkeypatch):
    kernels = attention_gradients.Memo()
    monkeypatch.setattr(attention_gradients, "_kernels", kernels)
    options = dict(options)
    mask = torch.randn(rows, keys).to(dtype) if options.pop("has_mask", False) else None

    def function(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, mask, **options)

    q = torch.randn(1, 2, rows, dim).to(dtype).requires_grad_()
    k, v = (torch.randn(1, 2, keys, dim).to(dtype).requires_grad_() for _ in range(2))
    check(function, q, k, v, tolerance=TOLERANCE[dtype])
    assert bool(kernels) == is_ours


def test_without_a_gradient_attention_is_a_kernel(computations):
    model, x = Block(), torch.randn(2, 9, 32)
    with torch.no_grad():
        found = torch.compile(model, backend="tilecore")(x)
        torch.testing.assert_close(found, model(x))
    (forward,) = computations
    assert not steps(forward, Called)
    assert any("attention" in node.kind for s in steps(forward, Launch)
               for node in s.stage.group.members)  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["emulated mi300x", "emulated h100"])
def test_kernels_of_gpus_train(target):
    model = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).half()
    x = torch.randn(20, 16, dtype=torch.float16, requires_grad=True)
    check(model, x, tolerance=2e-2, options={"target": target})


@pytest.mark.exhaustive
def test_what_autocast_converts_is_computed_by_kernels(computations):
    model, x = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)), torch.randn(16, 32)

    def cast(call):
        def function(x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return call(x)

        return function

    wanted = trained(cast(model), [x], list(model.parameters()))
    found = trained(cast(torch.compile(model, backend="tilecore")), [x], list(model.parameters()))
    for ours, exact in zip(found, wanted, strict=True):
        assert ours.dtype == exact.dtype
        torch.testing.assert_close(ours, exact, rtol=3e-2, atol=3e-2)
    assert all(steps(computation, Launch) for computation in computations)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_model_of_language_is_trained(dynamic):
    ids = torch.randint(0, 53, (2, 7))
    check(Language(), ids, ids.roll(1, 1), dynamic=dynamic)


@pytest.mark.exhaustive
def test_sizes_that_vary():
    model = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 8))
    compiled = torch.compile(model, backend="tilecore", dynamic=True)
    for rows in (3, 4, 70, 5):
        x = torch.randn(rows, 16, requires_grad=True)
        wanted = trained(model, [x], [x, *model.parameters()])
        for ours, exact in zip(trained(compiled, [x], [x, *model.parameters()]), wanted,
                               strict=True):  # fmt: skip
            torch.testing.assert_close(ours, exact)


@pytest.mark.few(1)
@pytest.mark.parametrize("trains", [True, False])
def test_batch_norms(trains):
    model, x = Pictures().train(trains), torch.randn(4, 3, 8, 8)
    other = Pictures().train(trains)
    other.load_state_dict(model.state_dict())
    check(model, x, tolerance=1e-4)
    check(other, x, tolerance=1e-4)
    for ours, exact in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(ours, exact)


def test_running_statistics_are_those_of_torch():
    ours, exact = Pictures(), Pictures()
    exact.load_state_dict(ours.state_dict())
    x = torch.randn(4, 3, 8, 8)
    compiled = torch.compile(ours, backend="tilecore")
    for _ in range(2):
        torch.testing.assert_close(compiled(x), exact(x), rtol=1e-4, atol=1e-4)
    for mine, theirs in zip(ours.buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert ours.norm.num_batches_tracked == 2


@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "function",
    [
        F.gelu, F.silu, F.softplus, F.elu, F.hardswish, F.logsigmoid, F.glu, torch.tanh,
        lambda x: x.softmax(-1), lambda x: x.log_softmax(0), lambda x: x.norm(dim=-1),
        lambda x: (x.std(-1), x.var(0), x.logsumexp(-1)), lambda x: x.amax(-1), lambda x: x.max(-1),
        lambda x: x.sort(-1)[0], lambda x: x.cumsum(-1), lambda x: x.clamp(-1, 1).abs(),
        lambda x: torch.where(x > 0, x * 2, x.exp()), lambda x: x[[0, 2]] + x.roll(1, 0)[:2],
        lambda x: torch.cat([x, x * 2], -1), lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: x.chunk(2, -1)[0] * x.chunk(2, -1)[1], lambda x: F.group_norm(x, 2),
        lambda x: F.rms_norm(x, (8,)), lambda x: F.layer_norm(x, (8,)), lambda x: F.pad(x, (1, 2)),
        lambda x: x.tril() + x.flip(0), lambda x: x.unfold(1, 3, 2) * 2, lambda x: x.diagonal() * 2,
        lambda x: F.kl_div(x.log_softmax(-1), x.softmax(-1), reduction="batchmean"),
        lambda x: torch.outer(x[0], x[1]).squeeze(), lambda x: x.gather(1, x.argsort(1)[:, :3]),
    ],
)  # fmt: skip
def test_gradients_of_functions(function, dtype):
    def floats(x):
        return tuple(t for t in listed(tuple(function(x)) if isinstance(function(x), tuple)
                                       else function(x)) if t.is_floating_point())  # fmt: skip

    x = torch.randn(6, 8).to(dtype).requires_grad_()
    check(floats, x, tolerance=TOLERANCE[dtype])


def test_a_dropout_draws_anew_and_its_gradient_has_the_same_mask(computations):
    x = torch.randn(40, 50, requires_grad=True)
    compiled = torch.compile(lambda x: F.dropout(x * 2, 0.25), backend="tilecore")
    first, other = compiled(x), compiled(x)
    first.sum().backward()
    kept = first != 0
    assert 0.6 < kept.float().mean() < 0.9
    assert (kept != (other != 0)).any()
    torch.testing.assert_close(first, torch.where(kept, x * 2 / 0.75, 0.0))
    torch.testing.assert_close(x.grad, torch.where(kept, 2 / 0.75, 0.0))
    assert steps(computations[0], Launch)


def test_random_numbers_are_those_of_torch():
    compiled = torch.compile(lambda x: x + torch.rand_like(x) + torch.randn(8), backend="tilecore")
    x = torch.zeros(4, 8)
    one, other = compiled(x), compiled(x)
    assert not torch.equal(one, other)
    torch.manual_seed(3)
    one = compiled(x)
    torch.manual_seed(3)
    assert torch.equal(one, compiled(x))


def test_parts_without_elements_are_left_out():
    def function(x):
        turned, rest = x[..., :8], x[..., 8:]
        return torch.cat([turned.flip(-1) * 2, rest], -1)

    check(function, torch.randn(3, 8, requires_grad=True))


def test_arguments_and_buffers_are_written():
    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(4))

        def forward(self, x):
            self.total += x.sum(0)
            x.mul_(2)
            return self.total * x

    ours, exact = Counted(), Counted()
    x = torch.randn(3, 4)
    y = x.clone()
    compiled = torch.compile(ours, backend="tilecore")
    for _ in range(2):
        torch.testing.assert_close(compiled(x), exact(y))
        torch.testing.assert_close(x, y)
        torch.testing.assert_close(ours.total, exact.total)


def test_a_graph_that_is_refused_is_torchs_own():
    def function(x):
        return F.rrelu(x, training=True).sign() + x.T @ x

    torch.compiler.reset()
    x = torch.randn(6, 6)
    with pytest.warns(torch_backend.GraphByTorch, match="TC101"):
        found = torch.compile(function, backend="tilecore")(x)
    torch.testing.assert_close(found, function(x))


@pytest.mark.parametrize(
    ("options", "said"),
    [({"options": {"tile": 3}}, "option tile"), ({"mode": "reduce-overhead"}, "mode reduce")],
)
def test_unknown_options_are_told(options, said):
    torch.compiler.reset()
    with pytest.raises(Exception, match=said):
        torch.compile(lambda x: x + 1, backend="tilecore", **options)(torch.randn(3))


def test_options_are_those_of_computations(computations):
    compiled = torch.compile(
        lambda x: x.exp() + 1, backend="tilecore", options={"target": "avx2", "dynamic": False}
    )
    compiled(torch.randn(5, 7))
    (computation,) = computations
    assert (computation.target, computation.dynamic) == ("avx2", False)
    (launch,) = steps(computation, Launch)
    assert launch.stage.kernel.artifact.manifest.isa == "avx2"


def test_numbers_that_no_argument_decides_are_drawn_anew():
    compiled = torch.compile(lambda x: x + torch.rand(4, 8), backend="tilecore")
    x = torch.zeros(4, 8)
    torch.manual_seed(0)
    one, other = compiled(x), compiled(x)
    assert not torch.equal(one, other)
    torch.manual_seed(0)
    assert torch.equal(one, compiled(x))


def test_results_lie_as_those_of_torch():
    def function(x):
        y = x.exp()
        torch._dynamo.graph_break()
        return y, y.T.view(-1) * 2

    x = torch.randn(3, 4, requires_grad=True)
    check(lambda x: function(x.T), x)
    compare(torch.relu, torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))


def test_strides_are_those_that_torch_has_told_of():
    x = torch.randn(4, 3).T
    compare(lambda x: (x * 2).as_strided((4, 3), (3, 1), 0) + 1, x)
    compare(lambda x: x.as_strided((4, 2), (3, 1), 1) + 1, x)
    compare(lambda x: torch.view_as_complex(x.T.clone(memory_format=torch.contiguous_format)).abs(),
            torch.randn(2, 5))  # fmt: skip


def test_truth_in_kernels_of_rows():
    def function(x, at):
        return F.cross_entropy(x, at, label_smoothing=0.1)

    check(function, torch.randn(6, 10, requires_grad=True), torch.tensor([3, -100, 0, 9, -100, 1]))


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2 + 1, lambda x: x.sum(0), lambda x: x.T @ x, lambda x: x.T @ x + x.sum(),
        lambda x: torch.cat([x, x.exp()]), lambda x: F.pad(x, (0, 0, 1, 1)) + 1,
    ],
)  # fmt: skip
def test_tensors_without_elements(function):
    check(function, torch.randn(0, 5, requires_grad=True))
    check(lambda x: (function(x[:0]), x * 2), torch.randn(3, 5, requires_grad=True))


def test_bags_of_words(computations):
    class Bags(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = (nn.EmbeddingBag(50, 8, mode=mode) for mode in ("sum", "mean"))

        def forward(self, ids, firsts):
            return (self.one(ids, firsts) * self.other(ids, firsts)).sigmoid()

    check(Bags(), torch.randint(0, 50, (10,)), torch.tensor([0, 4, 4]))
    assert all(steps(computation, Launch) for computation in computations)


def test_constants_are_numbers_in_kernels(computations):
    compare(lambda x: torch.where(x > 0, x, 0.5) + torch.zeros(5, 6), torch.randn(5, 6))
    (computation,) = computations
    assert not [s for plan in computation.plans for s in plan.held]


def test_sizes_of_constants_vary(computations):
    def function(x):
        return x + torch.zeros(x.shape[0], 6) + torch.arange(x.shape[0])[:, None]

    compiled = torch.compile(function, backend="tilecore", dynamic=True)
    for rows in (33, 40, 50, 45):
        torch.testing.assert_close(compiled(torch.ones(rows, 6)), function(torch.ones(rows, 6)))
    (computation,) = computations
    assert len({stage for plan in computation.plans for stage in plan.stages}) == 3


def test_what_torch_checks_it_refuses_itself():
    def function(x):
        return torch.linalg.inv(x) + x

    compare(function, torch.randn(6, 6) + 9 * torch.eye(6))
    with pytest.raises(torch.linalg.LinAlgError):
        torch.compile(function, backend="tilecore")(torch.zeros(3, 3))


def test_branches_that_elements_decide():
    def function(x):
        return torch.cond(x.sum() > 0, lambda x: x.exp() + 1, lambda x: x * 2, (x,)) * 2

    compare(function, torch.ones(4))
    compare(function, -torch.ones(4))


def test_wide_floats_are_torchs(computations):
    def function(x, y):
        return (x.sigmoid() * y.float() + 1).log(), x.double().cumsum(0) * y

    check(function, torch.rand(5, requires_grad=True), torch.rand(5, dtype=torch.float64))
    assert steps(computations[0], Launch)


@pytest.mark.exhaustive
def test_threads_call_a_model_that_another_one_compiles():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    compiled, x = torch.compile(model, backend="tilecore"), torch.randn(8, 8)

    def computed(rows):
        with torch.no_grad():
            for count in range(1, 1 + rows):
                torch.testing.assert_close(compiled(x[:count]), model(x[:count]))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(computed, [3, 4, 5, 6]))


@pytest.mark.parametrize("mask", [False, True])
def test_keys_of_groups_of_heads(computations, mask):
    seen = torch.ones(9, 9, dtype=torch.bool).tril() if mask else None

    def function(q, k):
        return F.scaled_dot_product_attention(q, k, k, seen, is_causal=not mask, enable_gqa=True)

    compare(function, torch.randn(2, 4, 9, 16), torch.randn(2, 2, 9, 16))
    assert steps(computations[0], Launch)
    check(function, torch.randn(2, 4, 9, 16).requires_grad_(), torch.randn(2, 2, 9, 16))


def test_bits_as_another_type():
    compare(lambda x: (x.T.contiguous().view(torch.int32) & 3).float() * 2, torch.randn(4, 6))


@pytest.mark.parametrize("dropped", [0.0, 0.4])
def test_checkpoints_draw_the_same_numbers_twice(computations, dropped):
    """Attention draws none without a dropout, though torch keeps a state of its generator."""
    x, weight = (torch.randn(2, 2, 16, 32, requires_grad=True) for _ in range(2))

    def part(x, weight):
        mixed = F.scaled_dot_product_attention(x * weight, x, x, is_causal=True)
        return F.dropout(mixed, dropped)

    def function(x, weight):
        return checkpoint(part, x, weight, use_reentrant=False)

    found = torch.compile(function, backend="tilecore")(x, weight)
    found.sum().backward()
    wide = [t.detach().double().requires_grad_() for t in (x, weight)]
    mask = (found.detach() != 0).double() / (1 - dropped)
    mixed = F.scaled_dot_product_attention(wide[0] * wide[1], wide[0], wide[0], is_causal=True)
    (mixed * mask).sum().backward()
    torch.testing.assert_close(found.double(), mixed * mask, rtol=1e-5, atol=1e-5)
    for ours, exact in zip((x, weight), wide, strict=True):
        torch.testing.assert_close(ours.grad.double(), exact.grad, rtol=1e-4, atol=1e-5)
    forward, _ = computations
    names = {s.node.op for s in steps(forward, Called)}
    own = {"new_state", "bernoulli"} if dropped else set()
    assert names == own | {"get_rng_state"}  # that of attention


def test_a_step_of_adamw_is_kernels_alone(computations):
    model = nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model(torch.randn(3, 64)).square().sum().backward()
    wanted = copy.deepcopy(model)
    exact = torch.optim.AdamW(wanted.parameters(), 1e-3)
    for ours, other in zip(model.parameters(), wanted.parameters(), strict=True):
        other.grad = ours.grad.clone()
    torch.compile(optimizer.step, backend="tilecore")()
    exact.step()
    for ours, other in zip(model.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-6)
    assert not [s.node.op for c in computations for s in steps(c, Called)]


def test_what_an_epilogue_reads_in_another_shape_is_computed_there(computations):
    """The derivative of an activation, whose axes are those of the model, of a product's rows."""

    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

        def forward(self, x):
            return self.down(F.gelu(self.up(x), approximate="tanh"))

    check(Layers(), torch.randn(2, 9, 32, requires_grad=True))
    _, backward = computations
    launches = [s.stage.group for s in steps(backward, Launch)]
    ends = [g for g in launches if g.core is not None and "tanh" in {n.op for n in g.members}]
    assert len(ends) == 1
    assert sum("tanh" in {n.op for n in g.members} for g in launches) == 1


def test_heads_of_attention_are_read_where_they_lie(computations):
    """Neither the heads nor their gradients are laid out anew, but for the one tensor of them."""

    def function(x):
        parts = (p.view(2, 70, 2, 64).transpose(1, 2) for p in x.chunk(3, -1))
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        return y.transpose(1, 2).reshape(2, 70, 128)

    check(function, torch.randn(2, 70, 384, requires_grad=True), tolerance=1e-4)
    forward, backward = computations
    assert [type(s) for s in forward.plans[0].steps] == [Launch]
    assert not steps(backward, Copy)
    assert {s.node.op for s in steps(backward, Called)} == {"attention_gradients", "cat"}
