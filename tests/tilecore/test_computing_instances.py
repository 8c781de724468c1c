"""Tensors that a function is read with are instances of torch.Tensor, and none of its real ones."""

import copy
import functools
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import tilecore
import tilecore.language as T
from tilecore.errors import ArgumentError, TileError, TypeMismatch, UnsupportedSyntax


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


X = torch.linspace(-2, 2, 32).reshape(4, 8)
HELD = torch.linspace(0.5, 3, 32).reshape(4, 8)
TABLE = torch.linspace(-1, 1, 16 * 8).reshape(16, 8)
ROWS = torch.tensor([3, 1, 2, 0])


def agrees(function, *args):
    """Return whether a computation returns what the function itself does, in float64."""
    whole = [a.double() if a.is_floating_point() else a.clone() for a in args]
    wanted = function(*whole)
    found = tilecore.compute(function)(*(a.clone() for a in args))
    torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-5, atol=1e-5)
    return True


# --- what code asks of them -----------------------------------------------------------------------


def kind_decides(x):
    return x * 2 if isinstance(x, torch.Tensor) else x * 3


def kind_decides_of_what_is_computed(x):
    return x.exp() * 2 if torch.is_tensor(x @ x.T) else x * 3


def kind_of_what_is_created_decides(x):
    return x * 2 if isinstance(torch.zeros(3), torch.Tensor) else x * 3


def it_is_no_parameter(x):
    return x * 3 if isinstance(x, torch.nn.Parameter) else x * 2


def buffers(x):
    module = torch.nn.Module()
    module.register_buffer("state", x * 2)
    module.state = module.state + 1
    return module.state * 2


def parameters(x):
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(x * 2)
    return module.weight + 1


def attributes(x):
    is_plain = x.layout is torch.strided and x.is_cpu and not (x.is_meta or x.is_sparse_csr)
    return x * 2 if is_plain else x * 3


def sizes_in_bytes(x):
    return x * (x.nbytes // x.itemsize)


def transposed(x):
    return x.H + x.mH + x.real.T


def data_shares_memory(x):
    y = x + 1
    y.data.mul_(2)
    return y


def unbound_methods(x):
    return torch.Tensor.add(x, 1) + torch.Tensor.__mul__(x, x)


def copies(x):
    first, second = copy.deepcopy(x + 1), copy.copy(x)
    first += 1
    return first + second


def created_from_one(x):
    y = torch.tensor(x, dtype=x.dtype)
    y += 1
    return y * torch.as_tensor(x) + torch.asarray(x)


def keys_and_members(x):
    return {x: x * 2}[x] if any(x is one for one in (1, x)) else x


def operators_of_python(x):
    return +x + torch.where(~(x > 0), x, -x)


@pytest.mark.parametrize(
    "function",
    [
        kind_decides, kind_decides_of_what_is_computed, kind_of_what_is_created_decides,
        it_is_no_parameter, buffers, parameters, attributes, transposed, data_shares_memory,
        unbound_methods, copies, keys_and_members, operators_of_python,
    ],
)  # fmt: skip
def test_code_that_asks_for_the_kind_or_its_attributes(function):
    x = X[:, :4] if function is transposed else X
    assert agrees(function, x)


@pytest.mark.filterwarnings("ignore:To copy construct")
def test_tensors_that_are_made_of_one():
    assert agrees(created_from_one, X)


def test_bytes_are_those_of_the_call():
    assert torch.equal(tilecore.compute(sizes_in_bytes)(X), X * 32)


def test_integers_are_inverted_and_shifted():
    def changed(i):
        j = i << 1
        j >>= 2
        return ~i + j + (1 << i)

    assert torch.equal(tilecore.compute(changed)(ROWS), changed(ROWS))


@pytest.mark.parametrize("name", ["requires_grad", "grad", "is_leaf", "_version", "grad_fn"])
def test_what_differs_between_calls_is_no_attribute(name):
    def asked(x):
        return x * 3 if hasattr(x, name) else x * 2

    assert torch.equal(tilecore.compute(asked)(X), X * 2)
    with pytest.raises(UnsupportedSyntax, match=rf"`Tensor\.{name}`"):
        tilecore.compute(lambda x: x * bool(getattr(x, name)))(X)


@pytest.mark.parametrize("name", ["data", "grad"])
def test_such_attributes_are_not_set(name):
    def changed(x):
        setattr(x, name, HELD)
        return x * 2

    with pytest.raises(UnsupportedSyntax, match=rf"`Tensor\.{name}"):
        tilecore.compute(changed)(X)


@pytest.mark.parametrize("function", [torch.Tensor.data_ptr, torch.from_dlpack, pickle.dumps])
def test_they_have_no_memory(function):
    with pytest.raises(UnsupportedSyntax):
        tilecore.compute(lambda x: x * bool(function(x)))(X)


def test_it_says_what_it_is():
    said = []

    def told(x):
        said.extend((repr(x), f"{x}"))
        return x * 2

    tilecore.compute(told, dynamic=True)(X)
    assert said == ["<a tensor of a computation that is read: (4, 8) float32>"] * 2


def test_arrays_are_no_tensors():
    def told(x):
        return x * 3 if isinstance(x, torch.Tensor) else x * 2

    assert np.array_equal(tilecore.compute(told)(X.numpy()), X.numpy() * 2)


# --- beside tensors that the function holds -------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: TABLE.to(x)[i] + x,
        lambda x, i: TABLE.to(x)[i, 1] + x[:, 0],
        lambda x, i: TABLE.to(x)[None, i] * 2 + x,
        lambda x, i: TABLE.to(x)[..., i] * x.sum(),
        lambda x, i: x[ROWS] + x[i],
        lambda x, i: HELD.to(x) + x - (HELD.to(x) @ x.T).sum(-1, keepdim=True),
        lambda x, i: torch.cat([HELD.to(x), x * 2]),
        lambda x, i: HELD.to(x).masked_fill(x > 0, 0) + torch.where(x > 1, HELD.to(x), x),
        lambda x, i: HELD.to(x).index_select(0, i) * x,
        lambda x, i: F.embedding(i, TABLE.to(x)) * F.linear(x, x).sum(),
    ],
)  # fmt: skip
def test_held_tensors_and_those_of_the_call(function):
    assert agrees(function, X, ROWS)


# --- where torch takes a number -------------------------------------------------------------------


def test_numbers_that_no_argument_decides():
    def counted(x):
        two = torch.ones((), dtype=torch.int64) * 2
        count = torch.tensor([two, 3]).sum() - 3
        return (x[:two] + torch.arange(two * 4))[:, count:]

    assert torch.equal(tilecore.compute(counted)(X), counted(X))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: torch.arange(i[0]) * x,
        lambda x, i: x[: i[0]],
        lambda x, i: torch.tensor([x[0, 0], 1.0]) * x,
        lambda x, i: np.asarray(x) * 2,
        lambda x, i: x if 1.0 in x else x * 2,
    ],
)
def test_numbers_that_arguments_decide_are_refused(function):
    with pytest.raises(UnsupportedSyntax, match="do not depend on elements"):
        tilecore.compute(function)(X, ROWS)


# --- torch's own machinery ------------------------------------------------------------------------


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, count):
        ctx.save_for_backward(x)
        return x * x, x, count

    @staticmethod
    def backward(ctx, gradient, *_):
        return 2 * gradient * ctx.saved_tensors[0], None


def test_functions_with_a_gradient_of_their_own():
    def of_squares(x):
        squared, same, count = Squared.apply(x, 3)
        return squared * count + same

    with torch.no_grad():
        assert agrees(of_squares, X)
    x = X.clone().requires_grad_()
    tilecore.compute(lambda x: Squared.apply(x, 3)[0].sum(-1))(x).sum().backward()
    assert torch.allclose(x.grad, 2 * X)


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_checkpoints(is_reentrant):
    def checked(x):
        return checkpoint(torch.exp, x, use_reentrant=is_reentrant) + 1

    with torch.no_grad():
        assert torch.allclose(tilecore.compute(checked)(X), X.exp() + 1)


def test_what_skips_the_hooks_is_refused():
    def skipping(x):
        with torch._C.DisableTorchFunctionSubclass():
            return torch.relu(x)

    with pytest.raises(UnsupportedSyntax, match="`relu` where they are not asked"):
        tilecore.compute(skipping)(X)
    with pytest.raises(UnsupportedSyntax, match="`vmap`"):
        tilecore.compute(torch.vmap(lambda row: row * 2))(X)


def test_computations_within_computations():
    inner = tilecore.compute(lambda x: x.softmax(-1))
    inner(X)
    outer = tilecore.compute(lambda x: inner(x) + inner(x * 2))
    assert torch.allclose(outer(X), X.softmax(-1) + (X * 2).softmax(-1))
    assert len(outer.plan(X).stages) <= 3


@tilecore.jit
def doubled(n):
    @T.prim_func
    def kernel(a: T.Tensor((4, n), "float32"), b: T.Tensor((4, n), "float32")):
        with T.Kernel(1, threads=32):
            for i, j in T.Parallel(4, n):
                b[i, j] = 2 * a[i, j]

    return kernel


def test_kernels_take_none():
    kernel = doubled(8)

    def launched(x):
        y = torch.empty_like(x)
        kernel(x, y)
        return y

    with pytest.raises(ArgumentError, match=r"expected a torch\.Tensor"):
        tilecore.compute(launched)(X)


# --- after the function was read ------------------------------------------------------------------


@functools.cache
def hidden():
    """Return a list that no attribute and no variable leads to."""
    return []


@pytest.mark.parametrize(
    "use",
    [
        lambda t: t + 1, lambda t: HELD + t, lambda t: t[0], lambda t: t.exp(),
        lambda t: torch.cat([HELD, t]), lambda t: t.tolist(), lambda t: np.asarray(t),
        lambda t: t.device, lambda t: copy.deepcopy(t), lambda t: t.add_(1),
        lambda t: t.__setitem__(0, 1), lambda t: HELD.clone().copy_(t),
        lambda t: tilecore.compute(lambda x: x + t)(X), lambda t: tilecore.compute(torch.exp)(t),
    ],
)  # fmt: skip
def test_a_tensor_that_was_kept_says_so(use):
    kept = hidden()
    kept.clear()

    def keeping(x):
        hidden().append(x * 2)
        return hidden()[-1] + 1

    tilecore.compute(keeping)(X)
    assert "a computation that is read" in repr(kept[0])
    with pytest.raises(UnsupportedSyntax, match="stood for such a tensor while a computation"):
        use(kept[0])


def test_an_array_that_was_kept_says_so():
    kept = hidden()
    kept.clear()

    def keeping(x):
        hidden().append(x * 2)
        return hidden()[-1] + 1

    tilecore.compute(keeping)(X.numpy())
    with pytest.raises(UnsupportedSyntax, match="stood for such a tensor while a computation"):
        kept[0] + 1


# --- packages -------------------------------------------------------------------------------------


def of_einops():
    import einops

    return [
        lambda x: einops.rearrange(x, "(a b) c -> a (b c)", a=2) * 2,
        lambda x: einops.reduce(x, "a (b c) -> a b", "mean", b=2),
        lambda x: einops.repeat(x, "a b -> a r b", r=2) + 1,
        lambda x: einops.einsum(x, x, "i j, k j -> i k"),
        lambda x: einops.rearrange([x, x * 2], "l a b -> a b l"),
        lambda x: einops.pack([x, x + 1], "* d")[0],
    ]


@pytest.mark.parametrize("number", range(6))
def test_einops(number):
    pytest.importorskip("einops")
    assert agrees(of_einops()[number], X)


def test_einops_where_sizes_vary():
    einops = pytest.importorskip("einops")
    joined = tilecore.compute(lambda x: einops.rearrange(x, "b (h d) -> b h d", h=2).softmax(-1))
    for rows in (3, 5, 6, 7):
        x = torch.randn(rows, 8)
        assert torch.allclose(joined(x), x.reshape(rows, 2, 4).softmax(-1), atol=1e-6)


class Backend:
    """Finds out what to do with a tensor as einops does: torch is there, and the type is its."""

    def rearranged(self, x):
        torch_there = sys.modules.get("torch")
        if torch_there is None or not isinstance(x, torch_there.Tensor):
            raise RuntimeError(f"Tensor type unknown to einops {type(x)}")
        return x.reshape(2, 2, 8).permute(0, 2, 1).reshape(2, 16)


def test_a_package_that_looks_for_the_kind():
    assert agrees(lambda x: Backend().rearranged(x) * 2, X)


def test_annotations_that_are_checked():
    beartype, jaxtyping = pytest.importorskip("beartype"), pytest.importorskip("jaxtyping")
    rows = jaxtyping.Float[torch.Tensor, "rows columns"]

    def scaled(x, y):
        return x * y

    scaled.__annotations__ = {"x": rows, "y": rows, "return": rows}
    scaled = jaxtyping.jaxtyped(typechecker=beartype.beartype)(scaled)
    assert torch.equal(tilecore.compute(lambda x: scaled(x, x))(X), X * X)
    with pytest.raises(jaxtyping.TypeCheckError):
        tilecore.compute(lambda x: scaled(x, x.T))(X)


@pytest.mark.few(1)
@pytest.mark.parametrize(("rows", "absent"), [
    ("torch.embedding(table, i)", "torch._dynamo"),
    ("torch.nn.functional.embedding(i, table, padding_idx=-1)", "sympy"),
])  # fmt: skip
def test_torchs_compiler_is_not_imported_for_what_is_read(rows, absent):
    code = f"""
        import sys, torch, tilecore
        table, mask = torch.randn(10, 8), torch.ones(8)
        f = tilecore.compute(lambda i: {rows}.relu() * (mask * 2))
        i = torch.tensor([3, 1, 4])
        assert torch.equal(f(i), table[i].relu() * 2)
        assert "{absent}" not in sys.modules
    """
    run = [sys.executable, "-c", textwrap.dedent(code)]
    said = subprocess.run(run, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr


@pytest.mark.parametrize("options", [{}, {"padding_idx": 3}, {"padding_idx": -2, "sparse": True}])
def test_rows_of_a_table(options):
    table, ids = torch.randn(11, 8), torch.randint(0, 11, (3, 5))
    expected = F.embedding(ids, table, **options)
    for rows in (
        lambda i: F.embedding(i, table, **options) * 1,
        lambda i: F.embedding(i.int(), table, **options),
    ):
        assert torch.equal(tilecore.compute(rows)(ids), expected)


def test_rows_of_a_table_that_torch_refuses():
    table, ids = torch.randn(11, 8), torch.randint(0, 11, (3, 5))
    for call, said in (
        (lambda i: F.embedding(i.float(), table), "Long|Int"),
        (lambda i: F.embedding(i, table, max_norm=1.0), "return new tensors"),
    ):
        with pytest.raises(TileError, match=said):
            tilecore.compute(call)(ids)
    with pytest.raises(AssertionError, match="within num_embeddings"):
        tilecore.compute(lambda i: F.embedding(i, table, padding_idx=99))(ids)


# --- what is told of what it refuses --------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x.sum().backward(), "gradient is taken outside of it, found `backward`"),
        (lambda x: torch.autograd.grad(x.sum(), x)[0], "taken outside of it, found `grad`"),
        (lambda x: x.numpy() + 1, "a tensor where Python decides"),
        (lambda x: x.view(torch.int32).zero_() + x, "may have changed"),
    ],
)
def test_what_is_refused_says_why(function, said):
    with pytest.raises(UnsupportedSyntax, match=said):
        tilecore.compute(lambda x: function(x * 1))(torch.randn(3, 4))


def test_sparse_tensors_are_refused_by_name():
    with pytest.raises(TypeMismatch, match=r"`x` of all elements, found torch\.sparse_coo"):
        tilecore.compute(lambda x: x * 2)(torch.eye(3).to_sparse())


def test_bits_as_another_element_type():
    def nearly(x):
        guess = (0x5F3759DF - (x.view(torch.int32) >> 1)).view(torch.float32)
        return guess * (1.5 - 0.5 * x * guess * guess)

    x = torch.rand(3, 8) + 1
    torch.testing.assert_close(tilecore.compute(nearly)(x), nearly(x))
    torch.testing.assert_close(tilecore.compute(lambda x: nearly(x + 1))(x), nearly(x + 1))
