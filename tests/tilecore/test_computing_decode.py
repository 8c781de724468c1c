"""Computations of attention of few queries over many keys, against torch in float64."""

import pytest
import torch
import torch.nn.functional as F

import tilecore
from tests.tilecore.test_computing import BFLOAT16, FLOAT16, check

pytestmark = pytest.mark.few(1)  # a case takes long


def attention(q, k, v, *, is_causal=False):
    return F.scaled_dot_product_attention(
        q, k, v, is_causal=is_causal, enable_gqa=q.shape[1] != k.shape[1]
    )


def of_few(found, *args):
    """Return whether the only kernel is one of few queries."""
    (stage,) = found.plan(*args).stages
    return "splits" in stage.program.space


@pytest.mark.covering
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "queries", "keys"),
    [
        (4, 4, 1, 300), (4, 4, 3, 257), (4, 2, 1, 1000), (6, 2, 1, 511), (8, 1, 1, 256),
        (4, 2, 3, 700), (2, 2, 5, 333), (8, 2, 4, 259),
    ],
)  # fmt: skip
def test_few_queries(heads, kv_heads, queries, keys, is_causal):
    q = torch.randn(2, heads, queries, 40)
    k, v = torch.randn(2, kv_heads, keys, 40), torch.randn(2, kv_heads, keys, 24)

    def function(q, k, v):
        return attention(q, k, v, is_causal=is_causal)

    check(function, q, k, v, kernels=1)
    assert of_few(tilecore.compute(function), q, k, v)


@pytest.mark.parametrize(("dtype", "tolerance"), [(BFLOAT16, 1e-2), (FLOAT16, 2e-3)])
@pytest.mark.parametrize("kv_heads", [8, 2])
def test_half_types(dtype, tolerance, kv_heads):
    q = torch.randn(1, 8, 1, 64).to(dtype)
    k, v = (torch.randn(1, kv_heads, 500, 64).to(dtype) for _ in range(2))
    check(attention, q, k, v, kernels=1, tolerance=tolerance)


@pytest.mark.parametrize("heads", [2, 1])  # products, sums
@pytest.mark.parametrize("step", [2, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_every_config_computes_the_same(heads, step):
    q, k, v = torch.randn(1, 4, 1, 32), torch.randn(1, 2, 300, 32), torch.randn(1, 2, 300, 32)
    one = q[:, :, :1] if heads == 2 else q[:, :2]
    (stage,) = tilecore.compute(attention).plan(one, k, v).stages
    want = attention(one.double(), k.double(), v.double())
    streams = stage.program.space.get("streams", (0,))
    for splits in stage.program.space["splits"][::step]:
        for n in streams[::step]:
            config = {"splits": splits, "block_N": 32} | ({"streams": n} if n else {})
            found = stage.function(**config)(one[0], k[0], v[0])
            torch.testing.assert_close(found.double(), want[0], rtol=1e-4, atol=1e-5)


def test_the_cache_is_read_where_it_lies_and_the_result_written_as_it_is_read():
    cache = torch.randn(2, 2, 512, 2, 32)  # keys and values, by place and head
    x, w = torch.randn(2, 1, 128), torch.randn(128, 128) / 11

    def step(x, w, cache):
        q = (x @ w).reshape(2, 1, 4, 32).transpose(1, 2)
        k, v = (cache[i][:, :300].transpose(1, 2) for i in range(2))
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return y.transpose(1, 2).reshape(2, 1, 128) @ w

    check(step, x, w, cache, kernels=3)
    plan = tilecore.compute(step).plan(x, w, cache)
    assert len(plan.steps) == 3, "no copy"
    assert "splits" in plan.stages[1].program.space


@pytest.mark.exhaustive
def test_what_else_is_asked_goes_the_general_way():
    q, k, v = torch.randn(1, 2, 1, 32), torch.randn(1, 2, 300, 32), torch.randn(1, 2, 300, 32)
    mask = torch.randn(1, 300)
    for function, args in (
        (lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), (q, k, v, mask)),
        (lambda q, k, v: attention(q, k, v) * 2, (q, k, v)),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=-0.3), (q, k, v)),
        (attention, (torch.randn(1, 2, 20, 32), k, v)),
        (attention, (q, k[:, :, :200], v[:, :, :200])),
    ):
        check(function, *args, kernels=1)
        assert not of_few(tilecore.compute(function), *args)


def test_infinite_and_missing_numbers_go_on_as_in_torch():
    q, k, v = torch.randn(1, 2, 1, 32), torch.randn(1, 2, 300, 32), torch.randn(1, 2, 300, 32)
    v[0, 0, 7, 3], v[0, 1, 299, 5] = float("inf"), float("nan")
    found = tilecore.compute(attention)(q, k, v)
    want = attention(q, k, v)
    assert torch.equal(found.isnan(), want.isnan())
    assert torch.equal(found.isinf(), want.isinf())


@pytest.mark.covering("target shape")
@pytest.mark.parametrize("target", ["emulated h200", "emulated a100", "emulated mi300x"])
@pytest.mark.parametrize(
    "shape", [(4, 4, 1, 300, 64), (8, 2, 1, 777, 64), (8, 2, 3, 513, 32), (24, 1, 2, 260, 128)]
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_few_queries_on_gpus(shape, target, is_causal):
    heads, kv_heads, queries, keys, width = shape
    q = torch.randn(2, heads, queries, width).half()
    k, v = (torch.randn(2, kv_heads, keys, width).half() for _ in range(2))

    def function(q, k, v):
        return attention(q, k, v, is_causal=is_causal)

    found = tilecore.compute(function, target=target)
    want = function(q.double(), k.double(), v.double())
    assert (found(q, k, v).double() - want).abs().max() <= 2e-3 * want.abs().max()
    assert of_few(found, q, k, v)
