"""``grouped_mm`` of computations: rows sorted by expert, each expert's times its own matrix."""

import pytest
import torch
import torch.nn.functional as F

import tilecore
from tilecore.errors import ShapeMismatch, TypeMismatch, UnsupportedSyntax

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.2e-2}
GPUS = ("emulated h100", "emulated a100", "emulated mi300x")


def gated(a, w, offs, scale):
    gate, up = F.grouped_mm(a, w.transpose(-2, -1), offs=offs).chunk(2, -1)
    return F.silu(gate) * up * scale[:, None]


def plain(a, w, offs):
    return F.grouped_mm(a, w, offs=offs)


def made(sizes, columns, depth, dtype=torch.float32):
    """Return rows, matrices of (E, N, K), and the ends of groups of some sizes."""
    a = torch.randn(sum(sizes), depth).to(dtype)
    w = (torch.randn(len(sizes), columns, depth) / depth**0.5).to(dtype)
    return a, w, torch.tensor(sizes).cumsum(0).int()


def exact(a, w, offs):
    """Return the products of rows with (E, N, K) in float64."""
    ends = offs.tolist()
    pairs = zip([0, *ends], ends, w.double(), strict=False)
    return torch.cat([a[i:j].double() @ matrix.T for i, j, matrix in pairs])


def agrees(found, wanted):
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("turned", [True, False])
def test_groups_of_every_form_of_few_rows_and_of_many(turned, dtype):
    a, w, offs = made(
        [1, 0, 2, 4, 5, 8, 9, 16, 17, 24, 25, 32, 33, 48, 49, 64, 65, 79, 0], 70, 33, dtype
    )
    given = w.transpose(-2, -1) if turned else w.transpose(-2, -1).contiguous()
    agrees(tilecore.compute(plain)(a, given, offs), exact(a, w, offs))


@pytest.mark.parametrize("sizes", [[0, 0, 30], [30, 0, 0], [1], [0, 3]])
def test_empty_groups_and_one_that_has_all(sizes):
    a, w, offs = made(sizes, 64, 32)
    agrees(tilecore.compute(plain)(a, w.transpose(-2, -1), offs), exact(a, w, offs))


def test_what_follows_is_in_the_kernel():
    def function(a, w, offs, bias, ids, scale):
        found = F.grouped_mm(a, w.transpose(-2, -1), offs=offs) + bias[ids]
        return F.gelu(found) * scale[:, None]

    computation = tilecore.compute(function)
    a, w, offs = made([3, 20, 1], 48, 40)
    bias, scale = torch.randn(3, 48), torch.rand(24)
    ids = torch.tensor([0] * 3 + [1] * 20 + [2])
    found = computation(a, w, offs, bias, ids, scale)
    wanted = F.gelu(exact(a, w, offs) + bias[ids].double()) * scale[:, None].double()
    agrees(found, wanted)
    assert len(computation.plan(a, w, offs, bias, ids, scale).stages) == 1


def test_rows_behind_the_last_group_change_nothing():
    a, w, offs = made([2, 5], 32, 16)
    longer = torch.cat([a, torch.full((3, 16), torch.nan)])
    found = tilecore.compute(plain)(longer, w.transpose(-2, -1), offs)
    assert found.shape == (10, 32)
    agrees(found[:7], exact(a, w, offs))


def mixture(x, router, w13, w2):
    """A layer of experts as models have it: the best two of each token, weighted."""
    weights, ids = (x @ router).softmax(-1).topk(2, -1)
    sorted_ids, order = torch.sort(ids.reshape(-1))
    counts = torch.histc(sorted_ids.float(), bins=w13.shape[0], min=0, max=w13.shape[0] - 1)
    offs = torch.cumsum(counts, 0, dtype=torch.int32)
    gate, up = F.grouped_mm(x[order // 2], w13.transpose(-2, -1), offs=offs).chunk(2, -1)
    y = F.grouped_mm(F.silu(gate) * up, w2.transpose(-2, -1), offs=offs)
    y = y * weights.reshape(-1)[order][:, None]
    return y[torch.argsort(order)].reshape(x.shape[0], 2, -1).sum(1)


def experts():
    return torch.randn(24, 6), torch.randn(6, 40, 24) / 5, torch.randn(6, 24, 20) / 4


def by_hand(x, router, w13, w2):
    x, router, w13, w2 = (t.double() for t in (x, router, w13, w2))
    weights, ids = (x @ router).softmax(-1).topk(2, -1)
    rows = []
    for row, ids_of_row, weights_of_row in zip(x, ids, weights, strict=True):
        parts = []
        for e, weight in zip(ids_of_row, weights_of_row, strict=True):
            gate, up = (w13[e] @ row).chunk(2)
            parts.append(weight * (w2[e] @ (F.silu(gate) * up)))
        rows.append(sum(parts))
    return torch.stack(rows)


@pytest.mark.exhaustive
def test_a_layer_of_experts_of_any_number_of_tokens_has_one_plan():
    computation, weights = tilecore.compute(mixture), experts()
    for tokens in (9, 12, 14, 10):
        x = torch.randn(tokens, 24)
        agrees(computation(x, *weights), by_hand(x, *weights))
    assert not computation.plan(x, *weights).is_own


@pytest.mark.exhaustive
def test_its_gradient_is_torch_s():
    x, weights = torch.randn(7, 24, requires_grad=True), experts()
    tilecore.compute(mixture)(x, *weights).square().sum().backward()
    wanted = torch.autograd.functional.jacobian(lambda x: mixture(x, *weights).square().sum(), x)
    torch.testing.assert_close(x.grad, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", GPUS)
@pytest.mark.parametrize("count", [5, 66])
def test_halves_are_one_kernel_on_gpus(target, count):
    """Up to 64 groups are looked through in straight code, more by a loop."""
    sizes = ([1, 0, 17, 3, 40] + [1, 0] * 31)[:count]
    a, w, offs = made(sizes, 96, 72, torch.bfloat16)
    scale = torch.rand(a.shape[0]).to(a.dtype)
    computation = tilecore.compute(gated, target=target)
    gate, up = exact(a, w, offs).chunk(2, -1)
    agrees(computation(a, w, offs, scale), F.silu(gate) * up * scale.double()[:, None])
    assert len(computation.plan(a, w, offs, scale).stages) == 1


def test_halves_of_a_plain_product_are_one_kernel_on_gpus():
    def function(x, w):
        gate, up = (x @ w).chunk(2, -1)
        return F.gelu(gate) * up

    x, w = torch.randn(2, 19, 64), torch.randn(64, 96) / 8
    x, w = x.bfloat16(), w.bfloat16()
    computation = tilecore.compute(function, target="emulated h100")
    agrees(computation(x, w), function(x.double(), w.double()))
    assert len(computation.plan(x, w).stages) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: [(x @ w)[..., :32].exp() * (x @ w)[..., 32:] + (x @ w)[..., :1]],
        lambda x, w: [(x @ w)[..., :32].exp(), x @ w],
        lambda x, w: [(x @ w)[..., :3].exp(), (x @ w)[..., 3:6]],
        lambda x, w: [(x @ w)[..., ::2].exp() * (x @ w)[..., 1::2]],
    ],
)
def test_other_parts_of_products_stay(function):
    x, w = torch.randn(5, 64).bfloat16(), (torch.randn(64, 64) / 8).bfloat16()
    computation = tilecore.compute(function, target="emulated h100")
    found, wanted = computation(x, w), function(x.double(), w.double())
    for one, other in zip(found, wanted, strict=True):
        agrees(one, other)


def test_matrices_of_both_operands_are_a_batched_product():
    a, b = torch.randn(3, 5, 16), torch.randn(3, 16, 24)
    found = tilecore.compute(lambda a, b: F.grouped_mm(a, b))(a, b)
    agrees(found, a.double() @ b.double())


def test_groups_along_k_are_torch_s():
    def function(a, b, offs):
        return F.grouped_mm(a, b, offs=offs)

    a, b = torch.randn(16, 24).bfloat16(), torch.randn(24, 32).bfloat16()
    offs = torch.tensor([8, 24]).int()
    computation = tilecore.compute(function)
    assert torch.equal(computation(a, b, offs), function(a, b, offs))
    assert "torch's grouped_mm" in computation.explain(a, b, offs)


def test_what_does_not_fit_is_refused():
    a, w, offs = made([3, 4], 16, 8)
    grouped = tilecore.compute(plain)
    with pytest.raises(ShapeMismatch, match=r"offs of shape \(2,\) and K = 8.*K = 16"):
        grouped(a, w, offs)
    with pytest.raises(ShapeMismatch, match=r"offs of shape \(2,\)"):
        grouped(a, w.transpose(-2, -1), torch.tensor([1, 2, 7]).int())
    with pytest.raises(TypeMismatch, match=r"offs of int32"):
        grouped(a, w.transpose(-2, -1), offs.long())
    with pytest.raises(TypeMismatch, match=r"one element type"):
        grouped(a.bfloat16(), w.transpose(-2, -1), offs)
    with pytest.raises(UnsupportedSyntax, match="grouped_mm"):
        tilecore.compute(lambda a, w: F.grouped_mm(a, w))(a, w.transpose(-2, -1))
