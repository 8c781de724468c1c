"""What a function holds: attributes, variables and lists that change between its calls or by it."""

import copy
import functools
import itertools
import sys

import pytest
import torch

import tilecore
from tilecore.errors import UnsupportedSyntax

SCALE = 2.0
LOG = []


def alike(one, other):
    """Compare what two functions, or what they hold, came to."""
    torch.testing.assert_close(one, other)


def both(make, *calls, between=lambda module, n: None):
    """Call a module and a computation of its copy; compare what they return and hold then."""
    theirs = make()
    ours = copy.deepcopy(theirs)
    computation = tilecore.compute(ours)
    with torch.no_grad():
        for n, args in enumerate(calls):
            alike(computation(*args), theirs(*args))
            alike(dict(ours.named_buffers()), dict(theirs.named_buffers()))
            assert ours.n == theirs.n
            alike(ours.log, theirs.log)
            between(ours, n)
            between(theirs, n)
    return computation


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))
        self.n, self.factor, self.log, self.last, self.kept = 0, 2.0, [], None, ()

    def forward(self, x):
        return getattr(self, self.kind)(x)

    def of_attributes(self, x):
        return x * self.factor + self.n

    def counts(self, x):
        self.n += 1
        return x + self.n

    def logs(self, x):
        self.log.append(x * 2)
        return x + len(self.log)

    def remembers(self, x):
        before = 0 if self.last is None else self.last
        self.last = x * 2
        return self.last + before

    def remembers_in_tuples(self, x):
        before = self.kept[0] if self.kept else 0
        self.kept = (x * 2, self.n)
        return x + before

    def replaces_buffers(self, x):
        self.seen = self.seen + x
        return self.seen * 2

    def adds_to_buffers(self, x):
        self.seen.add_(1)
        self.seen += x
        self.seen[1:3].mul_(2)
        return self.seen * 2

    def writes_rows(self, x):
        self.seen[self.n] = x[0]
        return self.seen + x


KINDS = [name for name in vars(Layer) if name not in ("__init__", "forward") and name[0] != "_"]


def layer(kind):
    found = Layer()
    found.kind = kind
    return found


def fives(count=5):
    return [(torch.randn(4),) for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_call_does_what_the_function_does(kind):
    both(lambda: layer(kind), *fives())


@pytest.mark.parametrize("kind", KINDS)
def test_what_others_change_is_seen(kind):
    def change(module, n):
        module.factor = 3.0 + n
        module.n = n % 4
        module.seen = torch.full((4,), float(n))
        module.last = torch.ones(4)

    both(lambda: layer(kind), *fives(), between=change)


def test_methods_are_computations_as_modules_are():
    ours, theirs = layer("adds_to_buffers"), layer("adds_to_buffers")
    ours.forward = tilecore.compute(ours.forward)
    for (x,) in fives(3):
        alike(ours(x), theirs(x))
        alike(ours.seen, theirs.seen)


class Cache(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 2, 16, 8))
        self.register_buffer("v", torch.zeros(1, 2, 16, 8))

    def forward(self, at, k, v):
        self.k[:, :, at], self.v[:, :, at] = k, v
        return self.k, self.v


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.cache = torch.nn.Linear(16, 48), Cache()

    def forward(self, x, at):
        parts = self.inner(x).split(16, -1)
        q, k, v = (t.view(1, -1, 2, 8).transpose(1, 2) for t in parts)
        k, v = self.cache(at, k, v)
        mask = (torch.arange(16) <= at.max()).expand(1, 1, x.shape[1], 16)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
        return x + y.transpose(1, 2).flatten(2)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Attention() for _ in range(3))
        self.n, self.log = 0, []

    def forward(self, x, at):
        for one in self.layers:
            x = one(x, at)
        return x


def test_caches_in_buffers_are_written_to():
    calls = [
        (torch.randn(1, len(at), 16), torch.tensor(at)) for at in ([0, 1, 2, 3], [4], [5], [6])
    ]
    computation = both(Model, *calls)
    assert len(computation.plans) == 2  # of a prompt, of a token
    assert len(computation.plan(*calls[-1]).outcome.writes) == 6


# --- where it is held -----------------------------------------------------------------------------


def scaled(x):
    return x * factor()


def factor():
    return SCALE


class Config:
    scale = 3.0

    def twice(self, x):
        return x * self.scale * 2

    @property
    def shown(self):
        return self.scale + len(LOG)

    @classmethod
    def made(cls, x):
        return x + cls.scale


def test_variables_of_functions_that_are_called(monkeypatch):
    computation, x = tilecore.compute(scaled), torch.randn(5)
    for value in (2.0, 5.0, 2.0, 7.0):
        monkeypatch.setattr(sys.modules[__name__], "SCALE", value)
        alike(computation(x), x * value)


@pytest.mark.parametrize("name", ["twice", "made", "shown"])
def test_attributes_of_classes(name, monkeypatch):
    config, x = Config(), torch.randn(5)
    of = {"shown": lambda x: x + config.shown}.get(name) or getattr(config, name)
    computation = tilecore.compute(of)
    for value in (3.0, 4.0):
        monkeypatch.setattr(Config, "scale", value)
        alike(computation(x), of(x))
    config.scale = 9.0
    alike(computation(x), of(x))


def test_variables_of_closures_and_what_is_in_lists_and_dicts():
    n, parts, named, w = 1.0, [2.0, torch.ones(4)], {"a": (3.0, torch.ones(4))}, torch.ones(4)
    by = functools.partial(torch.mul, other=4.0)

    def function(x, of=parts):
        return by(x) + n + of[0] * of[1] + named["a"][0] * named["a"][1] + w

    computation, x = tilecore.compute(function), torch.randn(4)
    for change in (
        lambda: None,
        lambda: parts.__setitem__(0, 5.0),
        lambda: parts.__setitem__(1, torch.full((4,), 5.0)),
        lambda: named.update(a=(6.0, torch.full((4,), 7.0))),
        lambda: parts.extend([8.0]),
    ):
        change()
        alike(computation(x), function(x))
    n, w = 9.0, torch.full((4,), 10.0)
    alike(computation(x), function(x))


def test_variables_and_lists_that_the_function_changes():
    def made():
        count, last, log, named = 0, None, [], {}

        def function(x):
            nonlocal count, last
            count, last = count + 1, x * count
            log.append(count)
            named[f"call {count}"] = last
            return x + count + sum(log)

        return function, lambda: (count, last, log, named)

    (ours, held), (theirs, wanted) = made(), made()
    computation = tilecore.compute(ours)
    for (x,) in fives(3):
        alike(computation(x), theirs(x))
        alike(held(), wanted())


def test_variables_that_come_later_and_others_of_the_names_of_attributes():
    readings, is_there = itertools.count(), False
    globals()["square"] = 0  # the name of a method, in the function

    def function(x):
        next(readings)
        return later(x.square()) if is_there else x + 1

    computation, x = tilecore.compute(function), torch.randn(4)
    alike(computation(x), x + 1)
    globals()["square"] = 1
    alike(computation(x), x + 1)
    assert next(readings) == 1

    def later(x):
        return x * 5

    is_there = True
    alike(computation(x), x.square() * 5)


def test_hooks_and_modes_of_modules():
    def count(module, args, y):
        return y + 1

    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).eval()
    computation, x = tilecore.compute(module), torch.randn(3, 4)
    with torch.no_grad():
        alike(computation(x), module(x))
        handle = module[0].register_forward_hook(count)
        alike(computation(x), module(x))
        handle.remove()
        alike(computation(x), module(x))
        module[0].weight = torch.nn.Parameter(torch.eye(4))
        alike(computation(x), module(x))
        module.append(torch.nn.ReLU())
        alike(computation(x), module(x))
        module.train()
        with pytest.raises(UnsupportedSyntax, match="random"):
            computation(x)
        module.eval()
        alike(computation(x), module(x))


# --- how often it is read -------------------------------------------------------------------------


class Engine:
    def __init__(self):
        self.readings, self.history = itertools.count(), []
        self.factor, self.w, self.step = 2.0, torch.ones(4), 2

    def run(self, x):
        next(self.readings)  # an iterator's state is not looked at
        return x * self.factor + x * self.step + self.w * 2


@pytest.mark.parametrize(
    ("change", "readings"),
    [
        (lambda e, n: e.history.append(n), 1),  # which no code of the function names
        (lambda e, n: setattr(e, "unknown", n), 1),
        (lambda e, n: setattr(e, "factor", float("2.0")), 1),
        (lambda e, n: setattr(e, "factor", 2.0 + n % 2), 3),  # from then on it is passed
        (lambda e, n: setattr(e, "w", torch.randn(4)), 2),  # it is passed from then on
        (lambda e, n: e.w.add_(1), 1),
        (lambda e, n: setattr(e, "step", n + 2), 5),  # 2, 3, 4, then from 4 and from 8 on
    ],
)
def test_it_is_read_again_where_it_could_be_another(change, readings):
    engine = Engine()
    computation = tilecore.compute(engine.run)
    for n in range(8):
        (x,) = fives(1)[0]
        found = computation(x)
        alike(found, x * (engine.factor + engine.step) + engine.w * 2)
        change(engine, n)
    assert next(engine.readings) == readings


def test_python_decides_by_elements_that_are_held():
    mask, scale = torch.tensor([1.0, 2.0, 0.0]), torch.tensor(2.0)

    def function(x):
        y = x * scale.item() + mask * 2
        return y.exp() if bool((mask > 1).any()) and mask.sum() < 4 else y

    computation, x = tilecore.compute(function), torch.randn(3)
    for change in (
        lambda: None,
        lambda: mask.mul_(0.5),
        lambda: scale.fill_(3.0),
        lambda: mask.mul_(4),
        lambda: mask.zero_(),
    ):
        change()
        for _ in range(2):
            alike(computation(x), function(x))
    assert len(computation.plans) == 1
    with pytest.raises(UnsupportedSyntax, match="do not depend on elements"):
        tilecore.compute(lambda x: x if (x * mask).sum() > 1 else -x)(x)


def test_plans_of_old_weights_are_dropped():
    module = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(20)])
    computation, x = tilecore.compute(module), torch.randn(3, 4)
    with torch.no_grad():
        for _ in range(3):
            alike(computation(x), module(x))
            for one in module:
                one.weight = torch.nn.Parameter(torch.randn(4, 4))
    assert len(computation.plans) == 1


# --- what is refused ------------------------------------------------------------------------------


def test_what_is_refused_leaves_all_as_it_was():
    module = layer("counts")

    def fails(x):
        module.n += 1
        module.log.append(x)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        tilecore.compute(fails)(torch.randn(4))
    assert (module.n, module.log) == (0, [])
    names = set()

    def collects(x):
        names.add(str(x.dtype))
        return x + 1

    with pytest.raises(UnsupportedSyntax, match="changes a set"):
        tilecore.compute(collects)(torch.randn(4))
    assert names == set()


@pytest.mark.parametrize("kind", ["counts", "adds_to_buffers", "writes_rows", "replaces_buffers"])
def test_compiled_code_refuses_what_changes(kind):
    module = layer(kind)
    computation = tilecore.compute(module)
    compiled = torch.compile(lambda x: computation(x * 3), backend="eager")
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match="is given or holds"):
        compiled(torch.randn(4))
    assert module.n == 0
    assert torch.equal(module.seen, torch.zeros(4))


def test_gradients_are_torchs_own():
    ours, theirs = layer("remembers"), layer("remembers")
    computation = tilecore.compute(ours)
    for _ in range(3):
        x = torch.randn(4, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        computation(x).sum().backward()
        theirs(y).sum().backward()
        alike(x.grad, y.grad)
        ours.last, theirs.last = ours.last.detach(), theirs.last.detach()


def test_objects_of_installed_packages_are_looked_at(tmp_path, monkeypatch):
    (tmp_path / "of_others-1.0.dist-info").mkdir()
    (tmp_path / "of_others.py").write_text(
        "class Settings:\n    def __init__(self):\n        self._scale = 2.0\n"
        "    def scale(self):\n        return self._scale\n"
        "by = 2.0\ndef scaled(x):\n    return x * by\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import of_others

    settings, x = of_others.Settings(), torch.randn(4)
    computation = tilecore.compute(lambda x: x * settings.scale())
    itself = tilecore.compute(of_others.scaled)  # a function of theirs that is a computation
    for value in (2.0, 3.0):
        settings._scale = of_others.by = value
        alike(computation(x), x * value)
        alike(itself(x), x * value)
