"""What computations are given and return: containers, objects, tensors that are written to."""

import dataclasses
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tilecore
from tilecore.computing.planning.plan import Called
from tilecore.errors import TypeMismatch

Pair = namedtuple("Pair", "first second")


class Layer:
    """Keys and values of the tokens so far."""

    def __init__(self):
        self.keys = self.values = None
        self.seen = 0
        self.is_started = False

    def update(self, keys, values):
        if not self.is_started:
            self.keys, self.values = torch.tensor([]), torch.tensor([])
            self.is_started = True
        self.keys = torch.cat([self.keys, keys], -2)
        self.values = torch.cat([self.values, values], -2)
        self.seen += keys.shape[-2]
        return self.keys, self.values


class Cache:
    """A layer's, as many as are asked for."""

    def __init__(self):
        self.layers = []

    def layer(self, number):
        while len(self.layers) <= number:
            self.layers.append(Layer())
        return self.layers[number]


@dataclasses.dataclass
class Output(OrderedDict):
    """What models of transformers return."""

    logits: object = None
    cache: object = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                self[field.name] = value


def model(x, weights, cache=None):
    """Two layers of attention, 4 heads of 8."""
    cache = Cache() if cache is None else cache
    for number in range(2):
        q, k, v = (
            (F.layer_norm(x, (32,)) @ w).view(1, -1, 4, 8).transpose(1, 2) for w in weights[number]
        )
        keys, values = cache.layer(number).update(k, v)
        causal = x.shape[1] > 1
        y = F.scaled_dot_product_attention(q, keys, values, is_causal=causal)
        x = x + y.transpose(1, 2).reshape(x.shape)
    return Output(logits=x, cache=cache)


def weights():
    return [[torch.randn(32, 32) / 6 for _ in range(3)] for _ in range(2)]


@pytest.mark.few(1)
@pytest.mark.parametrize("is_given", [True, False])
def test_a_cache_grows_as_the_function_has_it(is_given):
    """Decoding: the cache is one object all along, and one plan serves many lengths."""
    w = weights()
    ours, theirs = (Cache(), Cache()) if is_given else (None, None)
    computation = tilecore.compute(model)
    with torch.no_grad():
        for length in (17, *[1] * 12):
            x = torch.randn(1, length, 32)
            found, wanted = computation(x, w, cache=ours), model(x, w, cache=theirs)
            assert type(found) is Output
            assert list(found) == ["logits", "cache"]
            torch.testing.assert_close(found.logits, wanted.logits)
            if is_given or ours is not None:
                assert found.cache is ours
            ours, theirs = found.cache, wanted.cache
            for one, other in zip(ours.layers, theirs.layers, strict=True):
                torch.testing.assert_close(one.keys, other.keys)
                torch.testing.assert_close(one.values, other.values)
                assert (one.seen, one.is_started) == (other.seen, True)
    plans = [
        plan
        for family in computation._variants._known[0].families.values()
        for plan in family._plans
    ]
    assert 0 < len(plans) < 4
    own = [p for p in computation.plans if not p.is_own]
    assert len(own) > 6
    assert len({stage for plan in own for stage in plan.stages}) < 2 * len(own[0].stages)


def test_layers_of_one_kind_are_compiled_once():
    w = [torch.randn(32, 32) / 6 for _ in range(6)]

    def deep(x, w):
        for one in w:
            x = F.gelu(x @ one)
        return x

    plan = tilecore.compute(deep).plan(torch.randn(8, 32), w)
    launches = len(plan.steps)
    assert len(plan.stages) <= 2
    assert launches == 6
    assert plan.time_s == pytest.approx(6 * plan.stages[-1].chosen.time_s, rel=0.5)


def test_what_is_done_to_lists_and_dicts_is_done_to_them():
    def function(x, log, table, pair):
        log.append(x * 2)
        log[0] = log[0] + 1
        table["sum"] = pair.first + pair.second
        table.pop("old", None)
        return Pair(x + 1, [table["sum"] * 1, None, 3]), table

    found = []
    for of in (tilecore.compute(function), function):
        torch.manual_seed(0)
        x, log = torch.randn(4, 8), [torch.randn(3)]
        table = {"old": torch.randn(2), "kept": torch.randn(2)}
        returned, same = of(x, log, table, Pair(x, torch.randn(4, 8)))
        assert same is table
        assert type(returned) is Pair
        assert list(table) == ["kept", "sum"]
        found.append((returned, log, table))
    torch.testing.assert_close(found[0], found[1])


def test_one_object_in_several_places_stays_one():
    def function(x, a, b):
        a.keys = x + 1
        c = Layer()
        c.keys, c.values = a, c
        return [b.keys * 2, c, c]

    a = Layer()
    y, c, d = tilecore.compute(function)(torch.ones(4), a, a)
    assert c is d is c.values
    assert c.keys is a
    torch.testing.assert_close(y, torch.full((4,), 4.0))
    first = tilecore.compute(function)
    one, other = (first(torch.ones(4), s, s)[1] for s in (Layer(), Layer()))
    assert one is not other  # made by each call


def test_a_function_that_fails_leaves_objects_as_they_were():
    def function(x, layer):
        layer.keys = x + 1
        raise ValueError("no")

    layer = Layer()
    with pytest.raises(ValueError, match="no"):
        tilecore.compute(function)(torch.ones(4), layer)
    assert vars(layer) == vars(Layer())


def test_objects_with_values_and_functions_are_constants():
    @dataclasses.dataclass(frozen=True)
    class Scale:
        by: float

    computation = tilecore.compute(lambda x, scale, of: of(x) * scale.by)
    x = torch.randn(4)
    for by in (2.0, 3.0):
        torch.testing.assert_close(computation(x, Scale(by), torch.exp), x.exp() * by)
    assert len(computation.plans) == 2


def test_integers_that_objects_count_may_vary():
    def function(x, layer):
        layer.seen += 1
        return x * 2 if layer.seen > 10 else x + 1

    computation, layer = tilecore.compute(function), Layer()
    layer.seen = 8
    for n in range(9, 15):
        x = torch.randn(8)
        torch.testing.assert_close(computation(x, layer), x * 2 if n > 10 else x + 1)
        assert layer.seen == n
        assert type(layer.seen) is int
    assert (
        sum(len(family._plans) for family in computation._variants._known[0].families.values()) == 1
    )  # from 11 on


def test_gradients_go_through_containers():
    def function(x, w):
        return {"y": torch.tanh(x @ w["w"]), "z": [x.sum(-1)]}

    found = []
    for of in (tilecore.compute(function), function):
        torch.manual_seed(0)
        x, w = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
        returned = of(x, {"w": w})
        (returned["y"].sum() + returned["z"][0].square().sum()).backward()
        found.append((x.grad, w.grad))
    torch.testing.assert_close(found[0], found[1])


def test_torch_computes_gradients_of_what_changes_objects():
    def function(x, layer):
        layer.keys = torch.tanh(x)
        return layer.keys * x

    x, layer = torch.randn(4, requires_grad=True), Layer()
    tilecore.compute(function)(x, layer).sum().backward()
    wanted = x.detach().requires_grad_()
    function(wanted, Layer()).sum().backward()
    torch.testing.assert_close(x.grad, wanted.grad)
    torch.testing.assert_close(layer.keys, torch.tanh(x))


def test_what_has_no_value_to_compare_is_told():
    with pytest.raises(TypeMismatch, match="keys of a dict"):
        tilecore.compute(lambda x, s: x * 2)(torch.ones(3), {1, 2})


def test_arguments_pass_as_they_came():
    """A decorator may tell by position from by name, and what is there from what is not."""

    def inner(x, scale=2.0, **kwargs):
        return x * scale

    def outer(*args, **kwargs):
        assert len(args) == 1
        assert "scale" not in kwargs
        return inner(*args, scale=kwargs.pop("factor"))

    outer.__wrapped__ = inner  # whose signature it has
    found = tilecore.compute(outer)(torch.ones(3), factor=3.0)
    torch.testing.assert_close(found, torch.full((3,), 3.0))


# --- tensors of the caller's that are written to --------------------------------------------------


def adds(x, y):
    x += y
    return x


def swaps(x, y):
    a = x.clone()
    x.copy_(y)
    y.copy_(a)
    return x + y


def keeps_the_old(x, y):
    old = x.clone()
    x.mul_(2).add_(y)
    return old, x[0] * 1, (x * y).sum(-1)


def of_parts(x, y):
    x[1:3] = y[:2]
    x[:, ::2] *= 2
    x.T[0].add_(1)
    F.relu(x[3:], inplace=True)
    return (x - y).sum(-1)


def of_masks(x, y):
    x.masked_fill_(y > 0, 0.0)
    x[y < -1] = 1.0
    return x.softmax(-1)


@pytest.mark.few(1)
@pytest.mark.covering("function")
@pytest.mark.parametrize("function", [adds, swaps, keeps_the_old, of_parts, of_masks])
@pytest.mark.parametrize("is_turned", [False, True])
def test_tensors_of_the_caller_are_written_to(function, is_turned):
    computation = tilecore.compute(function)
    for rows in (4, 4, 5, 6, 7, 9):
        given = [torch.randn(8, rows).T if is_turned else torch.randn(rows, 8) for _ in range(2)]
        copies = [t.clone() for t in given]
        found, wanted = computation(*given), function(*copies)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(given, copies)
    if function is adds:
        assert found is given[0]


def test_tensors_that_share_memory_are_torchs_to_write():
    x = torch.randn(4, 8)
    y = x.clone()
    computation = tilecore.compute(keeps_the_old)
    for _ in range(2):
        found, wanted = computation(x, x.view(4, 8)), keeps_the_old(y, y.view(4, 8))
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(x, y)


def test_torch_computes_gradients_of_what_writes_to_its_arguments():
    x, w = torch.randn(4), torch.randn(4, requires_grad=True)
    y = x.clone()
    tilecore.compute(lambda x, w: x.mul_(2) * w)(x, w).sum().backward()
    torch.testing.assert_close(x, y * 2)
    torch.testing.assert_close(w.grad, x)


def test_a_copy_is_a_tensor_of_its_own():
    x = torch.randn(4, 8)
    _, found = tilecore.compute(lambda x: (x * 2, x.clone()))(x)
    before = x.clone()
    found += 1
    torch.testing.assert_close(x, before)

    def twice(x):
        y = x * 2
        return y, y.clone(), y[0]

    y, z, first = tilecore.compute(twice)(x)
    y += 1
    torch.testing.assert_close(z, x * 2)
    torch.testing.assert_close(first, y[0])


def test_arrays_of_numpy_are_written_to():
    x, y = np.ones((3, 4), np.float32), np.full((3, 4), 2, np.float32)
    found = tilecore.compute(adds)(x, y)
    assert found is x
    np.testing.assert_array_equal(x, 3)


def test_rows_of_a_cache_are_written_where_they_lie():
    """A cache of a fixed length: torch writes the rows of a token, and nothing is copied."""

    def step(q, k, cache, position):
        cache.keys.index_copy_(0, position, k)
        cache.values[position] = k * 2
        position.add_(1)
        mask = torch.arange(16) < position
        return torch.where(mask, q @ cache.keys.T, -1e9).softmax(-1) @ cache.values

    def started():
        cache = Layer()
        cache.keys, cache.values = torch.zeros(16, 8), torch.zeros(16, 8)
        return cache

    ours, theirs = started(), started()
    keys = ours.keys
    computation = tilecore.compute(step)
    one, other = torch.tensor([0]), torch.tensor([0])
    for _ in range(5):
        q, k = torch.randn(1, 8), torch.randn(1, 8)
        torch.testing.assert_close(computation(q, k, ours, one), step(q, k, theirs, other))
        torch.testing.assert_close(vars(ours), vars(theirs))
        assert int(one) == int(other)
    assert ours.keys is keys
    steps = computation.plan(q, k, ours, one).steps
    assert sum(s.is_in_place for s in steps if isinstance(s, Called)) >= 2
    assert len(computation.plans) == 1


def test_what_reads_the_old_elements_later_forces_a_copy():
    def function(x, i, y):
        x.index_copy_(0, i, y)
        return x.sum(-1)

    def of_old(x, i, y):
        old = x.clone()
        x.index_copy_(0, i, y)
        return old, x.sum(-1)

    for f, is_in_place in ((function, True), (of_old, False)):
        x, i, y = torch.randn(8, 4), torch.tensor([5, 2]), torch.randn(2, 4)
        other = x.clone()
        computation = tilecore.compute(f)
        torch.testing.assert_close(computation(x, i, y), f(other, i, y))
        torch.testing.assert_close(x, other)
        called = [s for s in computation.plan(x, i, y).steps if isinstance(s, Called)]
        assert [s.is_in_place for s in called] == [is_in_place]


@pytest.mark.parametrize(
    ("function", "in_place"),
    [
        (lambda x, y: (x[:, 2:4].copy_(y), x * 3)[1], [True]),
        (lambda x, y: x.T[1:3].add_(y[0, 0]).sum(), [True]),
        (lambda x, y: (x[:, :2].copy_(x[:, 6:]), x.sum(0))[1], [False]),
        (lambda x, y: (x[:, 1:].copy_(x[:, :-1].clone()), x.sum(0))[1], [False]),
        (lambda x, y: (x.clone(), x[:, 2:4].copy_(y), x.sum(0))[::2], [False]),
        (lambda x, y: (x[:, :2].copy_(y), x[:, 6:].copy_(y * 2), x.sum(0))[2], [True]),
    ],
)
def test_slices_of_an_argument_are_written_where_they_lie(function, in_place):
    """A cache of a fixed length was copied as a whole, there and back, for each token."""
    x, y = torch.randn(5, 8), torch.randn(5, 2)
    other, computation = x.clone(), tilecore.compute(function)
    torch.testing.assert_close(computation(x, y), function(other, y))
    torch.testing.assert_close(x, other)
    called = [s for s in computation.plan(x, y).steps if isinstance(s, Called)]
    assert [s.is_in_place for s in called] == in_place


# --- sizes of what torch computes -----------------------------------------------------------------


@pytest.mark.exhaustive
def test_torch_tells_shapes_where_sizes_vary():
    def function(x, y):
        v, i = x.max(-1, keepdim=True)
        z = torch.baddbmm(y, x.unsqueeze(0), x.T.unsqueeze(0) * 1.0)
        pads = F.pad(x, (0, 0, 1, 2))
        return (x - v).exp(), i, z * 2, torch.topk(x, 3, -1).values, pads * 1

    computation = tilecore.compute(function)
    for n in (5, 6, 7, 9, 11, 13, 14, 15):
        x, y = torch.randn(n, 24), torch.randn(1, n, n)
        torch.testing.assert_close(computation(x, y), function(x, y))
    (family,) = computation._variants._known[0].families.values()
    assert 0 < len(family._plans) < 4


def test_sizes_that_are_no_sums_get_plans_of_their_own():
    def function(x):
        return F.avg_pool1d(x.T * 2, 2).T * 3, torch.diag_embed(x).flatten(0, 1) * 2

    computation = tilecore.compute(function)
    for n in (4, 5, 6, 7, 9):
        x = torch.randn(n, 6)
        torch.testing.assert_close(computation(x), function(x))


# --- what objects hold beside tensors, and code that torch compiles -------------------------------


def test_what_a_function_does_not_read_of_an_object_may_be_anything():
    class State:
        def __init__(self):
            self.complex = torch.zeros(2, dtype=torch.complex64)
            self.names = np.array(["a"])
            self.marks = {1, 2}
            self.keys = torch.tensor([])
            self.own = self

    def function(x, state):
        state.keys = torch.cat([state.keys, x * 2])
        return state.keys + 1

    state, computation = State(), tilecore.compute(function)
    for rows in (3, 6, 9):
        x = torch.randn(3, 4)
        assert computation(x, state).shape == (rows, 4)
        torch.testing.assert_close(state.keys[-3:], x * 2)
    assert state.own is state
    assert state.marks == {1, 2}


@pytest.mark.parametrize(
    "function", [lambda x, y, z: y.add_(x) + 1, lambda x, y, z: z.append(x * 2) or x + 1]
)
def test_what_is_changed_is_no_node_of_a_graph(function):
    y, z = torch.ones(4), [torch.ones(4)]
    computation = tilecore.compute(function)
    compiled = torch.compile(lambda x: computation(x * 3, y, z), backend="eager")
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match="changes nothing it is given"):
        compiled(torch.randn(4))
    assert torch.equal(y, torch.ones(4))
    assert len(z) == 1
