"""Where tensors of computations lie: views against torch's own, and which kernels read in place."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import tilecore
from tests.tilecore.test_computing import check, scaled
from tilecore.computing.arrays import at
from tilecore.computing.computation import Copy
from tilecore.computing.graph import Node
from tilecore.computing.places import Place, row_major
from tilecore.computing.programs.rows import joined
from tilecore.computing.programs.text import view_of


def attention_of_parts(x, w, heads=2):
    """Return attention of the three parts of a projection, its heads side by side again."""
    rows, length, width = x.shape
    parts = (
        part.reshape(rows, length, heads, width // heads).transpose(1, 2)
        for part in (x @ w).chunk(3, dim=-1)
    )
    y = F.scaled_dot_product_attention(*parts, is_causal=True)
    return y.transpose(1, 2).reshape(rows, length, width)


def copies(found, *args):
    return [step for step in found.plan(*args).steps if isinstance(step, Copy)]


# --- the arithmetic ---------------------------------------------------------------------------


@st.composite
def chains(draw):
    """Return a shape and views of it, as torch writes them."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    tensor, views = torch.empty(shape), []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["permute", "slice", "reshape", "reshape"]))
        rank = tensor.ndim
        if kind == "permute":
            view = tuple(draw(st.permutations(range(rank))))
            tensor = tensor.permute(view)
        elif kind == "slice":
            view = tuple(
                draw(st.sampled_from([slice(None), slice(n // 2, n), slice(0, n, 2), n - 1, -n]))
                for n in tensor.shape
            )
            if rank < 4 and draw(st.booleans()):
                view = (None, *view)
            tensor = tensor[view]
        else:
            rest, view = tensor.numel(), ()
            while rest > 1 and len(view) < 3:
                view += (draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0])),)
                rest //= view[-1]
            view += (rest,)
            tensor = tensor.reshape(view)
        views.append((kind, view))
    return shape, views


@given(chain=chains())
def test_views_of_memory_are_those_of_torch(chain):
    shape, views = chain
    tensor = torch.arange(float(math.prod(shape))).reshape(shape)
    memory = Node("input", "x", (), shape, "float32")
    known, place = {memory: tensor}, Place(memory, 0, shape, row_major(shape))
    for kind, view in views:
        if kind == "permute":
            tensor, place = tensor.permute(view), place.permuted(view)
        elif kind == "slice":
            tensor, place = tensor[view], place.sliced(view)
        else:
            found = place.reshaped(view)
            if found is None:
                with pytest.raises(RuntimeError):
                    tensor.view(view)
                return
            tensor, place = tensor.view(view), found
        assert torch.equal(at(known, place), tensor)
        assert np.array_equal(at({memory: known[memory].numpy()}, place), tensor.numpy())
        assert place.is_dense == tensor.is_contiguous()


@given(data=st.data())
def test_axes_that_are_read_alike_are_one(data):
    """An element is found by the flat index of its row, whatever axes were joined."""
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    own = [data.draw(st.sampled_from([n, n, 1])) for n in shape]
    own = tuple(own[data.draw(st.integers(0, len(own) - 1)) :])
    order = data.draw(st.permutations(range(len(own))))
    memory = Node("input", "x", (), tuple(own[a] for a in order), "float32")
    tensor = torch.arange(float(math.prod(own))).reshape(memory.shape)
    back = [order.index(a) for a in range(len(own))]
    place = Place(memory, 0, memory.shape, row_major(memory.shape)).permuted(back)
    want = tensor.permute(back).expand(shape)
    for whole, read in ((shape, [place]), joined(shape, [place])):
        rows, columns = whole[:-1], whole[-1]
        view, index = view_of(read[0], rows, columns, "row", "column")
        elements = at({memory: tensor}, view)
        points = np.meshgrid(range(math.prod(rows)), range(columns), indexing="ij")
        named = dict(zip(("row", "column"), map(torch.from_numpy, points), strict=True))
        found = elements[tuple(torch.as_tensor(eval(i, {}, named)) for i in index)]
        assert torch.equal(found.expand(math.prod(rows), columns), want.reshape(-1, columns))


# --- the kernels ------------------------------------------------------------------------------


def test_parts_of_a_projection_are_read_and_joined_without_a_copy():
    args = torch.randn(2, 37, 64), scaled(64, 192)
    found = check(attention_of_parts, *args, kernels=2)
    assert not copies(found, *args)
    assert "T.StridedTensor((2, 2, 37, 32), (7104, 32, 192, 1)" in found.programs(*args)[1]
    assert "copy" not in found.explain(*args)
    check(lambda x, w: attention_of_parts(x, w) @ w[:, :64] + x, *args, kernels=3)


def test_what_is_read_where_it_lies():
    x, y = torch.randn(6, 20, 64), torch.randn(20, 64)
    for function in (
        lambda x, y: x[:, 3:].exp() + y[:17],
        lambda x, y: x[1:, :, 32:].softmax(-1),
        lambda x, y: F.rms_norm(x.transpose(0, 1), (64,)),  # rows of two axes in another order
        lambda x, y: x.reshape(6, 20, 2, 32).permute(2, 0, 1, 3) + y[:, 32:],
        lambda x, y: torch.relu(x[..., 32:] @ y[3:, 32:].mT),
        lambda x, y: x.transpose(0, 1) @ x.permute(1, 2, 0),  # a matrix per block, both strided
        lambda x, y: y.chunk(2, -1)[1].mT @ y.chunk(2, -1)[0],
        lambda x, y: y.T[32:] @ x[0],
        lambda x, y: (x @ y.mT).transpose(0, 1) * 1.0,
        lambda x, y: (x @ x.mT).transpose(0, 1),  # written as it is returned
    ):
        assert not copies(check(function, x, y), x, y)
    few, many = torch.randn(3, 40, 32), torch.randn(3, 80, 32)  # matrices with gaps between them
    for x, copied in ((few, 1), (many, 0)):
        found = check(lambda x: torch.relu(x[:, 5:] @ x[0, 1:].mT), x, kernels=1)
        assert len(copies(found, x)) == copied


def test_what_lies_far_apart_is_copied_once():
    x = torch.randn(40, 33)
    found = check(lambda x: (x.T.softmax(-1), x.T.exp() + 1, x.T @ x), x, kernels=2)
    (copy,) = copies(found, x)
    assert copy.node.shape == (33, 40)
    assert "copy of (33, 40)" in found.explain(x)
    check(lambda x: x[:, ::3].softmax(-1) + x[:, :11].reshape(11, 40).T.sum(), x)
    check(lambda x: (x.reshape(40, 3, 11) * 2).permute(1, 0, 2).reshape(6, -1).exp(), x)
    check(lambda x: (x + 1).T.reshape(-1).reshape(11, 120)[2:, 1:] - 1, x)


def test_inputs_are_read_in_their_strides():
    readings = itertools.count()

    @tilecore.compute
    def function(x):
        next(readings)
        return x * 2 + 1

    whole = torch.randn(50, 80)
    views = (whole[:, 8:40], whole[::2, 8:40], whole.T[:32], whole[0].expand(32, 80), whole[3:, 1:])
    for x in views:
        torch.testing.assert_close(function(x), x * 2 + 1)
        torch.testing.assert_close(function(x), x * 2 + 1)
        array = x.numpy()
        np.testing.assert_allclose(function(array), array * 2 + 1, rtol=1e-6)
    assert next(readings) == 2 * len(views)  # of torch, of NumPy
    backwards = whole.numpy()[::-1, ::-1]
    np.testing.assert_allclose(function(backwards), backwards * 2 + 1, rtol=1e-6)
    assert not copies(function, whole[:, 8:40])
    assert len(copies(function, whole.T[:32])) == 1
    linear = torch.nn.Linear(33, 20)
    check(
        lambda x, w, b: x @ w + b,
        torch.randn(7, 33),
        linear.weight.detach().T,
        linear.bias.detach(),
    )
    assert tilecore.compute(lambda x: x.sum())(np.ones((3, 4), np.float32)).shape == ()


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["h100", "a100", "mi300x"])
def test_gpus_read_views_where_they_lie(target):
    x, w = torch.randn(2, 40, 64).half(), scaled(64, 192).half()
    for function, args, expected in (
        (attention_of_parts, (x, w), 0),
        (lambda x, w: x[:, 3:, :32] @ w[:32, 16:80], (x, w), 1),
        (lambda x, w: w[:, 1:].softmax(-1) + w[:, 8:9], (x, w), 2),  # no address of 16 bytes
        (lambda x, w: x[0] + w[:39, :64], (x[:, 1:], w[1:, 1:]), 0),  # nor of an argument
        (lambda x, w: x * 2, (x[:1, :1, 3:], w), 0),
    ):
        found = tilecore.compute(function, target=target)
        plan = found.plan(*args)
        assert len([s for s in plan.steps if isinstance(s, Copy)]) == expected
        for stage in plan.stages:
            stage.kernel = stage.kernel.emulated()
        got = plan.run(dict(zip(("x", "w"), args, strict=True)))
        want = function(*(a.double() for a in args))
        assert (got.double() - want).abs().max() <= 4e-3 * want.abs().max()


def test_a_plan_of_a_gpu_takes_later_arguments_at_any_address():
    whole = torch.randn(40, 80).half()
    found = tilecore.compute(lambda x: x[:, 8:] * 2, target="a100")
    plan = found.plan(whole[:, :72])
    for stage in plan.stages:
        stage.kernel = stage.kernel.emulated()
    for x in (whole[:, :72], whole[:, 3:75]):
        assert found.plan(x) is plan
        assert torch.equal(found(x), x[:, 8:] * 2)


def test_strided_operands_go_by_tensor_maps():
    x, w = torch.randn(64, 256).half(), scaled(128, 320).half()
    found = tilecore.compute(lambda x, w: x[:, 128:] @ w[:, 64:192], target="h100")
    plan = found.plan(x, w)
    (stage,) = plan.stages
    maps = stage.kernel.artifact.manifest.device.maps
    assert {m.strides for m in maps} >= {(256, 1), (320, 1)}
    stage.kernel = stage.kernel.emulated()
    want = x[:, 128:].double() @ w[:, 64:192].double()
    got = plan.run({"x": x, "w": w}).double()
    assert (got - want).abs().max() <= 2e-3 * want.abs().max()
