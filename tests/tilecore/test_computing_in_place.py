"""What computations write in place: every name and view of it sees the write, as in torch."""

import functools
import operator

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tilecore
from tilecore.errors import ArgumentError, ShapeMismatch, TypeMismatch, UnsupportedSyntax

WEIGHT = torch.nn.Parameter(torch.arange(8.0))


@functools.cache
def hidden():
    """Return a tensor that no attribute and no variable leads to."""
    return torch.arange(8.0)


def whole(*shape):
    """Return small integers, of which sums and products are exact."""
    return torch.randint(-4, 5, shape).float()


def agrees(function, *given):
    """Compare a computation with its function, exactly; return the kinds of its steps."""
    computation = tilecore.compute(function)
    found, wanted = computation(*given), function(*given)
    for one, other in zip(
        *(x if isinstance(x, tuple) else (x,) for x in (found, wanted)), strict=True
    ):
        assert one.dtype == other.dtype
        assert torch.equal(one, other), (one, other)
    steps = computation.plan(*given).steps
    return [getattr(getattr(s, "node", None), "op", type(s).__name__) for s in steps]


def of(statements):
    """Return a function of two tensors: ``y`` is x * 2, then come statements; all are returned."""
    names = {"torch": torch, "F": F, "WEIGHT": WEIGHT}
    lines = "".join(f"    {line.strip()}\n" for line in statements.split(";"))
    exec(f"def function(x, b):\n    y = x * 2\n{lines}    return y + 0, y, b * 1\n", names)
    return names["function"]


@pytest.mark.few(20)
@pytest.mark.parametrize(
    "statements",
    [
        "z = y; y += 1; y = z",
        "y += b; y -= 3; y *= b; y /= 2; y **= 2",
        "y += 1; y -= y; y += x",
        "z = y.T; z += 1; z[0] = 5.; y[1] -= 2",
        "y.add_(b).sub_(x, alpha=2).mul_(b).neg_().abs_()",
        "y.clamp_(-2, 3).relu_(); y.clip_(max=1); y.square_()",
        "y.copy_(b); y[0].copy_(x[1])",
        "y.fill_(3); y[:, 1].fill_(b[0]); y[2:].zero_()",
        "z = y[0].flatten(); w = z.flatten(); z.unsqueeze_(0); y = y + w",
        "y.masked_fill_(x > 0, 7.); y[x < 0] = 0.; y[x[:, 0] > 1] = 1.",
        "F.relu(y, inplace=True); F.leaky_relu(y, 2.0, inplace=True); F.hardtanh(y, -9., 9., True)",
        "F.dropout(y, 0.5, training=False, inplace=True).add_(1)",
        "torch.relu_(y); F.relu6(y, True)",
        "y.index_add_(1, torch.tensor([1, 3]), x[:, :2]); y.index_fill_(0, torch.tensor([2]), 3.)",
        "y.index_copy_(0, torch.tensor([2, 0]), x[:2]); y.scatter_(1, torch.ones(4, 1).long(), 5.)",
        "y.scatter_add_(1, torch.zeros(4, 8).long(), x); y.tril_(); y.fill_diagonal_(9.)",
        "y.addmm_(x, x.T @ x); y.addcmul_(x, x, value=2); y.lerp_(x, 1.0)",
        "y[torch.tensor([0, 2])] = b; y[[1, 3], [2, 4]] = 6.; y[:, torch.tensor([1])] += 2",
        "y[torch.tensor([0, 2])] += 1; y[None, 1:3, ..., ::2] = 4.; y[-1, -1] = b[3]",
        "y[x > 0] = x[0, 0]; y[(x > 0) & (y < 5)] = -1.",
        "a, c = y.chunk(2, -1); a += 1; c *= a",
        "a, c = y.split([3, 5], -1); a.copy_(b[:3]); c.mul_(b[3:])",
        "rows = list(y); rows[1] += b; rows[2][0] = 2.; rows[3].zero_()",
        "y.unbind(1)[2].add_(3); y.select(0, 1).zero_(); y.narrow(1, 2, 3).neg_()",
        "y.movedim(0, 1)[2] = 3.; y.unflatten(1, (2, 4))[:, 1] += 1; y[None].squeeze().add_(1)",
        "y.detach().add_(1); y.float().add_(1); y.to(y).mul_(2); y.contiguous().sub_(1)",
        "z = y.unsqueeze(0); z.squeeze_(0); z.t_(); z[3] = 1.; z.transpose_(0, 1); z[3] = 2.",
        "y.view(-1)[5:9] = 0.; y.reshape(2, 2, 8)[1] += 1; y.flatten()[::3] = 2.",
        "z = y.view(4, 2, 4); z[:, 0] = 1.; z[:, 1, ::2] += 2; y[0] = 0.; z.mT[:, 3] = 5.",
        "z = y.expand(3, 4, 8); y += 1; y = z.sum(0)",
        "z = y.clone(); z += 1; y = y - z",
        "z = torch.cat([y]); z += 1; w = y.repeat_interleave(1, 0); w += 1",
        "v = y.bfloat16().float(); v += 3; w = y.detach(); w.unsqueeze_(0); w[0, 1] = 2.",
        "z = y.to(torch.float32, copy=True); z += 1",
        "z = y.T.contiguous(); z += 1; w = y.T.reshape(-1); w += 1",
        "y.to(torch.float16).add_(1); y.half().float().mul_(3)",
        "n = x.to(torch.int64); n += 2; n //= 2; n[0] = 7; n &= 3; y += n",
        "m = x > 0; m |= y == 0; m ^= x < -2; y[m] = 1.",
        "h = y.bfloat16(); h += b; h[0] = b; y.copy_(h)",
        "y[0] = True; y[1, :2] = 3; y[2] = b[None]",
        "y[3:][:0] = 5.; y[:, 8:].fill_(2.)",
        "z = torch.linalg.diagonal(y); w = y[:4, :4]; w += 1",
    ],
)  # fmt: skip
def test_every_name_sees_what_is_written(statements):
    agrees(of(statements), whole(4, 8), whole(8))


def test_operators_on_truth_and_integers():
    def function(mask, n):
        kept = mask.clone()
        kept &= n > 2
        kept[:, 0] = True
        n = n.clone()
        n |= 1
        n[1:] ^= 3
        return kept, n

    agrees(function, torch.rand(3, 4) > 0.5, torch.arange(12).view(3, 4))


def test_where_views_are_copies_depends_on_the_strides():
    """Of arguments and of what surely lies as rows the strides are known."""

    def function(x, w):
        turned = x.T.reshape(-1)  # a copy
        turned += 1
        made = x @ w
        flat = made.reshape(-1)  # a view
        flat[2:5] = 0.0
        other = made.T.reshape(-1)  # a copy
        other *= 2
        return turned, made, other

    agrees(function, whole(3, 4), whole(4, 5))
    agrees(lambda x: x.contiguous().add_(1), whole(4, 3).T)  # which is a copy
    x = whole(3, 4)
    before = x.clone()
    assert tilecore.compute(lambda x: x.contiguous().add_(1))(x) is x  # which is no copy
    assert torch.equal(x, before + 1)


@pytest.mark.parametrize(
    "maybe",
    [
        lambda y: y.reshape(-1),
        lambda y: y.contiguous(),
        lambda y: y.flatten(),
        lambda y: y.diagonal(),
    ],
)
def test_what_may_be_a_view_is_not_read_after_a_write_to_the_other(maybe):
    def of_view(x):
        y = x.T * 2  # lies as x does
        z = maybe(y)
        z += 1
        return z

    def of_both(x):
        y = x.T * 2
        z = maybe(y)
        z += 1
        return y + 1

    def of_whole(x):
        y = x.T * 2
        z = maybe(y)
        y += 1
        return y, z * 2

    agrees(of_view, whole(4, 4))
    for function in (of_both, of_whole):
        with pytest.raises(UnsupportedSyntax, match="may have changed") as caught:
            tilecore.compute(function)(whole(4, 4))
        assert caught.value.span.file == __file__
        assert "clone()" in caught.value.hint


# --- parts ----------------------------------------------------------------------------------------


def pairs(x, c, s):
    a, b = x[..., ::2], x[..., 1::2]
    out = torch.empty_like(x)
    out[..., ::2] = a * c - b * s
    out[..., 1::2] = a * s + b * c
    return out


def halves(x, c, s):
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    out = x.new_empty(x.shape)
    out[..., :half].copy_(a * c - b * s)
    out[..., half:].copy_(a * s + b * c)
    return out


@pytest.mark.parametrize("rotated", [pairs, halves])
def test_rotary_embeddings_that_are_written_by_parts_are_one_kernel(rotated):
    given = whole(2, 3, 5, 32), whole(5, 16), whole(5, 16)
    assert agrees(rotated, *given) == ["Launch"]
    narrow = [t.bfloat16() for t in given]
    rope = tilecore.compute(rotated)
    torch.testing.assert_close(rope(*narrow), rotated(*narrow), rtol=1e-2, atol=0.5)
    for n in (5, 9, 12, 14, 15):
        given = whole(2, 3, n, 32), whole(n, 16), whole(n, 16)
        assert torch.equal(rope(*given), rotated(*given))
    assert not rope.plan(*given).is_own


def test_keys_of_two_parts_are_joined_without_other_copies():
    """As DeepSeek-V3 writes them: one part for each head, one for all."""

    def keys(kv, rotated):
        made = kv.new_empty(*kv.shape[:-1], 12)
        made[..., :8].copy_(kv[..., :8])
        made[..., 8:].copy_(rotated.expand(-1, 3, -1, -1))
        return made

    assert agrees(keys, whole(2, 3, 5, 16), whole(2, 1, 5, 4)) == ["expand", "cat"]
    found = tilecore.compute(keys)
    plan = found.plan(whole(2, 3, 5, 16), whole(2, 1, 5, 4))
    assert plan.steps[0].node.attrs["is_for_calls"]


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ("o[:, :3] = x[:, :3]; o[:, 3:] = b[3:]", ["cat"]),
        ("o[1:] = x[1:]; o[0] = b", ["cat"]),
        ("o[:, 3:] = 2.; o[:, :3] = 1.", ["cat"]),
        ("o[:, :5] = x[:, :5]; o[:, 3:] = b[3:]; o[:, 4] = 7.", ["cat"]),  # the last one stays
        ("for i in range(4):\n        o[i] = x[3 - i]", ["cat"]),
        ("o.T[2:] = x.T[2:]; o.T[:2] = 1.", ["cat"]),
        ("p = o.view(4, 2, 4); p[:, 0] = x[:, :4]; p[:, 1] = b[:4]", ["cat"]),
        ("o[:, ::4] = 1.; o[:, 1::4] = x[:, :2]; o[:, 2::4] = 2.; o[:, 3::4] = b[:2]", ["stack"]),
        ("o[:] = x; o[:, 2:4] = b[:2]", ["cat"]),
        ("o[...] = x; o[:, 1::2] = b[:4]", ["stack"]),
        ("o[:2, :] = x[:2]; o[2:, :4] = 1.; o[2:, 4:] = b[:4]", ["put"]),
    ],
)
def test_parts_that_cover_a_tensor_are_joined(written, made):
    lines = "".join(f"    {line.strip()}\n" for line in written.split(";"))
    names = {"torch": torch}
    exec(f"def function(x, b):\n    o = torch.empty(4, 8)\n{lines}    return o", names)
    steps = agrees(names["function"], whole(4, 8), whole(8))
    assert [s for s in steps if s in ("cat", "stack", "put", "empty")] == made


def test_what_was_just_written_is_read_without_the_rest():
    def scanned(x):
        state = torch.empty_like(x)
        state[:, 0] = x[:, 0]
        for i in range(1, x.shape[1]):
            state[:, i] = state[:, i - 1] * 0.5 + x[:, i]
        return state

    steps = agrees(scanned, whole(3, 6, 8))
    assert steps.count("cat") == 1
    assert "put" not in steps


def test_parts_of_a_size_that_varies():
    @tilecore.compute
    def padded(x, n):
        found = torch.zeros(x.shape[0] + 3, 8)
        found[: x.shape[0]] = x * 2
        found[-1] += 1
        found[:, 0] = n
        return found

    for n in (5, 9, 10, 12, 15):
        x = whole(n, 8)
        assert torch.equal(padded(x, 3.0), padded.function(x, 3.0))
    assert not padded.plan(x, 3.0).is_own


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        (lambda x, b: x.unsqueeze_(0), UnsupportedSyntax, "only writes elements"),
        (lambda x, b: x.requires_grad_(), UnsupportedSyntax, "only writes elements"),
        (lambda x, b: x.sum(-1).expand(4, 4).T.add_(1), UnsupportedSyntax, "what expand repeats"),
        (lambda x, b: x.diagonal().add_(1), UnsupportedSyntax, "no tensor of its caller's"),
        (lambda x, b: hidden().add_(x), UnsupportedSyntax, "no tensor that the function holds"),
        (lambda x, b: hidden().data.zero_() + x, UnsupportedSyntax, "that the function holds"),
        (lambda x, b: hidden().expand_as(x).add_(1), UnsupportedSyntax, "that the function holds"),
        (lambda x, b: operator.setitem(hidden(), 0, x), UnsupportedSyntax, "the function holds"),
        (lambda x, b: torch.add(x, b, out=x * 1), UnsupportedSyntax, "`add` with out="),
        (lambda x, b: (x * 1).uniform_(), UnsupportedSyntax, "no random numbers"),
        (lambda x, b: (x * 1).normal_(0, 1), UnsupportedSyntax, "no random numbers"),
        (lambda x, b: torch.dropout_(x * 1, 0.5, True), UnsupportedSyntax, "no random numbers"),
        (lambda x, b: x + torch.randn(4, 8), UnsupportedSyntax, "no random numbers"),
        (lambda x, b: x + torch.rand_like(x), UnsupportedSyntax, "no random numbers"),
        (lambda x, b: (x * 1).resize_(3), UnsupportedSyntax, "`resize_`"),
        (lambda x, b: (x * 1).frobenius_(), UnsupportedSyntax, "`Tensor.frobenius_`"),
        (lambda x, b: (x[:1] * 1).expand(4, 8).add_(1), UnsupportedSyntax, "what expand repeats"),
        (lambda x, b: x.to(torch.int64).add_(0.5), TypeMismatch, "`add_` to return what int64"),
        (lambda x, b: operator.itruediv(x.long(), 2), TypeMismatch, "return what int64 holds"),
        (lambda x, b: operator.iadd(b * 1, x), ShapeMismatch, r"shape (8,)"),
        (lambda x, b: (x * 1).copy_(x[:, :3]), ShapeMismatch, "(4, 8)"),
        (lambda x, b: operator.setitem(x * 1, 0, x), ShapeMismatch, "(4, 8)"),
        (lambda x, b: (x * 1).fill_(b), ShapeMismatch, "a number"),
        (lambda x, b: operator.setitem(x * 1, x[:, :3] > 0, 1.0), ShapeMismatch, "a mask"),
        (lambda x, b: operator.setitem(x * 1, 7, 1.0), ShapeMismatch, "lies in shape (4, 8)"),
        (lambda x, b: operator.setitem(x * 1, 0, "a"), TypeMismatch, "a tensor or a number"),
    ],
)  # fmt: skip
def test_what_is_not_to_be_written_is_told_with_its_line(function, error, said):
    with pytest.raises(error) as caught:
        tilecore.compute(function)(torch.randn(4, 8), torch.randn(8))
    assert said in caught.value.message
    assert caught.value.span.file == __file__
    assert torch.equal(hidden(), torch.arange(8.0))


# --- arguments that kernels overwrite -------------------------------------------------------------


def kept(x, y):
    before = x.exp().sum(0)
    x.mul_(y).add_(1)
    return before, x.T


def changed_twice(x, y):
    x.add_(y)
    y.sub_(x)


def of_rows(x, y):
    x.copy_(x.softmax(-1) * y)
    y.copy_(x.sum(-1, keepdim=True).expand(*y.shape))


def read_later(x, y):
    before = x[0].clone()
    x.add_(y)
    return before @ x.T


def read_as_a_view(x, y):
    old = x.clone()
    x.copy_(y + 1)
    return (x + old).T, old


def turned(x, y):
    x.copy_(x.flip(0) + y)


def of_all_rows(x, y):
    x.copy_(x[:1] + y + x)


def twice(x, y):
    x.add_(y)
    return x.clone(), x.clone()


def given_back(x, y):
    x.mul_(2)
    return x, x + y


@pytest.mark.few(9)
@pytest.mark.parametrize(
    ("function", "count"),
    [
        (kept, 1), (changed_twice, 2), (of_rows, 1), (read_later, 0), (read_as_a_view, 0),
        (turned, 1), (of_all_rows, 0), (twice, 0), (given_back, 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("turns", [False, True])
def test_arguments_are_overwritten_where_nothing_reads_them_later(function, count, turns):
    x, y = torch.randn(20, 20), torch.rand(20, 20)
    given = [t.T for t in (x, y)] if turns else [x, y]
    wanted = [t.clone() for t in given]
    versions, computation = [t._version for t in given], tilecore.compute(function)
    torch.testing.assert_close(computation(*given), function(*wanted))
    torch.testing.assert_close(given, wanted)
    assert [t._version > v for t, v in zip(given, versions, strict=True)] == [
        t._version > 0 for t in wanted
    ]
    stages = computation.plan(*given).stages
    if not turns:  # others are copied to
        assert sum(len(stage.program.overwritten) for stage in stages) == count


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["emulated h100", "emulated mi300x"])
def test_kernels_of_gpus_overwrite_arguments(target):
    def function(x, y):
        before = (x * y).sum(-1)
        y.mul_(0.5).add_(x.softmax(-1))
        x.sub_(y, alpha=0.25)
        return before, y.amax(-1)

    given = [torch.rand(10, 70) for _ in range(2)]
    wanted = [t.clone() for t in given]
    computation = tilecore.compute(function, target=target)
    torch.testing.assert_close(computation(*given), function(*wanted))
    torch.testing.assert_close(given, wanted)
    (stage,) = computation.plan(*given).stages
    assert sorted(stage.program.overwritten) == ["x_1", "y"]


def test_results_that_are_parts_of_written_arguments_are_views_of_them():
    """They were views of what had been written, which others may be, too."""

    def function(x, y):
        y.copy_(x)
        x.add_(1)
        return y[1:], x.T, y.view(-1)[3]

    for rows in (4, 5, 6):
        x, y = torch.randn(rows, 3), torch.randn(rows, 3)
        first = x.clone()
        part, turned, one = tilecore.compute(function)(x, y)
        assert torch.equal(y, first)
        assert torch.equal(part, first[1:])
        assert torch.equal(turned, first.T + 1)
        for view, base in ((part, y), (turned, x), (one, y)):
            assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
        assert one == first[1, 0]


def test_overwritten_arguments_of_sizes_that_vary():
    def function(x, y):
        x.mul_(y).add_(1)
        return x.sum(-1)

    computation = tilecore.compute(function)
    for rows, columns in ((3, 8), (5, 40), (7, 9), (1, 1), (4, 1), (2, 300)):
        given = [torch.randn(rows, columns) for _ in range(2)]
        wanted = [t.clone() for t in given]
        torch.testing.assert_close(computation(*given), function(*wanted))
        torch.testing.assert_close(given, wanted)
    assert computation.plan(*given).stages[0].program.overwritten == ("x_1",)


def test_what_torch_saved_for_a_gradient_may_not_be_overwritten():
    x, w = torch.ones(8), torch.ones(8, requires_grad=True)
    loss = (x * w).sum()  # whose gradient is x
    tilecore.compute(lambda x: x.add_(1))(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        x = torch.ones(8)
        tilecore.compute(lambda x: x.add_(1))(x)
        assert torch.equal(x, torch.full((8,), 2.0))


def test_tuning_a_kernel_leaves_what_it_overwrites_as_it_is():
    def function(x, y):
        x.mul_(0.5).add_(y)

    given = [torch.randn(64, 64) for _ in range(2)]
    wanted = [t.clone() for t in given]
    computation = tilecore.compute(function)
    computation.tune(*given, trials=3)
    assert all(map(torch.equal, given, wanted))
    (stage,) = computation.plan(*given).stages
    assert stage.chosen.source == "measured"
    computation(*given)
    function(*wanted)
    torch.testing.assert_close(given, wanted)


def test_arrays_that_are_read_only_are_not_overwritten():
    x = np.ones(8, np.float32)
    tilecore.compute(lambda x: x.__iadd__(1))(x)
    np.testing.assert_array_equal(x, 2)
    x.flags.writeable = False
    with pytest.raises(ArgumentError, match="writable"):
        tilecore.compute(lambda x: x.__iadd__(1))(x)
    np.testing.assert_array_equal(x, 2)


def test_arrays_of_numpy_are_written_in_place():
    def function(x, y):
        z = x * 2
        w = z
        z += y
        z[0] = 5.0
        z[:, 1:3] *= 2.0
        return w

    x, y = (np.random.default_rng(0).integers(-4, 5, (3, 4)).astype(np.float32) for _ in range(2))
    np.testing.assert_array_equal(tilecore.compute(function)(x, y), function(x, y))
    with pytest.raises(UnsupportedSyntax, match="caller's"):
        tilecore.compute(lambda x: np.reshape(x, -1).__iadd__(1))(x)


# --- lists of tensors -----------------------------------------------------------------------------


def step_of_lists(weights, steps, means):
    torch._foreach_lerp_(means, steps, 0.5)
    torch._foreach_add_(weights, means, alpha=-2)
    torch._foreach_addcmul_(weights, steps, steps, 0.5)
    torch._foreach_mul_(weights, [0.5, 0.25])
    torch._foreach_zero_(steps)
    return [*torch._foreach_neg(weights), *torch._foreach_norm(means, 1)]


def test_functions_of_lists_of_tensors_write_to_them():
    """What they wrote was lost: torch wrote to a tensor of its own."""
    given = [[whole(3, 4), whole(5)] for _ in range(3)]
    wanted = [[x.clone() for x in several] for several in given]
    found = tilecore.compute(step_of_lists)(*given), *given
    for ours, exact in zip(found, (step_of_lists(*wanted), *wanted), strict=True):
        assert all(map(torch.equal, ours, exact))
    with pytest.raises(ShapeMismatch, match="lists of one length"):
        tilecore.compute(lambda x: torch._foreach_add(x, [x[0]]))(given[0])


def test_functions_of_lists_of_tensors_write_to_those_that_are_held():
    held = [torch.ones(3), torch.ones(2)]
    computed = tilecore.compute(lambda x: (torch._foreach_mul_(held, x), held[0] + x)[1])
    for factor in (2, 4, 8):
        torch.testing.assert_close(computed(torch.tensor(2.0)), torch.full((3,), factor + 2.0))
    assert held[1].tolist() == [8.0, 8.0]


# --- torch's part ---------------------------------------------------------------------------------


def updated(x, w):
    y = x @ w
    y += 1
    y[:, :2] = y[:, 2:4] + x[:, :2]
    out = torch.zeros(x.shape[0], 6)
    out[:, ::2] = y[:, :3]
    return out.mul_(2).tanh_()


def test_gradients_are_those_of_the_function():
    x, w = torch.randn(5, 4), torch.randn(4, 7)
    found = []
    for function in (tilecore.compute(updated), updated):
        given = [t.clone().requires_grad_() for t in (x, w)]
        function(*given).square().sum().backward()
        found.append([t.grad for t in given])
    for ours, wanted in zip(*found, strict=True):
        torch.testing.assert_close(ours, wanted)


def test_calls_are_nodes_of_torchs_graphs():
    computed = tilecore.compute(updated)
    x, w = torch.randn(5, 4), torch.randn(4, 7)
    compiled = torch.compile(lambda x: computed(x, w) + 1, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), updated(x, w) + 1)
