"""Dispatcher: right results at sizes inside and outside the table, and the kernels it takes."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch

import tilecore
import tilecore.language as T
from tilecore import kernels
from tilecore.dispatch_table import DispatchTable, Range, Served
from tilecore.dispatcher import StaleTable
from tilecore.errors import (
    ArgumentError,
    InvalidDispatchTable,
    OutsideDispatchTable,
    TypeMismatch,
)
from tilecore.tile_config import TileConfig

FEW = TileConfig.of(
    block_M=16, block_N=64, block_K=64, num_stages=1, threads=128, micro_m=4, micro_n=2,
    pack_a="none", pack_b="none",
)  # fmt: skip
MANY = FEW.replace(block_M=64, micro_m=6, micro_n=2, pack_a="rows", pack_b="block")
SIZES = [1, 7, 20, 32, 33, 40, 64, 65, 300]  # 1, 32, 33 and 64 are in the table


def served(shape, config):
    return Served(
        shape=shape, weight=0.25, config=config, time_s=1e-5, best_s=1e-5, source="measured",
        best_source="measured", interval_s=(1e-5, 1e-5),
    )  # fmt: skip


def table(kernel="gemm", problem=None, configs=(FEW, MANY), sizes=(1, 32, 33, 64), **changes):
    definition = kernels.KERNELS.get(kernel)
    fixed = {"n": 96, "k": 70} if problem is None else problem
    digest = ""
    if definition is not None and "seq_kv" not in changes.get("dims", ()):
        whole = definition.parse_problem({**fixed, "m": sizes[-1]})
        digest = definition.program_digest(whole)
        fixed = {k: v for k, v in whole.items() if k != "m"}
    middle = len(sizes) // 2
    fields = {
        "kernel": kernel, "program_digest": digest, "problem": fixed, "dims": ("m",), "threads": 0,
        "hardware": "a CPU", "hardware_key": "", "target": "llvm", "toolchain": {},
        "tolerance": 0.05, "created_at": "2026-11-22", "rule": "ranges", "method": "", "reason": "",
        "configs": tuple(configs),
        "ranges": (
            Range(first=sizes[0], last=sizes[middle - 1], config=0),
            Range(first=sizes[middle - 1] + 1, last=sizes[-1], config=1),
        ),
        "shapes": tuple(served((s,), int(i >= middle)) for i, s in enumerate(sizes)),
    }  # fmt: skip
    return DispatchTable(**{**fields, **changes})


def right(c, a, b):
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize("shapes", ["auto", "static", "dynamic"])
def test_every_size_is_computed_right_whatever_serves_it(shapes):
    dispatcher = tilecore.Dispatcher(table(), shapes=shapes)
    b = torch.randn(70, 96)
    for m in SIZES:
        a = torch.randn(m, 70)
        right(dispatcher(a, b), a, b)
        out = torch.full((m, 96), float("nan"))
        assert dispatcher(a, b, out) is out
        right(out, a, b)
        right(torch.from_numpy(dispatcher(a.numpy(), b.numpy())), a, b)


def test_shapes_of_the_table_and_few_rows_have_kernels_of_their_own_others_share_one():
    dispatcher = tilecore.Dispatcher(table())
    extents = {m: dispatcher.kernel_for(m).artifact.manifest.parameters[0].shape for m in SIZES}
    assert {m: s[0] for m, s in extents.items()} == {
        1: 1, 7: 7, 20: "m", 32: 32, 33: 33, 40: "m", 64: 64, 65: "m", 300: "m",
    }  # fmt: skip
    assert dispatcher.kernel_for(m=40) is dispatcher.kernel_for(65)
    assert dispatcher.kernel_for(20) is not dispatcher.kernel_for(40)


def test_all_kernels_are_compiled_ahead():
    sizes = (15, 32, 33, 64)
    dispatcher = tilecore.Dispatcher(table(sizes=sizes))
    assert dispatcher.compile_all() == 7  # four shapes, 16 rows, two configs
    assert dispatcher.compile_all() == 7
    assert tilecore.Dispatcher(table(sizes=sizes), shapes="dynamic").compile_all() == 2
    assert tilecore.Dispatcher(table(sizes=sizes), shapes="static").compile_all() == 4


def test_sizes_choose_their_range_and_beyond_the_table_the_nearest():
    dispatcher = tilecore.Dispatcher(table())
    chosen = [dispatcher.config_for(m) for m in (1, 32, 33, 64, 65, 10_000)]
    assert chosen == [FEW, FEW, MANY, MANY, MANY, MANY]
    assert dispatcher.config_for(m=3) == FEW


def test_sizes_beyond_the_table_can_be_refused_and_no_size_is_below_1():
    strict = tilecore.Dispatcher(table(), beyond="error")
    right(strict(torch.ones(64, 70), torch.ones(70, 96)), torch.ones(64, 70), torch.ones(70, 96))
    with pytest.raises(OutsideDispatchTable, match="m from 1 to 64, found m=65") as caught:
        strict(torch.ones(65, 70), torch.ones(70, 96))
    assert caught.value.code == "TC507"
    with pytest.raises(OutsideDispatchTable, match="m=0"):
        tilecore.Dispatcher(table())(torch.ones(0, 70), torch.ones(70, 96))


def test_calls_that_fit_no_kernel_say_what_was_expected():
    dispatcher = tilecore.Dispatcher(table())
    a, b = torch.ones(7, 70), torch.ones(70, 96)
    dispatcher(a, b)
    cases = [
        ((a,), "2 or 3 arguments"), ((a, b, a, b), "2 or 3 arguments"),
        ((None, b), "axis 0 is `m`"), ((torch.tensor(1.0), b), "axis 0 is `m`"),
        ((a.double(), b), "dtype float32"), ((a, torch.ones(71, 96)), "shape"),
        ((a[:, :69], b), "shape"), ((a, b, torch.ones(8, 96)), "shape"),
    ]  # fmt: skip
    for arguments, said in cases:
        with pytest.raises(ArgumentError, match=said):
            dispatcher(*arguments)
    right(dispatcher(a, b), a, b)


def test_sizes_and_modes_that_make_no_sense_are_refused():
    dispatcher = tilecore.Dispatcher(table())
    for given in ((), (1, 2)):
        with pytest.raises(TypeMismatch, match="a size for m"):
            dispatcher.config_for(*given)
    with pytest.raises(TypeMismatch, match="a size for m"):
        dispatcher.config_for(n=3)
    with pytest.raises(TypeMismatch, match="integers, found m='a'"):
        dispatcher.config_for("a")
    with pytest.raises(OutsideDispatchTable, match="1 at least"):
        dispatcher.config_for(0)
    with pytest.raises(TypeMismatch, match="auto, static, dynamic"):
        tilecore.Dispatcher(table(), shapes="padded")
    with pytest.raises(TypeMismatch, match="nearest, error"):
        tilecore.Dispatcher(table(), beyond="clip")


def test_a_table_on_disk_and_what_is_no_table(tmp_path):
    path = tmp_path / "table.json"
    table().write(path)
    a, b = torch.randn(9, 70), torch.randn(70, 96)
    right(tilecore.Dispatcher(path)(a, b), a, b)
    path.write_text("{}")
    with pytest.raises(InvalidDispatchTable, match=str(path)):
        tilecore.Dispatcher(str(path))
    path.write_text('{"16": {"block_M": 4}}')
    with pytest.raises(InvalidDispatchTable, match="format vllm"):
        tilecore.Dispatcher(path)
    with pytest.raises(InvalidDispatchTable, match="a kernel of the library"):
        tilecore.Dispatcher(table("nothing", {"n": 96, "k": 70}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"configs": (FEW, MANY.replace(block_Q=3))}, r"configs\[1\]: expected knobs .* block_Q"),
        ({"configs": (FEW.replace(block_M="16"), MANY)}, r"configs\[0\]: expected block_M as int"),
        ({"configs": (FEW.replace(pack_a=1), MANY)}, r"configs\[0\]: expected pack_a as str"),
        ({"problem": {"n": 96}}, "problem of gemm, k: expected a dimension, found nothing"),
        ({"problem": {"n": 96, "k": 0}}, "problem of gemm, k: expected an integer"),
        ({"problem": {"n": 96, "k": 70, "q": 1}}, "problem of gemm, q: .* unknown field"),
        ({"dims": ("rows",)}, "problem of gemm, rows"),
    ],
)
def test_tables_that_do_not_fit_their_kernel_are_refused(changes, said):
    whole = {"program_digest": ""} | changes
    base = table()
    fields = {name: getattr(base, name) for name in base.__dataclass_fields__} | whole
    with pytest.raises(InvalidDispatchTable, match=said) as caught:
        tilecore.Dispatcher(DispatchTable(**fields))
    assert caught.value.code == "TC506"


def test_knobs_that_a_table_leaves_out_have_their_defaults():
    bare = TileConfig.of(block_M=32)
    a, b = torch.randn(20, 70), torch.randn(70, 96)
    right(tilecore.Dispatcher(table(configs=(bare, bare)))(a, b), a, b)


def test_another_version_of_the_program_is_doubted():
    with pytest.warns(StaleTable, match="tune again"):
        dispatcher = tilecore.Dispatcher(table(program_digest="0" * 32))
    assert len(dispatcher.doubts) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tilecore.Dispatcher(table()).doubts == ()


def test_a_kernel_whose_program_takes_no_symbols_gets_one_kernel_per_shape():
    config = kernels.get("attention").default_config()
    fixed = {"batch": 1, "heads": 2, "kv_heads": 2, "dim": 16}
    whole = kernels.get("attention").parse_problem({**fixed, "seq_q": 8, "seq_kv": 8})
    shapes = ((8, 8), (32, 40))
    of_two = table(
        "attention", {k: v for k, v in whole.items() if not k.startswith("seq")},
        configs=(config,), sizes=(8, 40), dims=("seq_q", "seq_kv"), rule="nearest", ranges=(),
        shapes=tuple(served(s, 0) for s in shapes), program_digest="",
    )  # fmt: skip
    dispatcher = tilecore.Dispatcher(of_two)
    for rows, keys in ((8, 8), (9, 33)):
        q, k, v = (torch.randn(1, 2, n, 16) for n in (rows, keys, keys))
        expected = torch.nn.functional.scaled_dot_product_attention(
            *(x.double() for x in (q, k, v))
        )
        torch.testing.assert_close(dispatcher(q, k, v).double(), expected, rtol=1e-4, atol=1e-4)
    assert dispatcher.kernel_for(9, 33) is not dispatcher.kernel_for(8, 8)
    found = tilecore.Dispatcher(of_two, shapes="dynamic")(q, k, v)  # its sizes may be symbols
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["gemm_epilogue", "softmax", "rms_norm", "layer_norm"])
def test_other_kernels_of_the_library_serve_sizes_that_were_never_sampled(name):
    definition = kernels.get(name)
    fixed = {"n": 48, "k": 32} if name == "gemm_epilogue" else {"n": 48}
    dispatcher = tilecore.Dispatcher(
        table(name, fixed, configs=(definition.default_config(),) * 2, sizes=(4, 32))
    )
    for m in (4, 20, 33):
        problem = definition.parse_problem({**fixed, "m": m})
        inputs = definition.inputs(problem, np.random.default_rng(m))
        (expected,) = definition.reference(problem, inputs)
        np.testing.assert_allclose(dispatcher(*inputs), expected, rtol=1e-4, atol=1e-4)
    assert dispatcher.kernel_for(20) is not dispatcher.kernel_for(4)


@tilecore.jit(out_idx=-1)
def scaled_copy(m, n, block_M):
    @T.prim_func
    def main(X: T.Tensor((m, n), "float32"), Y: T.Tensor((m, n), "float32")):
        with T.Kernel(T.ceildiv(m, block_M)) as b:
            x = T.alloc_fragment((block_M, n), "float32")
            T.copy(X[b * block_M, 0], x)
            for i, j in T.Parallel(block_M, n):
                x[i, j] = x[i, j] * 3
            T.copy(x, Y[b * block_M, 0])

    return main


def test_a_program_of_the_users_own():
    configs = (TileConfig.of(block_M=1), TileConfig.of(block_M=8))
    own = table("scaled_copy", {"n": 24}, configs=configs)
    dispatcher = tilecore.Dispatcher(own, program=scaled_copy)
    for m in SIZES:
        x = torch.randn(m, 24)
        torch.testing.assert_close(dispatcher(x), x * 3)
    assert dispatcher.kernel_for(40) is dispatcher.kernel_for(65)

    def make(problem, config):
        return scaled_copy.program(**problem, **config)

    x = torch.randn(3, 24)
    torch.testing.assert_close(tilecore.Dispatcher(own, program=make)(x), x * 3)
    plain = tilecore.Dispatcher(own, program=scaled_copy.wrapped)  # without @tilelang.jit
    torch.testing.assert_close(plain(x), x * 3)


@pytest.mark.parametrize(
    ("program", "said"),
    [(print, "found NoneType"), (3, "found 3"), (scaled_copy, "missing .* 'n'"),
     (scaled_copy.wrapped, "missing .* 'n'")],
)  # fmt: skip
def test_what_makes_no_program_of_a_table_is_refused(program, said):
    configs = (TileConfig.of(block_M=1), TileConfig.of(block_M=8))
    with pytest.raises(InvalidDispatchTable, match=said):
        tilecore.Dispatcher(table("copy", {"rows": 24}, configs=configs), program=program)


def test_a_dimension_that_no_input_has_is_refused():
    @tilecore.jit(out_idx=-1)
    def repeat(m, n, block_M):
        @T.prim_func
        def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((m, n), "float32")):
            with T.Kernel(m) as row:
                for j in T.Parallel(n):
                    Y[row, j] = X[j]

        return main

    own = table("repeat", {"n": 24}, configs=(TileConfig.of(block_M=1),) * 2)
    with pytest.raises(InvalidDispatchTable, match="m, which is none"):
        tilecore.Dispatcher(own, program=repeat)


def test_a_gpus_kernels_are_dispatched_on_the_emulator():
    config = TileConfig.of(block_M=16, block_N=32, block_K=32, num_stages=2, threads=64)
    half = {"n": 32, "k": 32, "dtype": "float16", "out_dtype": "float16"}
    of_gpu = table("gemm", half, configs=(config, config.replace(block_M=32)), sizes=(8, 40),
                   target="sm_80")  # fmt: skip
    dispatcher = tilecore.Dispatcher(of_gpu)
    for m in (8, 20):
        a, b = torch.randn(m, 32, dtype=torch.float16), torch.randn(32, 32, dtype=torch.float16)
        found = dispatcher.kernel_for(m).emulated()(a, b)
        torch.testing.assert_close(found.double(), a.double() @ b.double(), rtol=1e-2, atol=1e-2)


def test_a_dispatcher_is_shared_by_copies_and_sent_to_processes():
    dispatcher = tilecore.Dispatcher(table(), beyond="error")
    a, b = torch.randn(7, 70), torch.randn(70, 96)
    right(dispatcher(a, b), a, b)
    assert copy.deepcopy(dispatcher) is dispatcher
    again = pickle.loads(pickle.dumps(dispatcher))
    right(again(a, b), a, b)
    assert again.table == dispatcher.table
    with pytest.raises(OutsideDispatchTable):
        again(torch.randn(300, 70), b)
