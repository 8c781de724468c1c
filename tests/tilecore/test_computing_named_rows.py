"""Rows that integers name: kernels read them where they lie, and say which are not there."""

import pytest
import torch
import torch.nn.functional as F

import tilecore
from tests.tilecore.test_computing_put import agrees, of_torch
from tilecore.computing.planning.plan import Launch
from tilecore.errors import ArgumentError

COUNT, WIDTH = 9, 32
PLAIN = {
    "index": lambda x, i, y: x[i] * y,
    "index_and_slices": lambda x, i, y: x[i, :, ...] * y,
    "index_select": lambda x, i, y: x.index_select(0, i % COUNT) + y,
    "index_select_by_name": lambda x, i, y: torch.index_select(x, dim=-2, index=i % COUNT) + y,
    "embedding": lambda x, i, y: F.embedding(i % COUNT, x) * 2 + y,
    "embedding_with_padding": lambda x, i, y: F.embedding(i % COUNT, x, padding_idx=3) - y,
    "gather": lambda x, i, y: x.gather(0, (i % COUNT)[:, None].expand(-1, WIDTH)) * y,
    "second_axis": lambda x, i, y: x.reshape(3, 3, WIDTH)[:, i % 3] * 2 + y,
    "matrix_of_integers": lambda x, i, y: x[i[:, None] % 4 + i % 5] * y,
    "part_of_integers": lambda x, i, y: x[i.repeat(2)[::2]] * y,
    "narrow_integers": lambda x, i, y: x[i.to(torch.int32)] - y,
    "table_part": lambda x, i, y: x[2:][i % 7] - y,
    "one_integer": lambda x, i, y: x[i[:1]] * y,
    "last_rows": lambda x, i, y: x[-1 - i % COUNT] * y,
}
VIEWS = {
    "new_axes": lambda x, i, y: x[i].reshape(2, 3, WIDTH)[:, None, :, None] * y[:3, None],
    "part": lambda x, i, y: x[i][1:5:2, 8:24] * 2 + y[:2, :16],
    "one_row": lambda x, i, y: x[i][2] * y,
    "turned": lambda x, i, y: x[i].reshape(2, 3, 2, 16).transpose(1, 2) * 2,
    "taken_apart": lambda x, i, y: x[i].unflatten(-1, (2, 16)) * y.unflatten(-1, (2, 16)),
    "of_transposed": lambda x, i, y: x.reshape(3, 3, WIDTH).transpose(0, 1)[i % 3] * 2,
    "of_a_part": lambda x, i, y: x[2:, 4:20][i % 7] * 2,
}
REDUCED = {
    "dots": lambda x, i, y: (x[i] * y).sum(-1),
    "dots_of_two": lambda x, i, y: (x[i] * x[i.flip(0)]).sum(-1),
    "softmax": lambda x, i, y: x[i].softmax(-1),
    "layer_norm": lambda x, i, y: F.layer_norm(x[i] + y, (WIDTH,)),
    "columns": lambda x, i, y: (x[i] * y).sum(0),
    "largest": lambda x, i, y: x[i].amax(0) + y.mean(),
}


def given(dtype=torch.float32):
    x, y = torch.randn(COUNT, WIDTH, dtype=dtype), torch.randn(6, WIDTH, dtype=dtype)
    return x, torch.randint(-COUNT, COUNT, (6,)), y


@pytest.mark.few(9)
@pytest.mark.parametrize("kind", [*PLAIN, *VIEWS, *REDUCED])
def test_kernels_read_them_where_they_lie(kind):
    computation = tilecore.compute({**PLAIN, **VIEWS, **REDUCED}[kind])
    x, i, y = given()
    found = computation(x, i, y)
    exact = computation.function(x.double(), i, y.double())
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
    assert not {"rows", "embedding", "gather", "expand"} & set(of_torch(computation))


@pytest.mark.parametrize("kind", ["index", "index_select", "embedding"])
def test_integers_that_are_repeated(kind):
    """As the positions of the words of each text are."""
    x, y = torch.randn(COUNT, WIDTH), torch.randn(3, 5, WIDTH)

    def function(x, i, y):
        i = i.expand(3, -1)
        if kind == "index_select":
            return x.index_select(0, i.flatten()) * y.flatten(0, 1)
        return (x[i] if kind == "index" else F.embedding(i, x)) * y

    given = x, torch.randint(COUNT, (5,)), y
    for computation in tilecore.compute(function), torch.compile(function, backend="tilecore"):
        torch.testing.assert_close(computation(*given), function(*given), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", ["emulated h100", "emulated a100", "emulated mi300x"])
@pytest.mark.parametrize("kind", ["index", "second_axis", "part", "layer_norm", "columns"])
def test_kernels_of_gpus_read_them_where_they_lie(kind, target):
    x, i, y = given(torch.float16)
    computation = tilecore.compute({**PLAIN, **VIEWS, **REDUCED}[kind], target=target)
    exact = computation.function(x.double(), i, y.double())
    torch.testing.assert_close(computation(x, i, y).double(), exact, rtol=4e-3, atol=4e-3)
    assert "row_numbers" in of_torch(computation)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i, y: x[i],
        lambda x, i, y: (x[i], x[i] * 2)[1] + x[i].reshape(-1)[0],
        lambda x, i, y: x[i] @ y.T,
        lambda x, i, y: x.reshape(3, 3, WIDTH)[i % 3, i % 2] * 2,
        lambda x, i, y: x[:, i] * 2,
        lambda x, i, y: x[:, :8][i] * 2,
        lambda x, i, y: x[i][i % 6] * 2 @ y.T,
    ],
)
def test_others_are_gathered_by_torch(function):
    x, i, y = given()
    computation = tilecore.compute(function)
    exact = function(x.double(), i, y.double())
    torch.testing.assert_close(computation(x, i, y).double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16])
@pytest.mark.parametrize("shape", [(9, 5), (3, 9, 4), (9, 2, 3)])
def test_rows_that_torch_gathers(shape, dtype):
    x, i = torch.randn(shape).mul(4).to(dtype), torch.randint(-9, 9, (2, 3))
    index = (slice(None), i) if shape[1] == 9 else i
    computation = tilecore.compute(lambda x, i: (x[:, i] if shape[1] == 9 else x[i],))
    (found,) = computation(x, i)
    torch.testing.assert_close(found, x[index], rtol=0, atol=0)
    assert of_torch(computation) == ["rows"]


def test_many_kernels_share_what_torch_gathers():
    def function(x, i, y):
        z = x[i]
        return [F.layer_norm(z * n, (WIDTH,)) @ y.T + z.sum() for n in (1, 2, 3)]

    x, i, y = given()
    computation = tilecore.compute(function)
    wanted = function(x.double(), i, y.double())
    for found, exact in zip(computation(x, i, y), wanted, strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)


def test_a_table_that_is_written_is_read_before():
    """What follows from its rows is that of before, whichever kernel runs first."""

    def function(x, i, y):
        before = x[i] * 2
        x.mul_(3)
        return before.softmax(-1) @ y.T

    x, i, y = given()
    mine, exact = x.clone(), x.double()
    found = tilecore.compute(function)(mine, i, y)
    torch.testing.assert_close(found.double(), function(exact, i, y.double()), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mine.double(), exact)


def test_sizes_that_vary():
    computation = tilecore.compute(lambda x, i, y: F.layer_norm(x[i] + y, (WIDTH,)), dynamic=True)
    kernels = set()
    for count, rows in ((40, 70), (50, 87), (33, 65), (60, 127)):
        x, y, i = torch.randn(count, WIDTH), torch.randn(rows, WIDTH), torch.randint(count, (rows,))
        exact = computation.function(x.double(), i, y.double())
        torch.testing.assert_close(computation(x, i, y).double(), exact, rtol=1e-5, atol=1e-5)
        kernels.add(id(computation.plan(x, i, y).stages[0].kernel))
    assert len(kernels) == 1
    assert set(of_torch(computation)) == {"row_numbers"}


@pytest.mark.parametrize("wrong", [-10, 9])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x[i],
        lambda x, i: x.index_select(0, i),
        lambda x, i: F.embedding(i, x),
        lambda x, i: x.gather(0, i[:, None].expand(-1, WIDTH)),
    ],
    ids=["index", "index_select", "embedding", "gather"],
)
def test_rows_that_there_are_not_are_refused(function, wrong):
    """By the error that torch has for it, whether kernels read the rows or torch gathers them."""
    x, i = torch.randn(COUNT, WIDTH), torch.tensor([0, 8, wrong, 3])
    with pytest.raises((IndexError, RuntimeError)) as of_torch_itself:
        function(x, i)
    for used in (lambda x, i: function(x, i) * 2, function):
        with pytest.raises(ArgumentError, match=r"out of (bounds|range)") as refused:
            tilecore.compute(used)(x, i)
        assert type(refused.value.__cause__) is of_torch_itself.type


# --- rows that are added up -----------------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.parametrize("shape", [(WIDTH,), (3, 16), (2, 3, 24)])
@pytest.mark.parametrize("edges", [1, 500])
def test_messages_of_a_graph_are_never_stored(edges, shape):
    """Of the neighbours of each node a weighted sum: one kernel, of a row for each edge."""

    def function(x, weights, sources, targets):
        weights = weights.reshape(-1, *[1] * (x.ndim - 1))
        messages = (x[sources] * weights.sigmoid()).to(x.dtype)
        return torch.zeros_like(x).index_add(0, targets, messages).relu()

    x, weights = torch.randn(40, *shape), torch.randn(edges)
    sources, targets = torch.randint(40, (2, edges))
    plan = agrees(
        function, x, weights, sources, targets, calls=["row_numbers", "sorted_rows"], tolerance=1e-4
    )
    (launch,) = (s for s in plan.steps if isinstance(s, Launch))
    assert "//" not in launch.stage.program.text


@pytest.mark.exhaustive
def test_a_graph_network_is_trained():
    nodes, edges, width = 30, 200, 32
    sources, targets = torch.randint(nodes, (2, edges))

    def loss(x, w, v):
        for weights in (w, v):
            messages = (x @ weights)[sources]
            scores = (messages * x[targets]).sum(-1, keepdim=True).tanh()
            index = targets[:, None].expand(-1, width)
            x = torch.zeros_like(x).scatter_add(0, index, messages * scores).relu() + x
        return x.square().mean()

    leaves = [torch.randn(shape) / 6 for shape in ((nodes, width), *[(width, width)] * 2)]
    mine = [leaf.clone().requires_grad_() for leaf in leaves]
    torch.compiler.reset()
    torch.compile(loss, backend="tilecore")(*mine).backward()
    exact = [leaf.double().requires_grad_() for leaf in leaves]
    loss(*exact).backward()
    for found, wide in zip(mine, exact, strict=True):
        torch.testing.assert_close(found.grad.double(), wide.grad, rtol=1e-4, atol=1e-6)
