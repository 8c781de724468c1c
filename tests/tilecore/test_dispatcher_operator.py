"""Dispatchers in code that torch compiles and exports: one node, chosen at every call."""

import pytest
import torch

import tilecore
import tilecore.language as T
from tests.tilecore.test_dispatcher import FEW, MANY, right, served, table
from tilecore import kernels
from tilecore.errors import InvalidDispatchTable
from tilecore.tile_config import TileConfig

BLOCKS = [TileConfig.of(block=8), TileConfig.of(block=32)]


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


@pytest.mark.few(1)  # other tests here use inductor
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_one_graph_runs_the_kernels_of_all_sizes(backend):
    own = table(sizes=(32, 33), created_at=f"for {backend}")  # equal tables share an operator
    dispatcher, b = tilecore.Dispatcher(own), torch.randn(70, 96)

    def model(a):
        return dispatcher(a * 2, b).relu() + 1

    from torch._dynamo.testing import CompileCounterWithBackend  # takes seconds

    counted = CompileCounterWithBackend(backend)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counted)
    for m in (32, 40, 65, 7, 33):
        a = torch.randn(m, 70)
        want = (2 * a.double() @ b.double()).relu() + 1
        torch.testing.assert_close(compiled(a).double(), want, rtol=1e-4, atol=1e-4)
    assert counted.frame_count == 1
    assert set(dispatcher._calls) == {32, 40, 65, 7, 33}


def test_given_outputs_are_written_and_the_operator_is_the_dispatcher():
    dispatcher = tilecore.Dispatcher(table())
    a, b = torch.randn(40, 70), torch.randn(70, 96)

    def model(a, out):
        return dispatcher(a + 1, b, out) is out, out + 1

    out = torch.full((40, 96), float("nan"))
    is_out, after = torch.compile(model, fullgraph=True)(a, out)
    right(out, a + 1, b)
    assert is_out
    torch.testing.assert_close(after, out + 1)
    torch.testing.assert_close(dispatcher.torch_op(a, b), dispatcher(a, b), rtol=0, atol=0)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(dispatcher.torch_op, (a, b), test_utils=tests)


def test_equal_tables_share_an_operator_and_exported_programs_find_it(tmp_path):
    one, same, other = (tilecore.Dispatcher(table(sizes=s)) for s in ((1, 9), (1, 9), (1, 8)))
    assert one.torch_op is same.torch_op
    assert one.torch_op is not other.torch_op
    assert tilecore.Dispatcher(table(sizes=(1, 9)), shapes="static").torch_op is not one.torch_op

    class Model(torch.nn.Module):
        def forward(self, a, b):
            return one(a, b) + 1

    b = torch.randn(70, 96)
    rows = {"a": {0: torch.export.Dim("m", min=2, max=500)}, "b": None}
    found = torch.export.export(Model(), (torch.randn(9, 70), b), dynamic_shapes=rows)
    torch.export.save(found, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    for m in (3, 9, 77):
        a = torch.randn(m, 70)
        right(loaded(a, b) - 1, a, b)
    assert str(one.torch_op) in str(found.graph)


def test_programs_that_take_no_symbols_say_their_sizes_by_three_traces():
    config = kernels.get("attention").default_config()
    problem = {"batch": 1, "heads": 2, "kv_heads": 2, "dim": 16, "causal": True}
    shapes = tuple(served(s, 0) for s in ((8, 8), (16, 24)))
    ours = table(
        "attention", problem, (config,), dims=("seq_q", "seq_kv"), shapes=shapes,
        ranges=(), rule="nearest",
    )  # fmt: skip
    dispatcher = tilecore.Dispatcher(ours)
    extents = {spec.name: spec.shape for spec in dispatcher.specs}
    assert extents["Q"] == (1, 2, "seq_q", 16)
    assert extents["K"] == (1, 2, "seq_kv", 16)
    compiled = torch.compile(lambda *t: dispatcher(*t) * 2, fullgraph=True, backend="aot_eager")
    for rows in (16, 5):  # all that a causal program takes are at most as many as keys
        q, k, v = (torch.randn(1, 2, n, 16) for n in (rows, 24, 24))
        torch.testing.assert_close(compiled(q, k, v), dispatcher(q, k, v) * 2, rtol=0, atol=0)


def padded(m, block):
    """Return a program whose output is padded in a way that takes no symbol."""
    rows = {16: 64, 32: 64, 33: 96}.get(int(m), 32 * -(-int(m) // 32))

    @T.prim_func
    def pad(X: T.Tensor((m, 8), "float32"), Y: T.Tensor((rows, 8), "float32")):
        with T.Kernel(rows) as i:
            for j in T.Parallel(8):
                Y[i, j] = T.if_then_else(i < m, X[T.min(i, m - 1), j], 0.0)

    return pad


@pytest.mark.exhaustive
def test_where_sizes_of_outputs_are_not_known_ahead_the_graph_breaks():
    ours = table(
        "pad", {}, BLOCKS, sizes=(8, 16), program_digest="",
        shapes=tuple(served((m,), i) for i, m in enumerate((8, 16))),
    )  # fmt: skip
    dispatcher = tilecore.Dispatcher(ours, program=lambda p, c: padded(p["m"], c["block"]))
    with pytest.raises(InvalidDispatchTable, match="Y that are m or constant"):
        _ = dispatcher.torch_op
    x = torch.randn(16, 8)
    found = torch.compile(lambda x: dispatcher(x) + 1, backend="aot_eager")(x)
    torch.testing.assert_close(found[:16], x + 1)
    assert found.shape == (64, 8)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(lambda x: dispatcher(x) + 1, fullgraph=True, backend="aot_eager")(x)


def test_sizes_that_are_refused_are_refused_by_the_operator():
    strict = tilecore.Dispatcher(table(configs=(FEW, MANY)), beyond="error")
    compiled = torch.compile(lambda a, b: strict(a, b), fullgraph=True, backend="aot_eager")
    b = torch.randn(70, 96)
    right(compiled(torch.ones(64, 70), b), torch.ones(64, 70), b)
    with pytest.raises(Exception, match=r"TC507.*m from 1 to 64"):
        compiled(torch.ones(65, 70), b)
