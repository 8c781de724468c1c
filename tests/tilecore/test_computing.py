"""``@tilecore.compute``: plain functions of tensors, against themselves in float64."""

import itertools
import math
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tilecore
from tilecore.computing.planning.plan import Called, Launch
from tilecore.errors import ShapeMismatch, TileError, TypeMismatch, UnsupportedSyntax

BFLOAT16, FLOAT16 = torch.bfloat16, torch.float16


def scaled(*shape):
    """Return random numbers whose products with others have a variance of about 1."""
    return torch.randn(*shape) / math.sqrt(shape[-1] if len(shape) == 1 else shape[-2])


def wide(value):
    return value.double() if isinstance(value, torch.Tensor) else value


def check(function, *args, kernels=None, tolerance=1e-5):
    """Compare a computation with the function itself; return it."""
    found = tilecore.compute(function)
    got, want = found(*args), function(*map(wide, args))
    pairs = [(got, want)] if isinstance(got, torch.Tensor) else list(zip(got, want, strict=True))
    for ours, exact in pairs:
        assert ours.shape == exact.shape
        assert torch.isfinite(ours).all()
        error = (ours.double() - exact).abs().max() / exact.abs().max()
        assert error <= tolerance, error
    if kernels is not None:
        launches = [s for s in found.plan(*args).steps if isinstance(s, Launch)]
        assert len(launches) == kernels
    return found


# --- what it computes -------------------------------------------------------------------------


def mlp(x, w1, b1, w2):
    return F.gelu(x @ w1 + b1) @ w2


def swiglu(x, gate, up, down):
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down) + x


def block(x, weights, scale, heads):
    rows, length, width = x.shape
    q, k, v = (
        part.reshape(rows, length, heads, width // heads).transpose(1, 2)
        for part in (F.rms_norm(x, (width,), scale, 1e-6) @ weights).chunk(3, dim=-1)
    )
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).reshape(rows, length, width) + x


def test_products_take_what_follows_into_their_kernel():
    check(
        mlp, torch.randn(3, 33, 70), scaled(70, 130), torch.randn(130), scaled(130, 50), kernels=2
    )
    check(
        swiglu, torch.randn(33, 70), scaled(70, 130).T.contiguous(), scaled(70, 130).T.contiguous(),
        scaled(130, 70).T.contiguous(), kernels=3,
    )  # fmt: skip
    check(block, torch.randn(2, 37, 64), scaled(64, 192), torch.randn(64), 4, kernels=4)


def test_products_of_a_transposed_tensor_with_few_columns_read_it_where_it_lies():
    """As the transposes of products of few rows: gradients of the factors of a LoRA."""
    x, y = torch.randn(90, 130), scaled(90, 8)
    found = check(lambda x, y: x.T @ y, x, y, kernels=1)
    assert found.plan(x, y).stages[0].group.root.shape == (8, 130)
    found = check(lambda x, y: (x.T @ y).T, x, y, kernels=1)
    assert len(found.plan(x, y).steps) == 1  # no copy
    found = check(lambda x, y: (x.T @ y).relu(), x, y, kernels=1)  # which its kernel computes
    assert found.plan(x, y).stages[0].group.root.shape == (130, 8)
    check(lambda x, y: x.T @ y, x[:, :64].contiguous(), scaled(90, 64), kernels=1)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "shapes",
    [
        [(7,), (7,)], [(5, 7), (7,)], [(7,), (7, 4)], [(2, 5, 7), (2, 7, 3)], [(5, 7), (2, 7, 3)],
        [(3, 1, 5, 7), (2, 7, 3)], [(2, 5, 7), (7, 3)], [(1, 1), (1, 1)], [(129, 65), (65, 257)],
    ],
)  # fmt: skip
def test_products_of_all_ranks(shapes):
    check(lambda a, b: a @ b, *(torch.randn(s) for s in shapes), kernels=1)


def test_transposed_operands_are_read_as_they_lie():
    a, b = torch.randn(40, 33), scaled(40, 21)
    check(lambda a, b: a.T @ b, a, b, kernels=1)
    check(lambda a, b: torch.relu(b.mT @ a), a, b, kernels=1)
    check(lambda x: x @ x.mT * 0.1 + x.sum(-1, keepdim=True), torch.randn(2, 20, 20), kernels=2)
    check(
        lambda x, w: torch.einsum("bsd,hde->bhse", x, w), torch.randn(2, 9, 24), scaled(4, 24, 10),
        kernels=1,
    )  # fmt: skip
    check(lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1),
          torch.randn(2, 3, 9, 24), scaled(2, 3, 24, 11).mT.contiguous(), kernels=2)  # fmt: skip


def test_kernels_repeat_plain_arithmetic_of_what_is_stored():
    """It is no more to read, and nothing is written; of what takes time it is stored."""
    x, y, w = torch.randn(33, 70), torch.randn(33, 70), torch.rand(70) + 1
    check(lambda x, w: ((x * w - 1).softmax(0), (x * w - 1) * 2), x, w, kernels=2)
    check(lambda x, w: ((x * w).exp().sum(0), (x * w).exp() * 2), x, w, kernels=2)
    check(lambda x, y: ((x - y).relu(), (x - y).sum(-1), (x - y) @ y.T), x, y, kernels=2)


def test_kernels_of_the_same_rows_are_one():
    x, y, w = torch.randn(4, 9, 70), torch.randn(4, 9, 70), torch.rand(70) + 1
    check(lambda x, w: ((x * w - 1).softmax(-1), (x * w - 1) * 2), x, w, kernels=1)
    check(lambda x, y: ((x + y) * 2, (x + y).sum(-1), (x + y).exp().amax(-1)), x, y, kernels=1)
    check(lambda x, y: (x * y, x.exp(), y.exp(), x.exp() / y.exp()), x, y, kernels=1)
    check(lambda x: (*torch.var_mean(x, -1), F.layer_norm(x, (70,))), x, kernels=1)
    check(lambda x, w: (x + w, x[0].sum(-1)), x, w, kernels=2)  # of other rows
    check(lambda x, y: (x.exp(), y.exp()), x, y, kernels=2)  # which read nothing alike

    def through_a_product(x, y):
        z = x.exp()
        return z, (z[0] @ z[0].T).sum() + z

    check(through_a_product, x / 4, y, kernels=4)  # the last kernel needs the first one's result


def test_results_of_one_kernel_have_element_types_of_their_own():
    x = torch.randn(33, 70, dtype=torch.bfloat16)
    found = tilecore.compute(
        lambda x: (x.float() * 2, x > 0, (x.float() * 10).to(torch.int8), x.exp())
    )
    for one, other in zip(found(x), found.function(x), strict=True):
        torch.testing.assert_close(one, other)
    assert len(found.plan(x).stages) == 1
    assert "returns (33, 70), (33, 70), (33, 70)" in found.explain(x)


def test_rows_are_one_kernel():
    x, w, b = torch.randn(4, 33, 70), torch.randn(70), torch.randn(70)
    check(lambda x: torch.softmax(x, -1), x, kernels=1)
    check(lambda x: F.log_softmax(x, -1), x, kernels=1)
    check(lambda x, w, b: F.layer_norm(x, (70,), w, b), x, w, b, kernels=1)
    check(lambda x, w: F.gelu(F.rms_norm(x, (70,), w), approximate="tanh"), x, w, kernels=1)
    check(lambda x: (x - x.amin(-1, keepdim=True)) / (x.amax(-1, keepdim=True) - 1e3), x, kernels=1)
    check(lambda x: (x * 0.5).softmax(-1).mean(-1, keepdim=True), x, kernels=1)


def test_what_is_written_twice_is_computed_once():
    x, w = torch.randn(33, 70), scaled(70, 50)
    check(lambda x, w: torch.where(x @ w < 0, 0.0, x @ w), x, w, kernels=1)
    check(lambda x, w: (x.exp() @ w) * (x.exp() @ w), x / 4, w, kernels=2)


def test_other_axes_are_reduced_too():
    x = torch.randn(3, 17, 33)
    check(lambda x: (x.sum(0), (x + 1).mean(), x.amax(-1), x.sum((0, 2), keepdim=True)), x)
    check(lambda x: (x - x.mean(1, keepdim=True)).pow(2).mean(1), x)
    check(lambda x: (x.softmax(0), x.max(), torch.min(x, x * 2)), x)
    check(lambda x: x.sum() + x.amin(), torch.rand(300, 400) + 1, kernels=4)  # in parts
    check(lambda x: x.mean(-1), torch.rand(3, 8209) + 1, kernels=1)  # a prime number has none


def test_reductions_that_name_no_axis_are_over_all():
    """They were over none."""
    x = torch.randn(3, 17)
    same(lambda x: (x.sum([]), x.mean(()), x.amax([]), x.var(()), x.sum([], keepdim=True)), x)


def same(function, *given):
    """Compare a computation with torch in float32: values, and element types."""
    torch.testing.assert_close(tilecore.compute(function)(*given), function(*given))


@pytest.mark.filterwarnings("ignore:Implicit dimension")
@pytest.mark.parametrize("shape", [(), (5,), (3, 5), (3, 5, 4), (2, 3, 5, 4)], ids=str)
def test_a_softmax_of_no_axis_takes_that_of_torch(shape):
    """It failed, and log_softmax took the last one."""
    same(lambda x: (F.softmax(x), F.log_softmax(x), x.softmax(-1)), torch.randn(shape))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, m: (torch.exp(input=x), torch.sum(input=x, dim=1), F.gelu(input=x)),
        lambda x, m: (torch.reshape(input=x, shape=(4, 3)), torch.permute(input=x, dims=(1, 0))),
        lambda x, m: (torch.matmul(x, other=x.T), torch.addmm(x[0, :3], mat1=x, mat2=x.T)),
        lambda x, m: (torch.mm(input=x, mat2=x.T), torch.pow(input=x, exponent=2)),
        lambda x, m: torch.where(condition=m, input=x, other=x * 2),
        lambda x, m: (x.where(m, 0), x.where(m, x * 2), x.masked_fill(mask=m, value=1)),
        lambda x, m: (m.where(x > 1, x > 0), (x > 0).where(m, False)),
        lambda x, m: F.silu(input=x * 1, inplace=True),
    ],
)
def test_arguments_by_the_names_that_torch_has(function):
    same(function, torch.randn(3, 4), torch.randn(3, 4) > 0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, m: (torch.div(x, 0.3, rounding_mode="floor"), x.div(2, rounding_mode="trunc")),
        lambda x, m: x.float(memory_format=torch.contiguous_format) * 2,
        lambda x, m: (torch.logical_and(x, m), torch.logical_not(x), x.logical_or(m)),
        lambda x, m: (torch.where(m, x > 1, x > 0), torch.where(m, 2**24 + 1, 0) * x),
    ],
)
def test_what_functions_of_ours_do_not_take_is_torchs(function):
    same(function, torch.randn(3, 4).round(), torch.randn(3, 4) > 0)


def test_numbers_become_one_tensor():
    """A part of it has no axes."""
    x, y = torch.randn(3, 17), torch.randn(5)
    check(lambda x, y: torch.stack([x.norm(), y.norm()]).norm(), x, y)
    check(lambda x, y: torch.stack([x[0, 0] * 2, y[1] + 1, y[2].exp()]), x, y)


def test_elements_broadcast_as_in_torch():
    x, y = torch.randn(3, 5, 7), torch.randn(5, 1)
    for other in (y, torch.randn(7), torch.randn(3, 1, 7), torch.randn(1), torch.randn(())):
        check(lambda x, y: (x + y) * 2 - y / 3, x, other, kernels=1)
    check(lambda x, y: torch.where(x > y, x.exp(), torch.maximum(y, 2 * x)).clamp(-1, 3), x, y)
    check(lambda x: (x.abs().sqrt(), 2 / (1 + x.square()), x**3, 1 - x, -x, (x**2) ** 0.5), x)
    check(lambda x: x**4 + x**-3 + x.abs() ** 1.5 + 2**x, x.sign() + x)
    check(lambda x: torch.rsqrt(x.abs() + 1) * torch.tanh(x).erf() - x.sigmoid().log(), x)
    check(lambda x: torch.sin(x) + x.cos() + torch.exp2(x) + torch.log2(x.abs() + 1), x)


ACTIVATIONS = (
    F.softplus, F.logsigmoid, F.mish, F.elu, F.leaky_relu, F.relu6, F.hardsigmoid, F.hardswish,
    torch.log1p,
)  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("function", ACTIVATIONS, ids=lambda f: f.__name__)
def test_activations_are_those_of_torch(function):
    x = torch.cat([torch.linspace(-30, 30, 190), torch.tensor([0.0, -0.0, 1e-6, -1e-6])])
    x = x.abs() if function is torch.log1p else x
    check(lambda x: function(x), x, kernels=1)
    if function is not torch.log1p:
        for value in (math.nan, math.inf, -math.inf):
            special = torch.tensor([value, 1.0])
            found = tilecore.compute(function)(special)
            torch.testing.assert_close(found, function(special), equal_nan=True)


def test_activations_with_arguments():
    x = torch.randn(5, 33) * 4
    check(lambda x: F.softplus(x, beta=2.0) + F.elu(x, 0.5) - F.leaky_relu(x, 0.3), x, kernels=1)


def test_softplus_is_straight_above_its_threshold():
    x = torch.tensor([-2.0, 2.0, 2.6, 3e38, math.inf])
    found = tilecore.compute(lambda x: F.softplus(x, beta=2.0, threshold=5.0))(x)
    torch.testing.assert_close(found, F.softplus(x, 2.0, 5.0), rtol=1e-6, atol=0)


def test_elu_is_exact_near_zero():
    """exp(x) - 1 had no correct digit there, and lost the sign of -0.0."""
    x = torch.tensor([-0.0, -1e-9, -1e-5, -0.3, -20.0, -math.inf, 2.0])
    found = tilecore.compute(lambda x: F.elu(x, 0.5))(x)
    torch.testing.assert_close(found, F.elu(x.double(), 0.5).float(), rtol=1e-6, atol=0)
    assert found[0].signbit()


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["llvm", "emulated h100"])
def test_comparisons_are_joined_and_converted(target):
    def function(x, y):
        inside = (x > -1) & ~(x > 1) | torch.logical_and(y > 0, x > 2) ^ (y < -1)
        return torch.where(inside, x, y) - (x > 0).float() * 2

    x, y = torch.randn(9, 70), torch.randn(9, 70)
    found = tilecore.compute(function, target=target)(x, y)
    torch.testing.assert_close(found, function(x, y))


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["llvm", "emulated h100"])
def test_numbers_that_float32_does_not_have(target):
    def function(x):
        return x + math.nan, x + 1e300, torch.minimum(x * 1e39, x), x - math.inf

    x = torch.tensor([-1.0, 0.5, 2.0])
    found = tilecore.compute(function, target=target)(x)
    for ours, theirs in zip(found, function(x), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("target", ["llvm", "emulated h100"])
def test_what_is_divided_by_zero(target):
    """The compiler refused a constant 0."""
    x = torch.tensor([-1.0, 0.0, 2.0, math.nan])
    for function in (lambda x: x / 0, lambda x: x / -0.0, lambda x: 1 / (x * 0), lambda x: 0 / x):
        found = tilecore.compute(function, target=target)(x)
        torch.testing.assert_close(found, function(x), equal_nan=True)


def test_variances_and_sums_of_exponentials():
    x = torch.randn(3, 5, 70) * 9 + 40
    check(lambda x: (x.logsumexp(-1), torch.logsumexp(x, (0, 2), keepdim=True)), x)
    check(lambda x: (x.var(-1, correction=0), x.var((0, 1), unbiased=True, keepdim=True)), x)
    check(lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, False, keepdim=True), x, kernels=1)
    ends = torch.tensor([[1.0, math.inf], [-math.inf, -math.inf], [-math.inf, 2.0]])
    found = tilecore.compute(lambda x: x.logsumexp(-1))(ends)
    torch.testing.assert_close(found, ends.logsumexp(-1))


@pytest.mark.few(1)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(100, 100), (50, 77), (1, 33)])
def test_attention_is_one_kernel(queries, keys, is_causal):
    q, k, v = (torch.randn(2, 3, n, 32) for n in (queries, keys, keys))
    check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal), q, k, v,
        kernels=1,
    )  # fmt: skip


def test_attention_by_hand_with_masks_and_grouped_queries():
    q, k, v = torch.randn(2, 4, 50, 32), torch.randn(2, 4, 77, 32), torch.randn(2, 4, 77, 24)
    mask = torch.where(torch.rand(50, 77) < 0.3, -math.inf, 0.0)
    mask[:, 0] = 0.5

    def by_hand(q, k, v, mask):
        return torch.softmax(q @ k.transpose(-1, -2) * 0.2 + mask, dim=-1) @ v

    check(by_hand, q, k, v, mask, kernels=1)
    check(by_hand, q, k, v, torch.randn(4, 1, 77), kernels=1)
    check(lambda q, k, v: (q @ k.mT / -3.0).softmax(-1) @ v, q, k, v, kernels=1)
    few = [torch.randn(2, 2, 77, 32) for _ in range(2)]
    check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True) * 2 + 1, q, *few,
        kernels=1,
    )  # fmt: skip


LETTERS = {  # equations, with shapes, how many kernels, and calls of torch
    "...ij,...jk->...ik": ([(2, 3, 4, 5), (2, 3, 5, 6)], 1, 0),
    "...ij,jk->...ik": ([(2, 3, 4, 5), (5, 6)], 1, 0),
    "...i,i": ([(2, 3, 4), (4,)], 1, 0),
    "bj, ij": ([(3, 4), (5, 4)], 1, 0),
    "ijk->kj": ([(3, 4, 5)], 1, 0),
    "i...j->j...i": ([(2, 3, 4)], 0, 0),
    "ij,kl->ki": ([(3, 4), (5, 6)], 3, 0),  # each summed first
    "bd,bn->bdn": ([(3, 4), (3, 5)], 1, 0),  # no product of matrices
    "bi,oij,bj->bo": ([(3, 4), (6, 4, 5), (3, 5)], 2, 0),
    "ab,ab,ab->b": ([(3, 4)] * 3, 2, 0),
    "ii->i": ([(3, 3)], 0, 1),
    "...ij, ...jk->...ik": ([(2, 1, 4, 5), (1, 3, 5, 6)], 0, 1),  # which broadcast
}


@pytest.mark.parametrize("equation", LETTERS)
def test_letters_name_axes_as_in_torch(equation):
    shapes, kernels, calls = LETTERS[equation]
    given = [torch.randn(shape) for shape in shapes]
    found = check(lambda *given: torch.einsum(equation, *given), *given, kernels=kernels)
    assert sum(isinstance(step, Called) for step in found.plan(*given).steps) == calls


@pytest.mark.parametrize("is_turned", [False, True])
def test_attention_by_letters_is_one_kernel(is_turned):
    """The axes of heads and rows either way."""
    of = "bqhd,bkhd->bhqk bhqk,bkhd->bqhd" if is_turned else "bhqd,bhkd->bhqk bhqk,bhkd->bhqd"
    scores, out = of.split()

    def function(q, k, v):
        weights = torch.softmax(torch.einsum(scores, q, k) * 0.2, -1)
        return torch.einsum(out, weights, v)

    q, k, v = (torch.randn(2, 3, n, 24) for n in (50, 70, 70))
    given = [x.transpose(1, 2).contiguous() if is_turned else x for x in (q, k, v)]
    check(function, *given, kernels=1)


@pytest.mark.few(1)
@pytest.mark.parametrize(("dtype", "tolerance"), [(BFLOAT16, 1e-2), (FLOAT16, 2e-3)])
def test_half_types_are_rounded_once(dtype, tolerance):
    x, w, b = torch.randn(33, 64).to(dtype), scaled(64, 50).to(dtype), torch.randn(50).to(dtype)
    check(lambda x, w, b: F.silu(x @ w + b), x, w, b, kernels=1, tolerance=tolerance)
    check(lambda x: x.float().softmax(-1), x, kernels=1)
    check(lambda x: x.float().softmax(-1).to(x.dtype), x, kernels=1, tolerance=tolerance)
    assert tilecore.compute(lambda x: x * torch.tensor(2.0))(x).dtype == dtype
    chosen = tilecore.compute(lambda x: torch.where(x > 0, x, torch.tensor(2.0)))(x)
    assert chosen.dtype == dtype  # a single number follows the others here, too
    qkv = [torch.randn(1, 2, 50, 32).to(dtype) for _ in range(3)]
    found = check(F.scaled_dot_product_attention, *qkv, kernels=1, tolerance=tolerance)
    assert found(*qkv).dtype == dtype


def test_nan_and_infinity_go_on_as_in_torch():
    x = torch.randn(6, 40)
    x[0, 3], x[1, 5], x[2, 7] = math.nan, math.inf, -math.inf
    for function in (
        lambda x: x.softmax(-1), lambda x: x.amax(-1), lambda x: x.relu(), lambda x: x.sum(-1),
        lambda x: torch.exp(x) + 1, lambda x: x @ torch.eye(40), lambda x: torch.min(x, x * 2),
        lambda x: torch.maximum(torch.ones(40), x).clamp(max=3),
    ):  # fmt: skip
        torch.testing.assert_close(tilecore.compute(function)(x), function(x), equal_nan=True)


# --- views, arguments, results ----------------------------------------------------------------


def test_parts_and_shapes():
    x = torch.randn(5, 40)
    check(lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], x, kernels=1)
    check(lambda x: torch.split(x, [10, 30], dim=1)[1].flatten() * 2, x, kernels=1)
    check(lambda x: x[1:4, None, ::2].squeeze(1) + x[0, :20] - x[-1, ..., 20:], x, kernels=1)
    check(lambda x: x.t().unsqueeze(0).permute(2, 0, 1).contiguous().exp(), x, kernels=1)
    check(lambda x: x.reshape(2, -1, 4).transpose(0, 1), x, kernels=0)


def test_numpy_and_its_functions():
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(s).astype(np.float32) for s in ((5, 8), (8,)))

    @tilecore.compute
    def function(x, y):
        return np.exp(x) * y + np.sqrt(np.abs(x)).sum(axis=-1, keepdims=True) - np.float32(2)

    found = function(x, y)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, function.function(x.astype("d"), y.astype("d")), rtol=1e-5)
    assert tilecore.compute(lambda x: x.astype(np.float16))(x).dtype == np.float16
    np.testing.assert_allclose(
        tilecore.compute(lambda x, y: np.matmul(x, y.reshape(8, 1)))(x, y),
        x @ y[:, None],
        rtol=1e-5,
    )


def test_plain_arguments_tensors_it_holds_and_several_results():
    held = torch.randn(8)

    @tilecore.compute
    def function(x, factor=2.0, *, is_turned=False):
        y = x * factor + held
        return (y, y.sum(-1)) if not is_turned else [y.T, x]

    x = torch.randn(4, 8)
    torch.testing.assert_close(function(x)[0], x * 2 + held)
    held.zero_()  # the tensor is read at every call
    torch.testing.assert_close(function(x)[1], (x * 2).sum(-1))
    turned, same = function(x, 3.0, is_turned=True)
    torch.testing.assert_close(turned, x.T * 3)
    torch.testing.assert_close(same, x)
    torch.testing.assert_close(function(x.T.contiguous().T)[0], x * 2)  # strided
    assert function.__name__ == "function"


class Pair(NamedTuple):
    scale: torch.Tensor
    rest: None


def test_tensors_in_lists_and_dicts():
    @tilecore.compute
    def function(x, layers, *rest, **named):
        for layer in layers:
            x = torch.relu(x @ layer["weight"] + layer["bias"])
        return x * rest[0].scale + named["last"]

    layers = [{"weight": scaled(8, 8), "bias": torch.randn(8)} for _ in range(2)]
    x, y = torch.randn(4, 8), torch.randn(8)
    pair = Pair(y, None)
    want = function.function(x, layers, pair, last=y)
    torch.testing.assert_close(function(x, layers, pair, last=y), want, rtol=1e-4, atol=1e-5)
    assert "layers_0_weight: T.Tensor((8, 8)" in function.programs(x, layers, pair, last=y)[0]


def test_a_plan_is_made_once_per_shape():
    readings = itertools.count()  # an iterator's state is no part of what the function holds

    @tilecore.compute
    def function(x):
        next(readings)
        return x + 1

    for shape in ((3, 4), (3, 4), (5, 4), (3, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(function(x), x + 1)
    assert next(readings) == 2


# --- the programs -----------------------------------------------------------------------------


def test_the_programs_are_tilelang_that_runs_by_itself(tmp_path):
    found = tilecore.compute(mlp)
    args = torch.randn(33, 70), scaled(70, 130), torch.randn(130), scaled(130, 50)
    first, second = found.programs(*args)
    names = {}
    path = tmp_path / "program.py"
    path.write_text(first)
    exec(compile(first, str(path), "exec"), names)
    kernel = names["mlp_0"](block_M=16, block_N=32, block_K=16)
    hidden = F.gelu(args[0] @ args[1] + args[2])
    torch.testing.assert_close(kernel(*args[:3]), hidden, rtol=1e-4, atol=1e-5)
    for word in ("T.alloc_shared", "T.Pipelined", "T.gemm", "T.erf"):
        assert word in first
    assert "T.erf" not in second
    text = found.explain(*args)
    assert "mlp_0: product, add" in text
    assert "legal configs by the" in text  # the analytic model, or one that ships for this machine


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["h100", "a100", "mi300x"])
def test_the_same_functions_are_programs_of_gpus(target):
    x, w, b = torch.randn(50, 70).half(), scaled(70, 90).half(), torch.randn(90).half()
    qkv = [torch.randn(1, 2, 40, 32).half() for _ in range(3)]
    for function, args in (
        (lambda x, w, b: F.gelu(x @ w + b), (x, w, b)), (lambda x: x.softmax(-1), (x,)),
        (lambda x, y: x * 2 + y[:70], (x, b)),
        (lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=True), qkv),
    ):  # fmt: skip
        plan = tilecore.compute(function, target=target).plan(*args)
        for stage in plan.stages:
            stage.kernel = stage.kernel.emulated()
        found = plan.run(dict(zip(plan.inputs, args, strict=True)))
        want = function(*(a.double() for a in args))
        assert (found.double() - want).abs().max() <= 2e-3 * want.abs().max()


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["h100", "a100", "mi300x", "auto"])
def test_products_of_one_operand_are_one_kernel_where_that_is_faster(target):
    """On GPUs the model decides; on a CPU it is not faster (docs/compute.md)."""
    x, g, u = torch.randn(3, 40, 72).half(), scaled(72, 90).half(), scaled(90, 72).half().T
    y = torch.randn(90).half()

    def gated(x, g, u, y):
        return F.silu(x @ g + y) * (x @ u) + y

    plan = tilecore.compute(gated, target=target).plan(x, g, u, y)
    assert len(plan.stages) == (2 if target == "auto" else 1)
    for stage in plan.stages:
        stage.kernel = stage.kernel if target == "auto" else stage.kernel.emulated()
    found = plan.run({"x": x, "g": g, "u": u, "y": y})
    want = gated(*(a.double() for a in (x, g, u, y)))
    assert (found.double() - want).abs().max() <= 2e-3 * want.abs().max()


def test_tuning_takes_what_is_fastest_and_right(tmp_path, monkeypatch):
    monkeypatch.setenv("TILECORE_DATA_DIR", str(tmp_path))
    found = tilecore.compute(lambda x, w: torch.relu(x @ w))
    args = torch.randn(33, 70), scaled(70, 130)
    before = found(*args)
    plan = found.tune(*args, trials=2)
    (stage,) = plan.stages
    assert repr(plan).startswith(f"Plan({stage.program.name}; ")  # once pages of it, in a console
    assert len(f"{plan!r}{stage!r}") < 300
    assert "us measured" in repr(stage)
    assert stage.chosen.source == "measured"
    assert "fastest of 2 configs" in found.explain(*args)
    torch.testing.assert_close(found(*args), before, rtol=1e-4, atol=1e-5)
    (later,) = tilecore.compute(found.function).plan(*args).stages  # as in another process
    assert (later.chosen.source, later.chosen.config) == ("measured", stage.chosen.config)
    assert later.chosen.lowering == stage.chosen.lowering
    (near,) = tilecore.compute(found.function).plan(torch.randn(40, 70), args[1]).stages
    assert near.chosen.source == "nearest"


# --- what it refuses --------------------------------------------------------------------------


def test_what_was_computed_may_be_updated():
    def function(x, y):
        z = x * 2
        z += y
        return z

    x, y = torch.randn(3, 4), torch.randn(4)
    torch.testing.assert_close(tilecore.compute(function)(x, y), function(x, y))


def asks_for_elements(x, y):
    return x if x.sum() > 0 else y


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        (lambda x, y: x @ y, ShapeMismatch, "one K; the left operand has K = 4, found K = 3"),
        (lambda x, y: x + y[:, :3], ShapeMismatch, "shapes that broadcast"),
        (lambda x, y: x.reshape(5, 5), ShapeMismatch, "12 elements"),
        (lambda x, y: x.sum(3), ShapeMismatch, "axes of shape"),
        (lambda x, y: x[3:], ShapeMismatch, "expected elements"),
        (lambda x, y: F.layer_norm(x, (3,)), ShapeMismatch, "the last axes"),
        (lambda x, y: F.scaled_dot_product_attention(x, y[:, :2], y), ShapeMismatch, "attention"),
        (lambda x, y: x.frobenius(), UnsupportedSyntax, "`Tensor.frobenius`"),
        (lambda x, y: x[:, 4], ShapeMismatch, "one that lies in shape (3, 4), found [:, 4]"),
        (lambda x, y: x[..., 0:2, 0, 0], ShapeMismatch, "found [..., 0:2, 0, 0]"),
        (lambda x, y: np.add.reduce(x), UnsupportedSyntax, "numpy.add.reduce"),
        (lambda x, y: x.permute(0, 0), ShapeMismatch, "each axis"),
        (lambda x, y: F.dropout(x), UnsupportedSyntax, "no random numbers, found `dropout`"),
        (lambda x, y: torch.rand_like(x), UnsupportedSyntax, "no random numbers"),
        (lambda x, y: x.repeat_interleave(torch.ones(3).int(), 0), UnsupportedSyntax, "follows"),
        (lambda x, y: x.nonzero(), UnsupportedSyntax, "`nonzero` whose result follows from shapes"),
        (lambda x, y: torch.cat([x, y[:, :3]]), ShapeMismatch, "found (3, 4), (3, 3)"),
        (lambda x, y: np.split(x, 1)[0], UnsupportedSyntax, "`numpy.split`"),  # not as in torch
        (lambda x, y: x.transpose(), UnsupportedSyntax, "transpose"),
        (asks_for_elements, UnsupportedSyntax, "where Python decides"),
        (lambda x, y: x[y > 0], UnsupportedSyntax, "found elements that a mask picks"),
        (lambda x, y: x @ y.half().T, TypeMismatch, "one element type"),
        (lambda x, y: torch.where(x & (y > 0), x, y), TypeMismatch, "expected comparisons"),
        (lambda x, y: 3, TypeMismatch, "to return tensors"),
        (lambda x, y: x + "1", TypeMismatch, "a tensor or a number"),
        (lambda x, y: F.scaled_dot_product_attention(x, x, x, None, 1), UnsupportedSyntax, "drop"),
        (lambda x, y: torch.einsum("ii,ij->j", x, y), UnsupportedSyntax, "`einsum`"),
        (lambda x, y: np.einsum("ii->i", x), TypeMismatch, "one letter per axis"),
    ],
)  # fmt: skip
def test_what_it_does_not_know_is_told_with_its_line(function, error, said):
    with pytest.raises(error) as caught:
        tilecore.compute(function)(torch.randn(3, 4), torch.randn(3, 4))
    assert said in caught.value.message
    if said != "to return tensors":
        assert caught.value.span is not None
        assert caught.value.span.file == __file__


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.where(x > 0, 1, 0),
        lambda x: torch.where(x > 1, torch.where(x > 2, 3, 2), -1),
        lambda x: torch.where(x > 0, 1, 0)[:3, None] * x[:3],
        lambda x: torch.where(x > 0, 1, 0) * 2.0,
        lambda x: torch.where(x > 0, 1, 0) / 2,
        lambda x: torch.where(x > 0, 1, 0).half(),
        lambda x: torch.where(torch.where(x > 0, 1, 0) == 1, x, 0),
        lambda x: (x > 0) * x,
        lambda x: torch.where(x > 0, x > 1, 0.5),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT16], ids=str)
def test_integers_and_truth_have_the_types_that_torch_gives_them(function, dtype):
    x = torch.randn(6, 40).to(dtype)
    found, want = tilecore.compute(function)(x), function(x)
    assert found.dtype == want.dtype
    torch.testing.assert_close(found, want)


def test_integers_have_no_gradient():
    x = torch.randn(6, requires_grad=True)
    chosen, doubled = tilecore.compute(lambda x: (torch.where(x > 0, 1, 0), x * 2))(x)
    assert not chosen.requires_grad
    doubled.sum().backward()
    torch.testing.assert_close(x.grad, torch.full((6,), 2.0))


@pytest.mark.parametrize(
    ("target", "arch"),
    [
        ("sm_80", "sm_80"), ({"kind": "cuda", "arch": "sm_80"}, "sm_80"), ("sm_103a", "sm_103a"),
        ("emulated sm_80", "sm_80"),
    ],
    ids=str,
)  # fmt: skip
def test_targets_go_by_architecture_too(target, arch):
    x = torch.randn(32, 32)
    (stage,) = tilecore.compute(lambda x: x @ x, target=target).plan(x).stages
    assert stage.kernel.artifact.manifest.isa == arch


def test_arguments_that_cannot_be_computed_with():
    function = tilecore.compute(lambda x, rest=None: x + 1)
    with pytest.raises(TypeMismatch, match="found complex32"):
        function(torch.zeros(3, 4, dtype=torch.complex32))
    with pytest.raises(TileError, match="keys of a dict"):
        function(torch.zeros(3, 4), rest=set())
    with pytest.raises(TypeMismatch, match=r"\(x, rest\), found nothing"):
        function()


@pytest.mark.parametrize(
    ("function", "hint"),
    [
        (lambda x: x * x.max().item(), "without .item()"),
        (lambda x: x / float(x.sum()), "without float(...)"),
        (lambda x: x if x.sum() > 0 else -x, "where(condition, a, b)"),
    ],
)
@pytest.mark.parametrize("of", [np.ones, torch.ones])
def test_who_asks_for_elements_is_told_what_to_write(function, hint, of):
    with pytest.raises(TileError, match="where Python decides") as caught:
        tilecore.compute(function)(of((3, 4)))
    assert hint in caught.value.hint


def test_of_tensors_without_elements_the_function_itself_computes():
    function = tilecore.compute(lambda x, y: (F.softmax(x @ y, -1), np.exp(y), y.sum(0)))
    for x, y in [
        (torch.zeros(0, 4), torch.randn(4, 8)),
        (torch.zeros(3, 0), torch.zeros(0, 8)),
        (np.zeros((0, 4), np.float32), np.ones((4, 8), np.float32)),
    ]:
        wanted = function.function(torch.as_tensor(x), torch.as_tensor(y))
        for found, expected in zip(function(x, y), wanted, strict=True):
            assert type(found) is type(x)
            assert torch.equal(torch.as_tensor(found), expected)
    learned = torch.zeros(3, 0, requires_grad=True)
    function(learned, torch.zeros(0, 8))[0].sum().backward()
    assert learned.grad.shape == (3, 0)


def test_the_nearest_name_is_told_of_what_it_does_not_know():
    """All names were: 1,500 characters of them."""
    with pytest.raises(UnsupportedSyntax) as caught:
        tilecore.compute(lambda x: x.softmx(-1))(torch.randn(3, 4))
    assert caught.value.hint == "did you mean `Tensor.softmax`?"


def test_what_no_step_reads_any_more_is_freed():
    """All tensors between kernels of a deep model lived as long as its call."""
    weights = [torch.randn(8, 8) for _ in range(6)]

    def function(x):
        for weight in weights:
            x = (x @ weight).cumsum(0)
        return x

    computation, x = tilecore.compute(function), torch.randn(5, 8)
    plan = computation.plan(x)
    living: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def watch(stage: object, given: Sequence[torch.Tensor]) -> None:
        nonlocal most
        living.extend(weakref.ref(tensor) for tensor in given)
        most = max(most, len({id(ref()) for ref in living if ref() is not None}))

    expected = function(x)
    rounding = {"rtol": 0.0, "atol": 1e-6 * float(expected.abs().max())}  # sums of sums, six times
    torch.testing.assert_close(plan.computed({"x": x}, watch)[0], expected, **rounding)
    held = 1 + len(weights)
    assert most <= held + 2
