"""The fused tile graph against counts made by brute force over blocks and loop trips."""

from __future__ import annotations

import numpy as np
import pytest

import tilecore.language as T
from tilecore.errors import TypeMismatch
from tilecore.graph import Bindings, build, evaluate
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, Load, Var, binary, call, const
from tilecore.ir.nodes import (
    Alloc,
    Buffer,
    Copy,
    Fill,
    For,
    Gemm,
    KernelLaunch,
    Parallel,
    PrimFunc,
    Region,
    Seq,
    Store,
)

F32 = DType("float32")


def ceildiv(a: Expr | int, b: Expr | int) -> Expr:
    return (const(a) + b - 1) // b if isinstance(a, int) else (a + b - 1) // b


def gemm(m: int, n: int, k: int, stages: int = 3) -> PrimFunc:
    bm, bn, bk = Var("block_M"), Var("block_N"), Var("block_K")
    a = Buffer("A", (const(m), const(k)), F32)
    b = Buffer("B", (const(k), const(n)), F32)
    c = Buffer("C", (const(m), const(n)), F32)
    a_tile = Buffer("A_shared", (bm, bk), F32, "shared")
    b_tile = Buffer("B_shared", (bk, bn), F32, "shared")
    c_tile = Buffer("C_local", (bm, bn), F32, "fragment")
    bx, by, ko, zero = Var("bx"), Var("by"), Var("ko"), const(0)

    def whole(tile: Buffer) -> Region:
        return Region(tile, tuple(zero for _ in tile.shape), tile.shape)

    step = Seq((
        Copy(Region(a, (by * bm, ko * bk), (bm, bk)), whole(a_tile)),
        Copy(Region(b, (ko * bk, bx * bn), (bk, bn)), whole(b_tile)),
        Gemm(whole(a_tile), whole(b_tile), whole(c_tile), False, False, const(False)),
    ))  # fmt: skip
    body = Seq((
        Alloc(a_tile), Alloc(b_tile), Alloc(c_tile),
        Fill(whole(c_tile), const(0.0)),
        For(ko, zero, ceildiv(k, bk), const(1), "pipelined", step, {"num_stages": const(stages)}),
        Copy(whole(c_tile), Region(c, (by * bm, bx * bn), (bm, bn))),
    ))  # fmt: skip
    launch = KernelLaunch((bx, by), (ceildiv(n, bn), ceildiv(m, bm)), (const(128),), body)
    return PrimFunc("gemm", (a, b, c), launch)


def brute_force_bytes(m: int, n: int, k: int, bm: int, bn: int, bk: int) -> dict[str, int]:
    moved = {"A": 0, "B": 0, "C": 0}
    for by in range(0, m, bm):
        for bx in range(0, n, bn):
            rows, columns = min(bm, m - by), min(bn, n - bx)
            moved["C"] += rows * columns * 4
            for ko in range(0, k, bk):
                depth = min(bk, k - ko)
                moved["A"] += rows * depth * 4
                moved["B"] += depth * columns * 4
    return moved


@pytest.mark.parametrize(("m", "n", "k"), [(512, 512, 512), (1000, 777, 300), (64, 4096, 100)])
def test_traffic_per_tensor_is_exact_for_every_candidate(m: int, n: int, k: int) -> None:
    graph = build(gemm(m, n, k))
    configs = [(bm, bn, bk) for bm in (16, 96, 128) for bn in (32, 384) for bk in (32, 256)]
    columns = np.array(configs).T
    env = dict(zip(("block_M", "block_N", "block_K"), columns, strict=True))
    (launch,) = graph.launches
    traffic = {
        buffer.name: sum(evaluate(launch.tensor_bytes(buffer, writes=w), env) for w in (0, 1))
        for buffer in graph.func.buffers
    }
    for i, config in enumerate(configs):
        expected = brute_force_bytes(m, n, k, *config)
        assert {name: int(v[i]) for name, v in traffic.items()} == expected
    total = evaluate(graph.read_bytes, env) + evaluate(graph.write_bytes, env)
    np.testing.assert_array_equal(total, sum(traffic.values()))


def test_quantities_of_one_block() -> None:
    launch = build(gemm(1000, 1000, 1000)).launches[0]
    env = {"block_M": 128, "block_N": 256, "block_K": 64}
    assert evaluate(launch.blocks, env) == 4 * 8
    assert evaluate(launch.work("fma"), env) == 2 * 128 * 256 * 64 * 16
    assert evaluate(launch.work("fma", "float16"), env) == 0
    assert evaluate(launch.live_bytes["shared"], env) == 4 * (128 * 64 + 64 * 256)
    assert evaluate(launch.live_bytes["fragment"], env) == 4 * 128 * 256
    assert evaluate(launch.block_bytes(writes=False), env) == 16 * 4 * (128 * 64 + 64 * 256)


def test_reuse_along_grid_axes_is_derived_from_the_offsets() -> None:
    launch = build(gemm(512, 512, 512)).launches[0]
    axes = {a.buffer.name: a.block_axes for _, a in launch.accesses(writes=False)}
    assert axes == {"A": frozenset({1}), "B": frozenset({0})}
    repeats = {
        a.buffer.name: int(evaluate(launch.repeats(op, a), {"block_M": 64, "block_N": 128}))
        for op, a in launch.accesses(writes=False)
    }
    assert repeats == {"A": 4, "B": 8}


def test_edges_join_producer_and_consumer() -> None:
    launch = build(gemm(64, 64, 64)).launches[0]
    edges = [(e.source.kind, e.tile.name, e.sink.kind) for e in launch.edges]
    assert edges == [
        ("copy", "A_shared", "gemm"),
        ("copy", "B_shared", "gemm"),
        ("fill", "C_local", "gemm"),
        ("gemm", "C_local", "copy"),
    ]
    loop = launch.ops[3].loops[0]
    assert loop.kind == "pipelined"
    assert evaluate(loop.num_stages, {}) == 3


def test_elementwise_nest_counts_work_and_boxes() -> None:
    n = Var("n")
    x, y = Buffer("X", (n, const(64)), F32), Buffer("Y", (n, const(64)), F32)
    bx, i, j = Var("bx"), Var("i"), Var("j")
    row = bx * 8 + i
    value = call("exp", binary("mul", Load(x, (row, j), F32), 2.0))
    nest = Parallel((i, j), (const(8), const(64)), Store(y, (row, j), value))
    launch = KernelLaunch((bx,), (ceildiv(n, 8),), (const(32),), nest)
    graph = build(PrimFunc("scale", (x, y), launch))
    assert evaluate(graph.read_bytes, {"n": 100}) == 100 * 64 * 4
    assert evaluate(graph.write_bytes, {"n": 100}) == 100 * 64 * 4
    assert evaluate(graph.work("special"), {"n": 96}) == 96 * 64
    assert evaluate(graph.work("elementwise"), {"n": 96}) == 96 * 64


def test_counts_do_not_wrap_at_32_bits() -> None:
    graph = build(gemm(1 << 15, 1 << 15, 1 << 15))
    env = {"block_M": np.array([128]), "block_N": 128, "block_K": 32}
    assert evaluate(graph.work("fma"), env)[0] == 2 * (1 << 45)


def test_missing_knob_is_named() -> None:
    graph = build(gemm(64, 64, 64))
    with pytest.raises(TypeMismatch, match="block_M"):
        evaluate(graph.read_bytes, {"block_N": 1})


def test_bindings_compute_each_expression_once_and_confuse_none() -> None:
    a, b = Var("a"), Var("b")
    known = Bindings({"a": np.arange(5), "b": np.asarray(3)})
    whole = a * b + 1
    first = evaluate(whole, known)
    assert evaluate(whole, known) is first
    np.testing.assert_array_equal(first, [1, 4, 7, 10, 13])
    for factor in range(200):  # whose expressions are gone when the next ones are made
        np.testing.assert_array_equal(evaluate(whole * factor, known), first * factor)
    with pytest.raises(TypeMismatch, match="values for c"):
        evaluate(whole + Var("c"), known)


def test_reductions_and_updates_are_operations() -> None:
    @T.prim_func
    def program(A: T.Tensor((64, 32), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(4) as b:
            tile = T.alloc_shared((16, 32), "float32")
            sums = T.alloc_fragment((16,), "float32")
            T.copy(A[b * 16, 0], tile)
            T.fill(sums, 1.0)
            T.reduce_sum(tile, sums, dim=1, clear=False)
            T.cumsum(tile, dim=1)
            T.atomic_add(B[b * 16], sums)

    launch = build(program).launches[0]
    assert [op.kind for op in launch.ops] == ["copy", "fill", "reduce", "scan", "parallel"]
    reduce, update = launch.ops[2], launch.ops[4]
    assert [a.buffer.name for a in reduce.reads] == ["tile", "sums"]
    assert evaluate(reduce.work[0].amount, {}) == 16 * 32
    assert [a.buffer.name for a in update.reads] == ["sums", "B"]
    assert [evaluate(a.tile_bytes, {}) for a in update.writes] == [64]


def test_elements_that_a_nest_gathers_count_once() -> None:
    @T.prim_func
    def program(A: T.Tensor((4, 8, 16), "float32"), B: T.Tensor((4, 128), "float32")):
        with T.Kernel(4) as b:
            tile = T.alloc_shared((64,), "float32")
            for i in T.Parallel(64):
                tile[i] = A[b, i // 16, i % 16] + B[b, i]

    (op,) = build(program).launches[0].ops
    gathered, plain = op.reads
    assert [evaluate(e, {}) for e in gathered.extents] == [1, 8, 16]  # the box that it lies in
    assert evaluate(gathered.tile_bytes, {}) == 64 * 4
    assert plain.most is None
    assert evaluate(plain.tile_bytes, {}) == 64 * 4


def test_trip_counts_that_depend_on_outer_loops_are_taken_in_the_middle() -> None:
    @T.prim_func
    def program(A: T.Tensor((64, 32), "float32")):
        with T.Kernel(4) as b:
            tile = T.alloc_shared((16, 32), "float32")
            for x in T.serial(2, 10):
                for _ in T.serial(x + b):
                    T.copy(A[b * 16, 0], tile)

    loops = build(program).launches[0].ops[0].loops
    assert [int(evaluate(loop.trip_count, {})) for loop in loops] == [8, 6 + 2]


def trips_of(func: PrimFunc, kind: str, **knobs: int) -> float:
    """Return how often a block is expected to run the first op of a kind."""
    (launch,) = build(func).launches
    op = next(op for op in launch.ops if op.kind == kind)
    return float(evaluate(op.trips, knobs))


def test_a_loop_whose_length_is_data_runs_as_often_as_its_tensors_have_room() -> None:
    block = Var("block")

    @T.prim_func
    def varlen(
        X: T.Tensor((32, 1000), "float32"), Length: T.Tensor((8,), "int32"),
        Y: T.Tensor((32, 1000), "float32"),
    ) -> None:  # fmt: skip
        with T.Kernel(8) as bx:
            tile = T.alloc_shared((4, block), "float32")
            last = Length[bx]
            for k in T.serial(T.ceildiv(last, block)):
                column = k * block
                T.copy(X[bx * 4, column], tile)
                T.copy(tile, Y[bx * 4, column])

    for size in (1, 48, 1000, 4096):
        assert trips_of(varlen, "copy", block=size) == -(-1000 // size)
    graph = build(varlen)
    (note,) = graph.assumptions
    assert "test_graph.py:" in note
    assert "the loop over k" in note


def test_blocks_share_the_tensor_in_which_data_tells_where_each_begins() -> None:
    block = Var("block")

    @T.prim_func
    def ragged(
        X: T.Tensor((4096, 64), "float32"), Begin: T.Tensor((17,), "int32"),
        Y: T.Tensor((4096, 64), "float32"),
    ) -> None:  # fmt: skip
        with T.Kernel(2, 16) as (_, e):
            tile = T.alloc_shared((block, 64), "float32")
            first = T.max(Begin[e], 0)
            for t in T.serial(T.ceildiv(Begin[e + 1] - first, block)):
                row = first + t * block
                T.copy(X[row, 0], tile)
                T.copy(tile, Y[row, 0])

    rng = np.random.default_rng()
    for size in (1, 16, 64, 200):
        begins = np.sort(rng.integers(0, 4097, (2000, 15)), axis=1)
        lengths = np.diff(begins, axis=1, prepend=0, append=4096)
        mean = np.ceil(lengths / size).mean()
        assert trips_of(ragged, "copy", block=size) == pytest.approx(mean, rel=0.1)


def test_rows_of_a_list_are_read_one_by_one() -> None:
    @T.prim_func
    def gathered(
        First: T.Tensor((9,), "int32"), Column: T.Tensor((400,), "int32"),
        X: T.Tensor((128, 64), "float32"), Y: T.Tensor((8, 64), "float32"),
    ) -> None:  # fmt: skip
        with T.Kernel(8) as bx:
            tile = T.alloc_shared((1, 64), "float32")
            for i in T.serial(First[bx], First[bx + 1]):
                T.copy(X[Column[i], 0], tile)
                T.copy(tile, Y[bx, 0])

    assert trips_of(gathered, "copy") == 50  # 400 entries of 8 blocks


def test_a_length_that_no_tensor_bounds_stays_unknown() -> None:
    @T.prim_func
    def repeated(Count: T.Tensor((1,), "int32"), X: T.Tensor((64,), "float32")) -> None:
        with T.Kernel(1):
            tile = T.alloc_shared((64,), "float32")
            for _ in T.serial(Count[0]):
                T.copy(X[0], tile)
                T.copy(tile, X[0])

    with pytest.raises(TypeMismatch, match="Count"):
        trips_of(repeated, "copy")
    assert not build(repeated).assumptions
