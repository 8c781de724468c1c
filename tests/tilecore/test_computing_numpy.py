"""Computations of NumPy's arrays: its functions, methods and ufuncs, by kernels or by NumPy."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from scipy import special

import tilecore
from tilecore.computing.planning.plan import Called
from tilecore.errors import ArgumentError, TileError, TypeMismatch, UnsupportedSyntax

RNG = np.random.default_rng(0)
GIVEN = {
    "x": RNG.standard_normal((24, 64)).astype(np.float32),
    "y": RNG.standard_normal((24, 64)).astype(np.float32),
    "w": RNG.standard_normal((64, 32)).astype(np.float32),
    "v": RNG.standard_normal(64).astype(np.float32),
    "d": RNG.standard_normal((24, 64)),
    "z": (RNG.standard_normal((24, 64)) + 1j).astype(np.complex64),
    "i": RNG.integers(0, 24, 40),
    "q": RNG.integers(0, 200, (6, 16)).astype(np.uint8),
}
TABLE = np.arange(9.0)
HELD = RNG.standard_normal(64).astype(np.float32)


def check(function, names):
    """Compare values and element types with NumPy's; return the plan, and what is called in it."""
    given = {name: GIVEN[name].copy() for name in names}
    own = {name: array.copy() for name, array in given.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = function(**own)
    computation = tilecore.compute(function)
    found = computation(**given)
    wide = {k: a.astype(np.float64) if a.dtype == np.float32 else a for k, a in GIVEN.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exact = function(**{name: wide[name].copy() for name in names})
    for one, other, right in zip(_flat(found), _flat(wanted), _flat(exact), strict=True):
        assert isinstance(one, np.ndarray)
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, right, rtol=1e-4, atol=1e-4)
    for name, array in given.items():
        np.testing.assert_allclose(array, own[name], rtol=1e-6)
    plan = computation.plan(**given)
    return plan, [step.node.op for step in plan.steps if isinstance(step, Called)]


def _flat(value):
    return (
        [v for part in value for v in _flat(part)] if isinstance(value, tuple | list) else [value]
    )


# --- by kernels -----------------------------------------------------------------------------------


@pytest.mark.few(9)
@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda x: np.exp(x - x.max(-1, keepdims=True)), "x"),
        (lambda x: (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-6), "x"),
        (lambda x: x.std(axis=1, ddof=1, keepdims=True) * np.var(x, -1)[:, None], "x"),
        (lambda x: x / np.linalg.norm(x, axis=1, keepdims=True), "x"),
        (lambda x: np.linalg.norm(x), "x"),
        (lambda x: np.linalg.norm(x, ord=1, axis=0), "x"),
        (lambda x, y: np.where(x > y, x, y * 2).sum(), "xy"),
        (lambda x: np.clip(x, -1, 1).min(axis=1), "x"),
        (lambda x: np.maximum.reduce(x, axis=1) + np.add.reduce(x, axis=1), "x"),
        (lambda x: np.amax(x) - np.amin(x, axis=0), "x"),
        (lambda x: np.round(x, 1) + x.round(), "x"),
        (lambda x, w: np.dot(x, w) + x.dot(w) + 1, "xw"),
        (lambda x, y: np.inner(x, y), "xy"),
        (lambda v: np.outer(v, v) + np.multiply.outer(v, v), "v"),
        (lambda v, x: np.vdot(v, v) + (v @ x.T), "vx"),
        (lambda x: np.einsum("ij,kj->ik", x, x, optimize=True), "x"),
        (lambda x: np.moveaxis(x, 0, 1) @ np.swapaxes(x, 0, 1).T, "x"),
        (lambda x: x.reshape(24, -1, 4).transpose(0, 2, 1).ravel() * 2, "x"),
        (lambda x: np.transpose(np.expand_dims(x, 0), (2, 0, 1)).squeeze() * 2, "x"),
        (lambda x: np.squeeze(x[None, :, None]) + x.squeeze(), "x"),
        (lambda x: np.flip(x, 1) + np.flipud(x) + np.fliplr(x) + np.flip(x), "x"),
        (lambda x: np.diff(x) * 2 + np.diff(x, axis=1), "x"),
        (lambda x: [part * 2 for part in np.split(x, 2, axis=1)], "x"),
        (lambda x: np.hstack(np.split(x, [20], axis=1)[::-1]) * 1, "x"),
        (lambda x, y: np.vstack([x, y]) + np.concatenate([x, y]), "xy"),
        (lambda v, x: np.broadcast_to(v, x.shape) * x, "vx"),
        (lambda x, i: np.take(x, i, axis=0) * 2, "xi"),
        (lambda x, i: x[i] * HELD, "xi"),
        (lambda x: x.astype(np.float16), "x"),
        (lambda x: x * x.size + np.float32(2), "x"),
        (lambda x: special.expit(x) * special.erf(x), "x"),
        (lambda x: x * 2 if isinstance(x, np.ndarray) else -x, "x"),
        (lambda x: np.ones_like(x) / 3 + x * np.full_like(x, 2), "x"),
    ],
)
def test_what_has_kernels(function, names):
    plan, ops = check(function, names)
    assert plan.stages
    assert not [op for op in ops if op.startswith("numpy.")]


# --- by NumPy, between kernels --------------------------------------------------------------------


@pytest.mark.few(9)
@pytest.mark.parametrize(
    ("function", "names", "calls"),
    [
        (lambda x: np.sort(x, axis=1) * 2, "x", ["numpy.sort"]),
        (lambda x: np.cumsum(x * 2, axis=0)[-1], "x", ["numpy.cumsum"]),
        (lambda x: x.argmax(1), "x", ["numpy.argmax"]),
        (lambda x: x.repeat(2, axis=0) + 1, "x", ["numpy.repeat"]),
        (lambda x: np.repeat(x, 2), "x", ["numpy.repeat"]),
        (lambda x: np.median(x, axis=1), "x", ["numpy.median"]),
        (lambda x: np.pad(x, 1) * 2, "x", ["numpy.pad"]),
        (lambda x: np.roll(x, 1, 0) + x, "x", ["numpy.roll"]),
        (lambda v: np.tile(v, (3, 1)) * 2, "v", ["numpy.tile"]),
        (lambda x: np.arctan2(x, 2) + np.hypot(x, 3), "x", ["numpy.arctan2", "numpy.hypot"]),
        (lambda x: x // 2 + x % 2, "x", None),
        (lambda x: divmod(x, 2), "x", None),
        (lambda x: x.reshape(-1, order="F") * 2, "x", ["numpy.reshape"]),
        (lambda x: np.linalg.solve(x[:, :24] @ x[:, :24].T + 9 * np.eye(24, dtype="f"), x), "x",
         ["numpy.linalg.solve"]),
        (lambda x: np.linalg.cholesky(x @ x.T + np.eye(24, dtype="f")), "x",
         ["numpy.linalg.cholesky"]),
        (lambda x: np.abs(np.fft.fft(x, axis=1)), "x", None),
        (lambda z: z.real * 2 + np.exp(1j * z).imag, "z", None),
        (lambda x, v: np.interp(x[0], np.sort(v), v), "xv", ["numpy.sort", "numpy.interp"]),
        (lambda x: np.average(x, axis=0, weights=np.arange(24)), "x", ["numpy.average"]),
        (lambda x, i: x[i, np.arange(40)], "xi", ["numpy.getitem"]),
        (lambda x: np.add(x, 1, dtype=np.float64), "x", ["numpy.add"]),
        (lambda x: x.sum(axis=0, dtype=np.float64), "x", []),
        (lambda x: (x > 0).sum() + (x > 1).mean(), "x", None),
        (lambda i: i * 2 + 1, "i", ["numpy.multiply", "numpy.add"]),
        (lambda i: i / 2, "i", ["numpy.true_divide"]),
        (lambda q: ~q & 15 | (q << 1), "q", None),
        (lambda i, x: np.bincount(i, minlength=24) * x.shape[1], "ix", None),
        (lambda x: np.select([x < 0, x > 1], [x * 0, x], default=1), "x", ["numpy.select"]),
        (lambda x: np.isclose(x, x).all() | np.any(x > 9), "x", None),
        (lambda x: x[:, MASK] * 2, "x", ["numpy.getitem"]),
        (lambda x: x[np.ix_([0, 2], [1, 3])] * 2, "x", ["numpy.getitem"]),
        (lambda x: np.add.accumulate(x, axis=1), "x", ["numpy.cumsum"]),
        (lambda x: np.maximum.accumulate(x, axis=1) - x, "x", ["maximum.accumulate"]),
        (lambda x: np.logaddexp.reduce(x, axis=1) * 2, "x", ["logaddexp.reduce"]),
        (lambda x: np.add.reduceat(x, [0, 3, 7], axis=1), "x", ["add.reduceat"]),
        (lambda x: special.gammaln(x * x + 1) * 2, "x", ["gammaln"]),
        (lambda x, y: np.kron(x[:2, :2], y[:2, :2]), "xy", ["numpy.kron"]),
    ],
)  # fmt: skip
def test_what_numpy_computes_itself(function, names, calls):
    _, found = check(function, names)
    assert calls in (None, found)


@pytest.mark.parametrize(
    "function",
    [
        lambda d: d * 2 + 1,
        lambda d: (d - d.mean(0)) / d.std(0),
        lambda d: d @ d.T,
        lambda d: np.where(d > 0, d, 0).sum(axis=1),
        lambda d: d.astype(np.float32) * 2,
    ],
)
def test_float64_stays_float64(function):
    check(function, "d")


@pytest.mark.few(4)
@pytest.mark.parametrize("function", [
    lambda x: x / np.sqrt(x.shape[-1]),
    lambda x: np.float64(2) * x + 1,
    lambda x: np.maximum(x, np.float64(0)),
    lambda x: np.where(x > 0, x, np.float64(0)),
    lambda x: np.clip(x, np.float64(-1), 1),
    lambda x: x ** np.float64(2),
    lambda x: np.hypot(x, np.float64(2)),
    lambda x: x - np.mean([1.0, 2.0]),
    lambda x: x + np.int64(2),
    lambda x: x + np.int16(2),
    lambda x: x * np.float32(2),
    lambda x: x.astype(np.float16) * np.float32(2),
    lambda x: x * np.pi,
])  # fmt: skip
def test_numbers_of_numpys_have_their_element_types(function):
    """They were taken for Python's, which change none: `x * np.sqrt(2)` was float32."""
    x = GIVEN["x"]
    found, wanted = tilecore.compute(function)(x), function(x)
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-6)


def test_what_is_written_in_place_keeps_its_type_beside_numbers_of_numpys():
    def function(x):
        x += np.float64(1)
        return x * 2

    x = GIVEN["x"].copy()
    found = tilecore.compute(function)(x)
    assert (x.dtype, found.dtype) == (np.float32, np.float32)
    np.testing.assert_allclose(found, (GIVEN["x"] + 1) * 2, rtol=1e-6)


def test_a_number_of_numpys_among_the_arguments_has_its_type():
    computation = tilecore.compute(lambda x, t: x * t)
    for t in (2.0, np.float64(3), np.float32(4), 5.0, np.float64(6)):
        found, wanted = computation(GIVEN["x"], t), GIVEN["x"] * t
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_what_stands_behind_a_plus_is_a_copy():
    """There was no unary plus: a TypeError of Python's."""

    def function(x):
        y = +x
        y += 1
        return x * 2, y

    x = GIVEN["x"].copy()
    for one, other in zip(tilecore.compute(function)(x), function(GIVEN["x"].copy()), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    np.testing.assert_array_equal(x, GIVEN["x"])
    tensor = torch.from_numpy(x)
    found = tilecore.compute(lambda t: (+t).relu())(tensor)
    torch.testing.assert_close(found, tensor.relu())


COLUMNS = {  # forms of a matrix times a single column, and how their kernels are called
    "in rows": (lambda a, v: a @ v, (37, 100), (100,), "sum"),
    "of rows of three": (lambda a, v: a @ v, (1000, 3), (3,), "sum"),
    "a column of two axes": (lambda a, v: a @ v, (37, 100), (100, 1), "sum"),
    "of which much follows": (
        lambda a, v: np.exp(-(a - a.mean(0)) @ v) + 1,
        (37, 100),
        (100,),
        "sum",
    ),
    "transposed": (lambda a, v: a.T @ v, (100, 37), (100,), "product"),
    "long": (lambda a, v: a @ v, (1100, 2000), (2000,), "product"),
    "batched": (lambda a, v: a @ v, (3, 37, 100), (3, 100, 1), "sum"),
    "of a batch of columns": (lambda a, v: a @ v, (37, 100), (3, 100, 1), "sum"),
    "of a batch that is long": (lambda a, v: a @ v, (2, 1100, 2000), (2000,), "product"),
    "of a batch that lies transposed": (
        lambda a, v: a.transpose(0, 2, 1) @ v,
        (2, 50, 40),
        (50,),
        "product",
    ),
    "for all of a batch": (lambda a, v: a @ v, (3, 37, 100), (100,), "sum"),
    "of two rows": (lambda a, v: v @ a @ v, (100, 100), (100,), "sum"),
    "a number": (lambda a, v: a @ v, (100,), (100,), "sum"),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_matrix_times_a_column(name, dtype):
    """A product of as many columns as lanes took 2 to 10 times as long."""
    function, *shapes, kernel = COLUMNS[name]
    a, v = (np.random.default_rng(0).standard_normal(shape).astype(dtype) for shape in shapes)
    computation = tilecore.compute(function)
    found, wanted = computation(a, v), function(a, v)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    exact = function(a.astype(np.float64), v.astype(np.float64))
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-12 if dtype is np.float64 else 1e-4)
    kernels = [line for line in computation.explain(a, v).splitlines() if line[0] != " "]
    assert any(kernel in line for line in kernels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_matrix_of_torch_times_a_column(dtype):
    a, v = torch.randn(64, 96).to(dtype), torch.randn(96).to(dtype)
    for function in (torch.mv, torch.matmul, lambda a, v: a.t()[:, :64] @ v[:64]):
        found = tilecore.compute(function)(a, v)
        wanted = function(a.double(), v.double())
        assert found.dtype == dtype
        closely = 1e-4 if dtype == torch.float32 else 0.1
        torch.testing.assert_close(found.double(), wanted, rtol=closely, atol=closely)


def test_gradients_of_a_matrix_times_a_column_are_torchs():
    a, v = torch.randn(64, 96, requires_grad=True), torch.randn(96, requires_grad=True)

    def loss(a, v):
        return (torch.sigmoid(a @ v) ** 2).sum()

    wanted = torch.autograd.grad(loss(a, v), (a, v))
    compiled = torch.compile(loss, backend="tilecore")
    found = torch.autograd.grad(compiled(a, v), (a, v))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, t: np.exp(-x * t).sum(axis=1),
        lambda x, t: (1 - t) * x + t**2 * x[::-1],
        lambda x, t: np.where(x > t, x, t) + np.maximum(x, t),
        lambda x, t: x * np.float32(2) + t * np.ones_like(x),
        lambda x, t: x @ x.T * t,
    ],
)
def test_floats_that_vary_need_no_plans_of_their_own(function, dtype):
    x, reads = GIVEN["x"].astype(dtype), itertools.count()
    computation = tilecore.compute(lambda x, t: (next(reads), function(x, t))[1])
    for t in (0.1, 0.2, 0.35, 0.4, 0.5, 0.7):
        found, wanted = computation(x, t), function(x, t)
        assert (type(found), found.dtype) == (np.ndarray, wanted.dtype)
        closely = 1e-13 if dtype is np.float64 else 2e-5
        np.testing.assert_allclose(found, wanted, rtol=closely, atol=closely)
    assert next(reads) == 3


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, t: x + np.full(x.shape, t),
        lambda x, t: x * (2 if isinstance(t, float) and isinstance(t * 2, float) else 3),
        lambda x, t: x if t > 0.3 else -x,
        lambda x, t: x * round(t, 1) + math.sin(t),
        lambda x, t: np.hypot(x, t),
        lambda x, t: written(x.copy(), t),
        lambda x, t: (x * t, t),
        lambda x, t: np.quantile(x, t),
        lambda x, t: (x > 0) * t,
        lambda x, t: np.where(x > t, t, 0.0),
    ],
)
def test_floats_that_vary_are_what_they_are_to_python_and_numpy(function):
    computation, x = tilecore.compute(function), GIVEN["d"]
    for t in (0.1, 0.2, 0.35, 0.4, 0.5):
        found, wanted = computation(x, t), function(x, t)
        for one, other in zip(*((v if isinstance(v, tuple) else (v,)) for v in (found, wanted)),
                              strict=True):  # fmt: skip
            assert np.asarray(one).dtype == np.asarray(other).dtype
            np.testing.assert_allclose(one, other, rtol=1e-12)


def written(x, t):
    x[0] = t
    x[:, 1] += t
    return x


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda i: i / 2 + 0.5, "i"),
        (lambda x: (x > 0) * 0.5, "x"),
        (lambda x, i: x[:1] * i[:1, None], "xi"),
        (lambda x, q: x[:6, :16] * q, "xq"),
        (lambda x: np.where(x > 0, 0.1, 0.2), "x"),
        (lambda x, d: x[:, :1] + d[:24, :1], "xd"),
    ],
)
def test_element_types_are_those_of_numpy(function, names):
    given = [GIVEN[name] for name in names]
    found, wanted = tilecore.compute(function)(*given), function(*given)
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_who_computes_is_told():
    said = str(tilecore.compute(lambda x: np.sort(x) * 2).explain(GIVEN["x"]))
    assert "NumPy's sort of (24, 64)" in said


# --- what is written ------------------------------------------------------------------------------


def sorted_in_place(x):
    z = x.copy()
    z.sort(axis=1)
    return z * 2


def shifted(x):
    z = np.zeros_like(x)
    z[1:] = x[:-1]
    z[0].fill(7)
    return z + x


def halves(x):
    out = np.empty_like(x)
    out[:, :32] = x[:, :32] * 2
    out[:, 32:] = x[:, 32:] * 3
    return out


def messages(x, y, i):
    sums = np.zeros_like(x)
    np.add.at(sums, i, y[i] * 2)
    np.add.at(sums, i - 24, y[:1])
    return sums


def added_one_by_one(x, i):
    sums = np.zeros_like(x)
    np.add.at(sums, (i, i % 24), 1)
    return sums


MASK = RNG.standard_normal(64) > 0


def changed_by_functions(x, i):
    z = x * 2
    np.put(z, [1, 5], 7)
    z.put(i, 3)
    np.fill_diagonal(z, 4)
    np.putmask(z, z < -1, -1)
    np.put_along_axis(z, np.argmax(z, axis=1)[:, None], 0, axis=1)
    return z * 1


def seen_before_it_is_written(x):
    diagonal = np.diagonal(x)
    x += 1
    return diagonal * 1


def overwritten(x, y):
    x += 1
    np.maximum(x, y, out=y, where=x > 0)
    np.multiply(x, y, out=x)
    np.copyto(y, x)
    return x.sum()


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (sorted_in_place, "x"), (shifted, "x"), (halves, "x"), (messages, "xyi"),
        (added_one_by_one, "xi"), (overwritten, "xy"), (changed_by_functions, "xi"),
        (lambda x: np.zeros_like(x), "x"),
        (lambda x: (np.full_like(x, 2), np.ones_like(x, dtype=int) + 1, x * 2), "x"),
    ],
)  # fmt: skip
def test_arrays_are_written_in_place(function, names):
    check(function, names)


def test_what_numpy_sees_of_an_array_is_what_was_there():
    """It holds what the array held when it was looked at, whatever is written to that later."""
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    found = tilecore.compute(seen_before_it_is_written)(x)
    assert found.tolist() == [0, 5, 10, 15]
    assert x[0, 0] == 1


def test_sums_of_rows_are_a_kernel():
    plan = tilecore.compute(messages).plan(*(GIVEN[name] for name in "xyi"))
    calls = [step.node.op for step in plan.steps if isinstance(step, Called)]
    assert "sorted_rows" in calls
    assert "index_put" not in calls


# --- sizes that vary ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.sort(x, axis=0) * 2,
        lambda x: np.pad(x, 1) + 1,
        lambda x: x.repeat(2, axis=0).std(axis=1),
        lambda x: np.split(x, 2, axis=1)[1] / x.shape[0],
    ],
)
def test_rows_may_vary(function):
    computation = tilecore.compute(function)
    for rows in (3, 5, 9, 11, 14):
        x = RNG.standard_normal((rows, 64)).astype(np.float32)
        np.testing.assert_allclose(computation(x), function(x), rtol=1e-4, atol=1e-5)
    assert len({stage.program.text for plan in computation.plans for stage in plan.stages}) < 5


# --- element types --------------------------------------------------------------------------------

TYPED = {
    "number": lambda x: x + np.float32(1),
    "integer": lambda x: x * np.int64(2),
    "chosen": lambda x: np.where(x > 0, np.float32(2), x),
    "square": lambda x: x**2,
    "power": lambda x: np.power(x, 2),
    "root": np.sqrt,
    "rounded": np.rint,
    "inverse": lambda x: 1 / x,
    "reciprocal": lambda x: np.reciprocal(x.astype(x.dtype) + x),
    "norm": lambda x: np.linalg.norm(x, 1, 1),
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(0),
    "shifted": lambda x: (x >> 1) & 3,
    "halved": lambda x: x / 2,
    "converted": lambda x: (x.astype(np.float32) * 2).astype(x.dtype),
    "copied": lambda x: np.concatenate([np.zeros_like(x), x])[1:, ::2],
    "taken": lambda x: np.take(TABLE, x * 1),
}


@pytest.mark.few(20)
@pytest.mark.parametrize("name", TYPED)
@pytest.mark.parametrize("kind", ["bool", "int8", "uint8", "int16", "uint16", "uint32", "uint64"])
def test_element_types_are_numpys(name, kind):
    function = TYPED[name]
    x = RNG.integers(1, 4, (6, 16)).astype(kind)
    try:
        with np.errstate(all="ignore"):
            wanted = function(x)
    except TypeError:
        pytest.skip("NumPy refuses it")
    with np.errstate(all="ignore"):
        found = tilecore.compute(function)(x)
        of_comparison = tilecore.compute(lambda y: function((y > 0).astype(y.dtype) * y))(x)
    for array in (found, of_comparison):
        assert array.dtype == wanted.dtype
        np.testing.assert_array_equal(array, wanted)


@pytest.mark.parametrize("function", [np.exp, np.rint, np.floor, np.reciprocal, lambda b: b**2])
def test_numbers_of_comparisons_have_numpys_types(function):
    def of_comparison(x):
        return function(x > 0)

    x = RNG.standard_normal((6, 16)).astype(np.float32)
    with np.errstate(all="ignore"):
        wanted, found = of_comparison(x), tilecore.compute(of_comparison)(x)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: np.unique(x), "found `numpy.unique`"),
        (lambda x: np.nonzero(x), "found `numpy.nonzero`"),
        (lambda x: x[x > 0], "elements that a mask picks"),
        (lambda x: HELD[x.argmax(1)], "one whose elements NumPy asks for"),
        (lambda x: HELD.dot(x.T), "one whose elements NumPy asks for"),
        (lambda x: np.zeros(3, like=x) + x[0, :3], "`numpy.zeros with like=`"),
        (lambda x: x + np.random.rand(64).astype(np.float32), "found `numpy.random`"),
        (lambda x: x if x.sum() > 0 else -x, "where Python decides"),
        (lambda x: np.sort(x, axis=3), "axis 3 is out of bounds"),
        (lambda x: np.flip(x, 2), "axis 2 is out of bounds"),
        (lambda x: np.add.at(HELD, [1], x[0]), "`numpy.add.at` of another one"),
        (lambda x: np.subtract.at(x, [0], 1), "`numpy.subtract.at`"),
        (lambda x: np.put(HELD, [1], x[0, :1]), "`numpy.put` of another one"),
        (lambda x: x if np.allclose(x, 0) else -x, "functions that return arrays"),
        (lambda x: np.array_str(x), "functions that return arrays"),
        (lambda x: np.save("not_written.npy", x), "`numpy.save`"),
        (lambda x: x.tobytes(), "`Tensor.tobytes`"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told_with_its_line(function, said):
    with pytest.raises(TileError) as caught:
        tilecore.compute(function)(GIVEN["x"])
    assert said in caught.value.message
    if "numpy.random" not in said:
        assert caught.value.span.file == __file__


def test_results_whose_shape_follows_from_elements_are_refused_at_the_call():
    """Of zeros and ones there are as many as asked for, of other integers more."""
    counted = tilecore.compute(lambda i, x: np.bincount(i, minlength=4) * x)
    few = np.array([0, 3, 1, 1])
    assert counted(few, np.float64(2) * np.ones(4)).tolist() == [2, 4, 0, 2]
    with pytest.raises(ArgumentError, match=r"`numpy.bincount`.*\(4,\).*found \(8,\)") as caught:
        counted(np.array([0, 7, 1, 1]), np.ones(4))
    assert caught.value.span.file == __file__


def test_a_mask_that_the_function_holds_may_change():
    mask = np.arange(64) % 2 == 0
    picked = tilecore.compute(lambda x: x[:, mask] * 2)
    for _ in range(3):
        x = GIVEN["x"]
        np.testing.assert_array_equal(picked(x), x[:, mask] * 2)
        mask[RNG.integers(0, 64)] ^= True


def test_arrays_of_other_classes_are_refused():
    """Their functions mean something else: a mask would be left out."""
    x = np.ma.masked_array(GIVEN["x"], GIVEN["x"] > 0)
    doubled = tilecore.compute(lambda x: x * 2)
    for _ in range(2):
        with pytest.raises(TypeMismatch, match=r"`x` as an .* own class, found MaskedArray"):
            doubled(x)
        doubled(GIVEN["x"])


def test_what_numpy_refuses_of_elements_is_told():
    solved = tilecore.compute(lambda a: np.linalg.inv(a) * 2)
    with pytest.raises(ArgumentError, match="Singular matrix"):
        solved(np.zeros((4, 4), np.float32))


def test_tensors_of_torch_are_none_of_numpys():
    """Methods that both have keep the meaning that those of the call's tensors have."""
    x = GIVEN["x"]
    assert tilecore.compute(lambda x: x.std(0))(x).shape == (64,)
    np.testing.assert_allclose(
        tilecore.compute(lambda x: x.var(0))(torch.from_numpy(x)), x.var(0, ddof=1), rtol=1e-4
    )
    np.testing.assert_allclose(tilecore.compute(lambda x: x.var(0))(x), x.var(0), rtol=1e-4)
    with pytest.raises(UnsupportedSyntax, match=r"`numpy\.split`"):
        tilecore.compute(lambda x: np.split(x, 2)[0])(torch.from_numpy(x))
