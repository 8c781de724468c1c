"""What integers put somewhere: few elements as a function of elements, rows that are added up."""

import pytest
import torch
import torch.nn.functional as F

import tilecore
from tilecore.computing.functions import put
from tilecore.computing.planning.plan import Called, Launch
from tilecore.errors import ArgumentError

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def of_torch(computation):
    """Return the names of what torch computes in a plan."""
    return [s.node.op for plan in computation.plans for s in plan.steps if isinstance(s, Called)]


def agrees(function, *given, calls, tolerance=1e-5):
    """Compare a computation with its function in float64; count what torch computes."""
    computation = tilecore.compute(function)
    found = computation(*given)
    wide = [t.double() if t.is_floating_point() else t for t in given]
    torch.testing.assert_close(
        found.double(), function(*wide).double(), rtol=tolerance, atol=tolerance
    )
    assert sorted(set(of_torch(computation))) == sorted(calls)
    return computation.plans[-1]


# --- few elements ---------------------------------------------------------------------------------


@pytest.mark.parametrize("picks", [1, 3])
@pytest.mark.parametrize("axis", [0, -1])
def test_few_elements_are_put_by_a_kernel(axis, picks):
    shape = [24, 40]
    shape[axis] = picks
    places = torch.stack([torch.randperm(24)[:picks] for _ in range(max(shape))]).long()
    places = places if axis else places.T.contiguous()
    x = torch.randn(24, 40)
    plan = agrees(
        lambda x, i: x * torch.zeros_like(x).scatter(axis, i, 2.5), x, places, calls=["places"]
    )
    assert sum(isinstance(s, Launch) for s in plan.steps) == 1


def test_elements_of_a_tensor_are_put_and_added():
    x, values, places = torch.randn(9, 33), torch.randn(9, 2), torch.tensor([[3, 30]] * 9)
    agrees(lambda x, i, v: (x * 2).scatter(1, i, v) + 1, x, places, values, calls=["places"])
    places[:, 1] = 3  # twice to one place
    agrees(lambda x, i, v: (x * 2).scatter_add(1, i, v), x, places, values, calls=["places"])


def test_what_lies_in_memory_is_scattered_by_torch():
    x, places = torch.randn(9, 33), torch.randint(0, 33, (9, 1))
    agrees(lambda x, i: x.scatter(1, i, 1.0), x, places, calls=["scatter"])
    many = torch.randint(0, 33, (9, 20))
    agrees(lambda x, i: (x * 2).scatter(1, i, 1.0), x, many, calls=["scatter"])


@pytest.mark.parametrize("wrong", [-1, 33])
def test_places_that_there_are_not_are_refused(wrong):
    x, places = torch.randn(9, 33), torch.full((9, 1), wrong)
    with pytest.raises(ArgumentError, match=f"index {wrong} is out of bounds"):
        tilecore.compute(lambda x, i: (x * 2).scatter(1, i, 1.0))(x, places)


def test_positions_are_counted_not_read():
    computation = tilecore.compute(lambda x: x * (torch.arange(2, 42) + 3 * torch.arange(40)))
    x = torch.randn(5, 40)
    torch.testing.assert_close(computation(x), x * (torch.arange(2, 42) + 3 * torch.arange(40)))
    computation = tilecore.compute(lambda x: torch.where(torch.arange(40) * 1.0 > 7.0, x, 0.0))
    torch.testing.assert_close(computation(x), torch.where(torch.arange(40) > 7, x, 0.0))
    computation = tilecore.compute(lambda x: x + torch.arange(3, 43, dtype=torch.float32))
    torch.testing.assert_close(computation(x), x + torch.arange(3, 43))
    (plan,) = computation.plans
    assert len(plan.steps) == 1  # and no tensor that it holds
    rows = tilecore.compute(lambda x: torch.where(torch.arange(5)[:, None] < 2, x, 1.0))
    torch.testing.assert_close(rows(x), torch.where(torch.arange(5)[:, None] < 2, x, 1.0))


# --- rows that are added up -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("count", "width", "shape"), [(50, 100, (3, 7)), (9, 16, (400,))])
def test_rows_are_added_up_by_a_kernel(count, width, shape, dtype):
    rows, places = torch.randn(*shape, width, dtype=dtype), torch.randint(-count, count, shape)

    def function(rows, places):
        zeros = torch.zeros(count, width, dtype=rows.dtype)
        return zeros.index_put((places,), rows, accumulate=True) * 2.0

    limit = 8 * TOLERANCE[dtype] if dtype == torch.bfloat16 else 2e-5
    plan = agrees(function, rows, places, calls=["sorted_rows"], tolerance=limit)
    assert sum(isinstance(s, Launch) for s in plan.steps) == 1


def test_rows_are_added_to_others():
    rows, i, j = torch.randn(40, 32), torch.randint(0, 5, (40,)), torch.randint(0, 6, (40,))
    agrees(
        lambda x, i, j: (torch.ones(5, 6, 32, dtype=x.dtype) * x.mean()).index_put((i, j), x, True),
        rows, i, j, calls=["sorted_rows"],
    )  # fmt: skip
    agrees(
        lambda x, i: torch.zeros(5, 32, dtype=x.dtype).index_add(0, i, x, alpha=0.5),
        rows, i, calls=["sorted_rows"],
    )  # fmt: skip


@pytest.mark.parametrize("shape", [(40, 32), (3, 4, 8), (1, 64)])
def test_rows_that_repeated_integers_name_are_added_up(shape):
    """They are those of ``scatter_add`` in models of graphs."""
    rows, places = torch.randn(shape), torch.randint(0, 5, shape[:1])

    def function(x, i):
        index = i.reshape(-1, *[1] * (x.ndim - 1)).expand_as(x)
        return torch.zeros(5, *x.shape[1:], dtype=x.dtype).scatter_add(0, index, x.exp()) * 2

    agrees(function, rows, places, calls=["sorted_rows"])


@pytest.mark.parametrize("count", [70, 1 << 16, (1 << 16) + 1, 300_000])
def test_rows_are_sorted_by_the_row_that_they_go_to(count):
    places = torch.randint(0, count, (5000,))
    places[::7] = count - 1
    order, starts = put._sorted((count,), False, places)
    assert order.tolist() == places.argsort(stable=True).tolist()
    wanted = torch.bincount(places, minlength=count).cumsum(0)
    assert starts.tolist() == [0, *wanted.tolist()]
    assert order.dtype == starts.dtype == torch.int32


def test_integers_that_name_no_whole_rows_are_scattered_by_torch():
    rows, places = torch.randn(40, 32), torch.randint(0, 5, (1, 32))

    def columns(x, i):
        return torch.zeros(5, 32, dtype=x.dtype).scatter_add(0, i.expand(40, -1), x * 2)

    def parts(x, i):
        return torch.zeros(5, 40, dtype=x.dtype).scatter_add(0, i[0, :, None].expand(-1, 20), x)

    agrees(columns, rows, places, calls=["expand", "scatter_add"])
    agrees(parts, torch.randn(32, 20), places, calls=["expand", "scatter_add"])


def test_rows_of_a_table_in_memory_are_added_by_torch():
    table, rows, places = torch.randn(9, 32), torch.randn(4, 32), torch.tensor([0, 3, 3, 8])
    agrees(lambda t, i, x: t.index_add(0, i, x), table, places, rows, calls=["index_add"])
    narrow = torch.randn(4, 3)
    agrees(
        lambda i, x: torch.zeros(9, 3, dtype=x.dtype).index_add(0, i, x),
        places, narrow, calls=["index_add"],
    )  # fmt: skip


def test_rows_that_there_are_not_are_refused():
    rows, places = torch.randn(3, 32), torch.tensor([0, 1, 9])
    function = tilecore.compute(lambda i, x: torch.zeros(9, 32).index_put((i,), x, True))
    with pytest.raises(ArgumentError, match="index 9 is out of bounds"):
        function(places, rows)
    function = tilecore.compute(lambda i, x: torch.zeros(9, 32).index_add(0, i, x))
    with pytest.raises(ArgumentError, match="index -1 is out of bounds") as refused:
        function(torch.tensor([0, 1, -1]), rows)
    assert type(refused.value.__cause__) is RuntimeError  # as of torch


@pytest.mark.parametrize("padding", [None, 3])
def test_gradients_of_an_embedding_and_a_loss(padding):
    ids, wanted = torch.randint(0, 60, (2, 17)), torch.randint(0, 60, (34,))
    wanted[5] = -100

    def loss(table, head):
        x = F.embedding(ids, table, padding)
        return F.cross_entropy((x @ head).flatten(0, 1), wanted)

    table, head = torch.randn(60, 32), torch.randn(32, 60)
    leaves = [t.clone().requires_grad_() for t in (table, head)]
    torch.compiler.reset()
    torch.compile(loss, backend="tilecore")(*leaves).backward()
    exact = [t.double().requires_grad_() for t in (table, head)]
    loss(*exact).backward()
    for found, wide in zip(leaves, exact, strict=True):
        torch.testing.assert_close(found.grad.double(), wide.grad, rtol=1e-4, atol=1e-6)
