"""Dynamic sizes that rows follow from: a version of the launch for multiples of 16 bytes."""

import re

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tilecore.emulator import LATE, random_order
from tilecore.gpu_compiler import plan_gpu
from tilecore.ir.expr import Var
from tilecore.ir.nodes import Alloc, If
from tilecore.ir.visitor import buffers_of, expressions, walk, walk_expr
from tilecore.target import parse_target

M, N, K = (T.dynamic(name) for name in "MNK")


def product(stages=3, tile=(64, 64, 32), dtype="float16", rows=M):
    block_m, block_n, block_k = tile

    @T.prim_func
    def main(
        A: T.Tensor((rows, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((rows, N), dtype)
    ):
        with T.Kernel(T.ceildiv(N, block_n), T.ceildiv(rows, block_m), threads=128) as (bx, by):
            a = T.alloc_shared((block_m, block_k), dtype)
            b = T.alloc_shared((block_k, block_n), dtype)
            c = T.alloc_fragment((block_m, block_n), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, block_k), num_stages=stages):
                T.copy(A[by * block_m, k * block_k], a)
                T.copy(B[k * block_k, bx * block_n], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * block_m, bx * block_n])

    return main


def planned(func, target):
    return list(plan_gpu(func, parse_target(target))[1].launches.values())


@pytest.mark.few(2)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "b200"])
def test_a_product_of_dynamic_sizes(target):
    func = product()
    aligned, other = planned(func, target)
    assert aligned.pipelines
    assert not other.pipelines
    if target != "sm_80":
        assert any(p.boxes for p in aligned.pipelines.values())
        assert aligned.stores
    rng = np.random.default_rng(0)
    for m, n, k in [(70, 72, 40), (70, 72, 41), (64, 65, 32), (3, 8, 8), (5, 16, 0), (9, 3, 1)]:
        a = rng.standard_normal((m, k)).astype(np.float16)
        b = rng.standard_normal((k, n)).astype(np.float16)
        c = np.full((m, n), np.nan, np.float16)
        run_emulated(func, target, [a, b, c], (LATE, random_order(m)))
        wanted = a.astype(np.float64) @ b.astype(np.float64)
        np.testing.assert_allclose(c, wanted, rtol=1e-2, atol=2e-2)


def test_what_runs_follows_from_the_sizes():
    _, _, source = lowered(product(), "sm_90a")
    grids = [entry.grid[0] for entry in source.entries]
    assert len(grids) == 2
    for k, n, expected in [(64, 64, [True, False]), (64, 60, [False, True]), (0, 8, [False, True])]:
        names = {"K": k, "N": n, "M": 5, "min": min, "max": max}
        assert [bool(eval(grid, dict(names))) for grid in grids] == expected
    plan = lowered(product(), "sm_90a")[0].explain()
    assert re.search("where 8 divides K and N:\n.*for other sizes:\n", plan, re.DOTALL)


def test_the_versions_share_nothing_but_tensors():
    func, _ = plan_gpu(product(), parse_target("sm_90a"))
    body = func.body
    assert isinstance(body, If)
    one, other = list(walk(body.then_body)), list(walk(body.else_body))
    assert not {id(s) for s in one} & {id(s) for s in other}
    tiles = [{id(b) for b in buffers_of(part)} for part in (body.then_body, body.else_body)]
    assert not (tiles[0] & tiles[1]) - {id(p) for p in func.params}

    def names(stmts):
        exprs = (e for s in stmts for whole in expressions(s) for e in walk_expr(whole))
        return {id(e) for e in exprs if isinstance(e, Var)}

    assert names(one) & names(other) == {id(v) for v in (M, N, K)}


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_elements_of_a_dynamic_length_move_in_vectors(dtype):
    @T.prim_func
    def main(X: T.Tensor((N,), dtype), Y: T.Tensor((N,), dtype)):
        with T.Kernel(T.ceildiv(N, 2048), threads=128) as bx:
            for i in T.Parallel(2048):
                Y[bx * 2048 + i] = X[bx * 2048 + i] + X[bx * 2048 + i]

    text = lowered(main, "sm_80")[2].text
    kernels = [part for part in text.split('extern "C" __global__')[1:] if "{" in part]
    assert ["tc_copy_16(" in kernel for kernel in kernels] == [True, False]
    for n in (0, 16, 2048, 2064, 2049, 5):
        x = np.arange(n).astype(dtype)
        y = np.zeros(n, dtype)
        run_emulated(main, "sm_80", [x, y])
        np.testing.assert_array_equal(y, x + x)


def test_a_dynamic_stride():
    S = T.dynamic("S")

    @T.prim_func
    def main(X: T.StridedTensor((M, 64), (S, 1), "float16"), Y: T.Tensor((M, 64), "float16")):
        with T.Kernel(T.ceildiv(M, 16), threads=32) as bx:
            t = T.alloc_shared((16, 64), "float16")
            T.copy(X[bx * 16, 0], t)
            T.copy(t, Y[bx * 16, 0])

    assert len(planned(main, "sm_80")) == 2
    for stride in (64, 72, 65):
        x = np.random.default_rng(0).standard_normal((20, stride)).astype(np.float16)
        y = np.zeros((20, 64), np.float16)
        run_emulated(main, "sm_80", [x[:, :64], y])
        np.testing.assert_array_equal(y, x[:, :64])


def test_views_of_tiles_and_of_tensors():
    @T.prim_func
    def main(X: T.Tensor((16, K), "float16"), Y: T.Tensor((8, 2, K), "float16")):
        with T.Kernel(T.ceildiv(K, 64), threads=32) as bx:
            pairs = T.reshape(X, (8, 2, K))
            t = T.alloc_shared((8, 128), "float16")
            seen = T.reshape(t, (8, 2, 64))
            T.copy(pairs[0:8, 0:2, bx * 64 : bx * 64 + 64], seen)
            for i, j in T.Parallel(8, 128):
                t[i, j] = t[i, j] + t[i, j]
            T.copy(seen, Y[0:8, 0:2, bx * 64 : bx * 64 + 64])

    for target in ("sm_80", "sm_90a"):
        body = plan_gpu(main, parse_target(target))[0].body
        declared = [s.buffer for s in walk(body) if isinstance(s, Alloc)]
        assert len(declared) == len({id(b) for b in declared})
        assert [b.name for b in declared if b.scope == "global"].count("pairs") == 2
        for k in (64, 72, 65):
            x = np.arange(16 * k).reshape(16, k).astype(np.float16) / 8
            y = np.zeros((8, 2, k), np.float16)
            run_emulated(main, target, [x, y])
            np.testing.assert_array_equal(y, (x + x).reshape(8, 2, k))


def test_the_factor_suits_all_types():
    @T.prim_func
    def main(X: T.Tensor((M, K), "int8"), Y: T.Tensor((M, K), "float32")):
        with T.Kernel(T.ceildiv(K, 128), M, threads=32) as (bx, by):
            for i in T.Parallel(128):
                Y[by, bx * 128 + i] = X[by, bx * 128 + i]

    assert "where 16 divides K:" in lowered(main, "sm_80")[0].explain()
    for k in (16, 8, 144):
        x = np.arange(3 * k).reshape(3, k).astype(np.int8)
        y = np.zeros((3, k), np.float32)
        run_emulated(main, "sm_80", [x, y])
        np.testing.assert_array_equal(y, x)


def test_sizes_that_rows_do_not_follow_from_need_no_version():
    @T.prim_func
    def main(Q: T.Tensor((M, K, 4, 64), "float16"), Y: T.Tensor((M, K, 4, 64), "float16")):
        with T.Kernel(T.ceildiv(K, 16), 4, M, threads=32) as (bx, by, bz):
            t = T.alloc_shared((16, 64), "float16")
            T.copy(Q[bz, bx * 16 : bx * 16 + 16, by, :], t)
            T.copy(t, Y[bz, bx * 16 : bx * 16 + 16, by, :])

    assert len(planned(main, "sm_90a")) == 1
    assert len(planned(product(), "mi300x")) == 1  # loads there go through registers anyway


def test_where_there_is_no_room_for_stages_the_launch_stands_once():
    many = product(stages=8, tile=(128, 128, 64))
    (launch,) = planned(many, "sm_80")
    assert not launch.pipelines


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "b200"])
def test_an_expert_is_looked_up_in_a_table_of_a_dynamic_length(target):
    """Once the warp that copies did not know the version's view of the table: a KeyError."""

    @T.prim_func
    def main(
        experts: T.Tensor((T.ceildiv(M, 16),), "int32"), A: T.Tensor((M, 40), "float16"),
        B: T.Tensor((3, 40, 48), "float16"), C: T.Tensor((M, 48), "float32"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(M, 16), threads=128) as by:
            a = T.alloc_shared((16, 32), "float16")
            b = T.alloc_shared((32, 48), "float16")
            c = T.alloc_fragment((16, 48), "float32")
            expert = experts[by]
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(40, 32), num_stages=2):
                T.copy(A[by * 16, k * 32], a)
                T.copy(B[expert, k * 32, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * 16, 0])

    rng = np.random.default_rng(0)
    for rows in (64, 45):  # lengths of 4 and 3, the latter not of 16 bytes
        experts = rng.integers(0, 3, -(-rows // 16)).astype(np.int32)
        a = rng.standard_normal((rows, 40)).astype(np.float16)
        b = rng.standard_normal((3, 40, 48)).astype(np.float16)
        c = np.full((rows, 48), np.nan, np.float32)
        run_emulated(main, target, [experts, a, b, c], (LATE, random_order(rows)))
        of_rows = b.astype(np.float64)[experts.repeat(16)[:rows]]
        exact = np.einsum("ik,ikj->ij", a.astype(np.float64), of_rows)
        np.testing.assert_allclose(c, exact, rtol=1e-3, atol=1e-3)
