"""Kernels in code that torch compiles and exports: one node of the graph, right results."""

import numpy as np
import pytest
import torch

import tilecore
import tilecore.language as T
from tilecore import kernels


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


@tilecore.jit(out_idx=[-1])
def scaled(rows, columns, factor=2.0):
    @T.prim_func
    def scale(X: T.Tensor((rows, columns), "float32"), Y: T.Tensor((rows, columns), "float32")):
        with T.Kernel(rows) as i:
            for j in T.Parallel(columns):
                Y[i, j] = X[i, j] * factor

    return scale


@tilecore.jit(out_idx=[1, 2])
def sum_and_product(dtype="float32"):
    n, m = T.dynamic("n"), T.dynamic("m")

    @T.prim_func
    def both(
        X: T.Tensor((n, m), dtype), S: T.Tensor((m, n), dtype), P: T.Tensor((n, m + 1), dtype),
        Y: T.Tensor((n, m), dtype), shift: T.float32,
    ):  # fmt: skip
        with T.Kernel(n) as i:
            for j in T.Parallel(m):
                S[j, i] = X[i, j] + Y[i, j] + shift
                P[i, j + 1] = X[i, j] * Y[i, j]
            P[i, 0] = 0.0

    return both


@pytest.mark.few(1)  # other tests here use inductor
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_call_is_one_node_of_one_graph(backend):
    kernel = scaled(5, 33)

    def model(x):
        return kernel(torch.sin(x)) + kernel(x.cos() @ torch.ones(33, 33))

    x = torch.randn(5, 33)
    want = 2 * torch.sin(x) + 2 * (x.cos() @ torch.ones(33, 33))
    found = torch.compile(model, fullgraph=True, backend=backend)(x)
    torch.testing.assert_close(found, want)
    explained = torch._dynamo.explain(model)(x)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)


@pytest.mark.exhaustive
def test_sizes_of_the_call_give_those_of_several_outputs():
    kernel = sum_and_product()

    def model(x, y):
        s, p = kernel(x * 1.0, y, 3.0)
        return s.relu(), p + 1

    from torch._dynamo.testing import CompileCounterWithBackend  # takes seconds

    counted = CompileCounterWithBackend("inductor")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counted)
    for n, m in ((4, 7), (9, 5), (16, 3)):
        x, y = torch.randn(n, m), torch.randn(n, m)
        s, p = compiled(x, y)
        torch.testing.assert_close(s, (x + y + 3).relu().T.contiguous())
        torch.testing.assert_close(p[:, 1:], x * y + 1)
        assert (p[:, 0] == 1).all()
    assert counted.frame_count == 1


@pytest.mark.exhaustive
def test_given_outputs_are_written_in_place():
    kernel = scaled(3, 8)

    def model(x, y):
        assert kernel(x + 1, y) is y
        return y + 1

    x, y = torch.randn(3, 8), torch.zeros(3, 8)
    found = torch.compile(model, fullgraph=True)(x, y)
    torch.testing.assert_close(y, 2 * (x + 1))
    torch.testing.assert_close(found, y + 1)


@pytest.mark.exhaustive
def test_programs_without_outputs_and_tensors_read_and_written():
    @T.prim_func
    def grow(X: T.Tensor((16,), "int32"), by: T.int32):
        with T.Kernel(1):
            for i in T.Parallel(16):
                X[i] = X[i] + by

    kernel = tilecore.compile(grow)

    def model(x, count):
        y = x + 1
        assert kernel(y, count) is None
        kernel(y, 10)
        return y * 2

    x = torch.arange(16, dtype=torch.int32)
    for count in (5, 6, 7):
        torch.testing.assert_close(
            torch.compile(model, fullgraph=True)(x, count), (x + 11 + count) * 2
        )
    torch.testing.assert_close(x, torch.arange(16, dtype=torch.int32))


def test_strides_are_those_that_the_kernel_takes():
    kernel = scaled(6, 4)

    def model(x):
        return kernel(x.T.contiguous()) + kernel((x.T + 1).contiguous())

    x = torch.randn(4, 6)
    torch.testing.assert_close(torch.compile(model, fullgraph=True)(x), 4 * x.T + 2)


def test_exported_programs_are_saved_and_loaded(tmp_path):
    kernel = scaled(4, 4)

    class Model(torch.nn.Module):
        def forward(self, x):
            return kernel(x) + 1

    x = torch.randn(4, 4)
    torch.export.save(torch.export.export(Model(), (x,)), tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    torch.testing.assert_close(loaded.module()(x), 2 * x + 1)
    assert str(kernel.torch_op) in str(loaded.graph)


def test_the_operator_is_the_kernel():
    kernel = sum_and_product()
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    for ours, found in zip(kernel(x, y, 0.5), kernel.torch_op(x, y, 0.5), strict=True):
        torch.testing.assert_close(ours, found, rtol=0, atol=0)
    torch.library.opcheck(
        kernel.torch_op, (x, y, 0.5), test_utils=("test_schema", "test_faketensor")
    )
    assert sum_and_product().torch_op is kernel.torch_op
    assert str(kernel.torch_op).startswith("tilecore.both_")


def test_kernels_of_one_artifact_that_keep_other_weights_are_other_operators():
    gemm = kernels.get("gemm")
    problem = gemm.parse_problem({"m": 70, "n": 90, "k": 100})
    kernel = tilecore.compile(gemm.program(problem, gemm.default_config()), out_idx=-1)
    weights = [torch.randn(100, 90) for _ in range(2)]
    layers = [kernel.keep(B=w) for w in weights]

    def model(x):
        return layers[0](x) - layers[1](x) + kernel(x, weights[0])

    x = torch.randn(70, 100)
    want = (2 * x.double() @ weights[0].double() - x.double() @ weights[1].double()).float()
    torch.testing.assert_close(
        torch.compile(model, fullgraph=True, backend="aot_eager")(x), want, rtol=1e-4, atol=1e-4
    )
    assert len({str(k.torch_op) for k in (*layers, kernel)}) == 3


def test_wrong_tensors_are_told_when_the_graph_is_made():
    kernel = sum_and_product()
    with pytest.raises(Exception, match=r"argument 3 `Y`: expected n = 3, as in `X`"):
        torch.compile(lambda x, y: kernel(x, y, 0.0), fullgraph=True)(
            torch.randn(3, 4), torch.randn(5, 4)
        )


def test_there_is_no_gradient_as_in_a_plain_call():
    kernel = scaled(2, 2)
    x = torch.randn(2, 2, requires_grad=True)
    for call in (
        kernel,
        kernel.torch_op,
        torch.compile(lambda t: kernel(t), fullgraph=True, backend="aot_eager"),
    ):
        assert not call(x).requires_grad
    compiled = torch.compile(lambda t: (kernel(t) + t).sum(), fullgraph=True, backend="aot_eager")
    compiled(x).backward()
    torch.testing.assert_close(x.grad, torch.ones(2, 2))


@tilecore.jit
def added(X, Y=None, by=1.0, block=8, shift: T.float32 = 0.0):
    n, m = T.const("n, m")
    X: T.Tensor((n, m), "float32")
    Z = T.empty((n, m), "float32")
    with T.Kernel(T.ceildiv(n, block)) as b:
        for i, j in T.Parallel(block, m):
            Z[b * block + i, j] = X[b * block + i, j] + by + shift
    return Z


@pytest.mark.exhaustive
def test_functions_in_the_eager_style_are_nodes_too():
    def model(x):
        y = added(x.sin(), by=2.0, shift=0.5)
        return added(added(y, None, 3.0, 16, 1.0), shift=0.25, block=4) * 2

    x = torch.randn(9, 7)
    torch.testing.assert_close(
        torch.compile(model, fullgraph=True, backend="aot_eager")(x), (x.sin() + 7.75) * 2
    )
    explained = torch._dynamo.explain(model)(x)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for n in (3, 5, 8, 2):  # another size is another kernel
        x = torch.randn(n, 7)
        torch.testing.assert_close(compiled(x), (x.sin() + 7.75) * 2)


@pytest.mark.exhaustive
def test_what_chooses_its_kernel_otherwise_breaks_the_graph():
    def model(x):
        return added(x + 1) * scaled(4, 4)(x)  # a default that the kernel takes; a lazy function

    x = torch.randn(4, 4)
    torch.testing.assert_close(torch.compile(model, backend="aot_eager")(x), (x + 2) * 2 * x)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(model, fullgraph=True, backend="aot_eager")(x)


def test_numpy_arrays_and_plain_calls_are_untouched():
    kernel = scaled(3, 5)
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    np.testing.assert_array_equal(kernel(x), 2 * x)
