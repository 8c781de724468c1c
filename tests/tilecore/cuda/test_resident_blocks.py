"""Blocks that stay for further tiles, panels of blocks, and long blocks first."""

import functools
from dataclasses import replace

import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import bound, lowered, run_emulated
from tests.tilecore.cuda.test_tile_programs import close, random
from tests.tilecore.cuda.tile_programs import gemm
from tilecore.codegen.order_proof import ENOUGH, order_programs
from tilecore.emulator import ALL_SCHEDULES
from tilecore.emulator.launch import emulate
from tilecore.errors import InvalidConfig
from tilecore.gpu_compiler import lower_gpu
from tilecore.ir.expr import Var
from tilecore.ir.nodes import KernelLaunch
from tilecore.ir.visitor import walk
from tilecore.kernels.attention import ATTENTION
from tilecore.ordering import Verdict, judge, unneeded
from tilecore.pass_config import CHECK_ORDER
from tilecore.passes import panels, persistent
from tilecore.target import parse_gpu_target

FEW = replace(parse_gpu_target("h100"), multiprocessors=3)
M, N, K = (T.dynamic(name) for name in "MNK")


def product(M, N, K, block, stages=2, order=None):
    return gemm(M, N, K, block, stages, "float16", "float16", threads=256, order=order)


def triangle(rows, width, block, axis=0, backwards=False):
    """Each block sums the keys up to its own rows, or from the other end as many."""
    blocks = rows // block
    grid = (blocks, width // 32) if axis == 0 else (width // 32, blocks)

    @T.prim_func
    def main(A: T.Tensor((rows, width), "float16"), B: T.Tensor((rows, width), "float32")):
        with T.Kernel(*grid, threads=128) as (bx, by):
            row, column = (bx, by) if axis == 0 else (by, bx)
            tile = T.alloc_shared((block, 32), "float16")
            sums = T.alloc_fragment((block, 32), "float32")
            T.clear(sums)
            for k in T.Pipelined(row if backwards else blocks - 1 - row, blocks, num_stages=2):
                T.copy(A[k * block, column * 32], tile)
                for i, j in T.Parallel(block, 32):
                    sums[i, j] += tile[i, j]
            T.copy(sums, B[row * block, column * 32])

    return main


def launch_of(func):
    """Return the only launch of a program."""
    (launch,) = [s for s in walk(func.body) if isinstance(s, KernelLaunch)]
    return launch


@functools.lru_cache(1)
def proven(func, target):
    """Return plan, TIR and CUDA text of a program for a target, its order proven."""
    return lower_gpu(func, target, knobs={CHECK_ORDER: True})


def run(func, target, arguments):
    """Run a program for a target on the emulator under all schedules, its order proven too."""
    plan, program, source = proven(func, target)
    values, reached = bound(func, program, arguments)
    emulate(source, values, ALL_SCHEDULES, known=reached)
    return plan, source


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("order", [None, "row", "column"])
@pytest.mark.parametrize(("m", "n", "k"), [(640, 200, 200), (256, 640, 72)])
def test_each_tile_is_computed_once_by_blocks_that_stay(m, n, k, order):
    func = product(m, n, k, (128, 128, 64), 4, order)
    rng = np.random.default_rng(m)
    a, b = random(rng, (m, k), "float16"), random(rng, (k, n), "float16")
    c = np.full((m, n), np.nan, np.float16)
    _, source = run(func, FEW, [a, b, c])
    close(c, a.astype(np.float64) @ b.astype(np.float64), "float16")
    assert source.entries[0].grid == (3, 1, 1)


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("order", [None, "row", "column"])
@pytest.mark.parametrize(("n", "k"), [(200, 200), (N, 72), (N, K)])
def test_tiles_are_counted_at_the_call(n, k, order):
    """As many blocks as there are tiles, up to one a multiprocessor; also where M is 0."""
    func = product(M, n, k, (128, 128, 64), 4, order)
    rng = np.random.default_rng(0)
    for sizes in [(640, 200, 200), (130, 392, 72), (5, 8, 64), (0, 8, 64)]:
        m, columns, depth = (
            size if isinstance(known, Var) else known
            for known, size in zip((M, n, k), sizes, strict=True)
        )
        a, b = random(rng, (m, depth), "float16"), random(rng, (depth, columns), "float16")
        c = np.full((m, columns), np.nan, np.float16)
        plan, source = run(func, FEW, [a, b, c])
        if m:
            close(c, a.astype(np.float64) @ b.astype(np.float64), "float16")
        tiles = -(-m // 128) * -(-columns // 128)
        names = {"M": m, "N": columns, "K": depth, "min": min, "max": max}
        grids = [eval(str(entry.grid[0]), dict(names)) for entry in source.entries]
        assert grids == [min(tiles, 3), 0][: len(grids)]
        assert "stored by TMA" in plan.explain()


@pytest.mark.exhaustive
def test_tiles_of_batches_are_counted_at_the_call():
    batches, size, depth = 3, 128, 72

    @T.prim_func
    def main(
        A: T.Tensor((batches, M, depth), "float16"), B: T.Tensor((batches, depth, N), "float16"),
        C: T.Tensor((batches, M, N), "float16"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, size), T.ceildiv(M, size), batches, threads=256) as (x, y, z):
            A_s = T.alloc_shared((size, 64), "float16")
            B_s = T.alloc_shared((64, size), "float16")
            C_l = T.alloc_fragment((size, size), "float32")
            T.clear(C_l)
            for k in T.Pipelined(T.ceildiv(depth, 64), num_stages=4):
                T.copy(A[z, y * size, k * 64], A_s)
                T.copy(B[z, k * 64, x * size], B_s)
                T.gemm(A_s, B_s, C_l)
            T.copy(C_l, C[z, y * size, x * size])

    rng = np.random.default_rng(1)
    for m, n in [(300, 136), (64, 8)]:
        a, b = (
            random(rng, (batches, m, depth), "float16"),
            random(rng, (batches, depth, n), "float16"),
        )
        c = np.full((batches, m, n), np.nan, np.float16)
        _, source = run(main, FEW, [a, b, c])
        close(c, a.astype(np.float64) @ b.astype(np.float64), "float16")
    assert "min(" in source.entries[0].grid[0]


def test_the_loads_of_the_next_tile_do_not_wait_for_the_stores_of_the_last():
    """Warps that load go through all tiles; the thread that stores waits before the next store."""
    _, _, source = lower_gpu(product(640, 256, 256, (128, 128, 64), 4), FEW)
    kernel = source.text.rpartition('extern "C"')[2]
    producer, consumer = kernel.split("} else {", 1)
    assert "tc_tma_load" in producer
    assert "tc_bulk_wait" not in producer
    assert consumer.index("tc_bulk_wait_read_0();") < consumer.index("tc_tma_store")


@pytest.mark.parametrize(
    ("func", "why"),
    [
        (product(384, 128, 64, (128, 128, 64), 4), "no second wave"),
        (product(1280, 256, 64, (64, 64, 32), 2), "several fit a multiprocessor"),
        (product(640, 256, 256, (128, 128, 64), 1), "nothing flies ahead"),
    ],
    ids=["few tiles", "small tiles", "one stage"],
)
def test_when_blocks_do_not_stay(func, why):
    launch = launch_of(persistent.run(func, FEW))
    assert len(launch.block_vars) == 2, why


def test_where_tiles_do_not_fit_beside_the_outgoing_one_blocks_do_not_stay():
    func = product(1280, 1024, 64, (128, 256, 64), 4)
    _, _, source = lower_gpu(func, FEW)
    assert source.entries[0].grid == (4, 10, 1)
    _, _, source = lower_gpu(product(1280, 1024, 64, (128, 256, 64), 3), FEW)
    assert source.entries[0].grid == (3, 1, 1)


def test_panels_are_as_wide_as_high():
    h100 = parse_gpu_target("h100")
    for block, rows in (((128, 256), 16), ((256, 128), 8), ((128, 128), 11)):
        func = product(8192, 8192, 64, (*block, 64))
        launch = launch_of(func)
        assert panels.rows_of_panel(launch, h100) == rows
    own = product(8192, 8192, 64, (128, 128, 64), order="row")
    launch = launch_of(own)
    assert panels.rows_of_panel(launch, h100) == 0  # the program says it


@pytest.mark.few(2)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("backwards", [False, True])
def test_blocks_that_loop_longer_begin_first(axis, backwards):
    func = triangle(192, 64, 32, axis, backwards)
    a = random(np.random.default_rng(3), (192, 64), "float16")
    b = np.zeros((192, 64), np.float32)
    run_emulated(func, "h100", [a, b], ALL_SCHEDULES)
    parts = a.astype(np.float32).reshape(6, 32, 64)
    expected = np.stack([parts[i if backwards else 5 - i :].sum(0) for i in range(6)])
    np.testing.assert_allclose(b.reshape(6, 32, 64), expected, rtol=1e-5, atol=1e-4)
    launch = launch_of(func)
    assert (panels.longest_first(launch) is launch) == backwards
    rows = panels.rows_of_section(launch, parse_gpu_target("h100"))
    assert rows == (2 if axis == 0 else 0)


def test_softmax_beside_a_running_product_where_a_mask_is_conditional():
    """Only the sums that the mask is for are waited for, in the branch as before it."""
    _, func = attention(causal=True)
    kernel = lowered(func, "h100")[2].text.rpartition('extern "C"')[2]
    loop = kernel[kernel.rindex("#pragma unroll 1") :]
    assert loop.index("tc_wgmma_wait_1();") < loop.index("tc_exp2(")
    assert "exp2f(" not in kernel


def attention(**fields):
    definition = ATTENTION.on("cuda")
    sizes = {"batch": 1, "heads": 4, "kv_heads": 2, "seq_q": 384, "seq_kv": 384, "dim": 64}
    problem = definition.parse_problem({**sizes, "dtype": "float16", **fields})
    return problem, definition.program(problem, dict(definition.default_config("cuda")))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "fields",
    [{}, {"causal": True, "heads": 6}, {"causal": True, "seq_q": 500, "seq_kv": 700, "batch": 2}],
    ids=["whole", "causal", "causal, ragged"],
)
def test_attention_by_blocks_that_stay(fields):
    """Queries come as keys do: by warps that load, as soon as those before are done with."""
    problem, func = attention(**fields)
    inputs = ATTENTION.inputs(problem, np.random.default_rng(8))
    out = np.full(inputs[0].shape, np.nan, np.float16)
    _, source = run(func, FEW, [*inputs, out])
    assert source.entries[0].grid == (3, 1, 1)
    kernel = source.text.rpartition('extern "C"')[2]
    assert kernel.count("tc_tma_load_4d(") == 3
    assert "cp_async" not in kernel
    close(out, ATTENTION.reference(problem, inputs)[0], "float16")


@pytest.mark.parametrize(
    ("fields", "order"),
    [
        ({"seq_q": 4096, "seq_kv": 4096, "heads": 64}, (True, True)),
        ({"seq_q": 2048, "seq_kv": 2048, "heads": 32, "kv_heads": 32, "batch": 4}, (False, True)),
        ({"seq_q": 1024, "seq_kv": 1024, "heads": 40, "kv_heads": 40}, (True, True)),
        ({"seq_q": 16384, "seq_kv": 16384, "heads": 16, "kv_heads": 16}, None),
        ({"seq_q": 4096, "seq_kv": 4096, "heads": 64, "causal": False}, (False, False)),
    ],
    ids=["rows of all heads", "head by head", "as even as what is next", "uneven", "all alike"],
)
def test_all_blocks_have_as_much_to_do(fields, order):
    _, func = attention(dim=128, **{"causal": True, **fields})
    h100 = parse_gpu_target("h100")
    launch = launch_of(panels.run(func, h100))
    found = persistent.order_of(launch, h100)
    assert found == (None if order is None else persistent.Order(0, *order))
    func = persistent.run(panels.run(func, h100), h100)
    launch = launch_of(func)
    assert len(launch.grid) == (3 if order is None else 1)


@pytest.mark.parametrize(
    ("target", "rows"), [("h100", (16, 20, 32, 2, 0)), ("rtx3090", (2, 4, 16, 1, 0))]
)
def test_heads_run_together_whose_keys_stay_in_l2(target, rows):
    fields = [
        {"seq_q": 2048, "seq_kv": 2048, "heads": 32, "kv_heads": 32},
        {"seq_q": 1024, "seq_kv": 1024, "heads": 40, "kv_heads": 40},
        {"seq_q": 4096, "seq_kv": 4096, "heads": 32},  # of groups of 16
        {"seq_q": 16384, "seq_kv": 16384, "heads": 16, "kv_heads": 16},
        {"seq_q": 4096, "seq_kv": 4096, "heads": 32, "causal": False},
    ]
    launches = [launch_of(attention(dim=128, **{"causal": True, **f})[1]) for f in fields]
    device = parse_gpu_target(target)
    assert tuple(panels.rows_of_section(launch, device) for launch in launches) == rows


def test_blocks_of_equal_rows_of_all_heads_begin_together():
    """Multiprocessors that take the next block when they are free end at nearly the same time."""
    costs = np.arange(16.0, 0.0, -1.0)
    by_head, together = (persistent.sequence(costs, (16, 40, 1), rows) for rows in (0, 40))
    assert sorted(by_head) == sorted(together)
    mean = by_head.sum() / 132
    assert persistent.end_of_last(by_head, 132) > 1.2 * mean
    assert persistent.end_of_last(together, 132) < 1.05 * mean


@pytest.mark.exhaustive
@pytest.mark.covering
@pytest.mark.parametrize("target", ["sm_80", "h100"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 1), (6, 6)])
def test_causal_attention_of_dynamic_sizes_begins_with_long_rows(target, heads, kv_heads):
    definition = ATTENTION.on("cuda")
    sizes = {"batch": 2, "heads": heads, "kv_heads": kv_heads, "seq_q": 1, "seq_kv": 1, "dim": 64}
    problem = definition.parse_problem({**sizes, "dtype": "float16", "causal": True})
    open_problem = {**problem, "seq_q": M, "seq_kv": M}
    knobs = {**definition.default_config("cuda"), "block_M": 64, "block_N": 32, "threads": 128}
    func = definition.program(open_problem, knobs)
    device = parse_gpu_target(target)
    assert panels.longest_first(launch_of(func)) is not launch_of(func)
    small = replace(device, l2_bytes=2 * 3 * 2 * 4096 * 64 * 2)  # two heads of 6
    assert panels.rows_of_section(launch_of(func), small) == {3: 3, 6: 2}[heads]
    for size in (200, 64, 33):
        problem = {**problem, "seq_q": size, "seq_kv": size}
        inputs = ATTENTION.inputs(problem, np.random.default_rng(size))
        out = np.full(inputs[0].shape, np.nan, np.float16)
        run(func, small, [*inputs, out])
        close(out, ATTENTION.reference(problem, inputs)[0], "float16")


def test_blocks_that_wait_for_others_keep_their_order():
    size, block = 1024, 128

    @T.prim_func
    def main(
        A: T.Tensor((size, 64), "float16"), B: T.Tensor((64, size), "float16"),
        done: T.Tensor((1,), "int32"), C: T.Tensor((size, size), "float32"),
    ):  # fmt: skip
        with T.Kernel(size // block, size // block, threads=128) as (bx, by):
            A_s = T.alloc_shared((block, 64), "float16")
            B_s = T.alloc_shared((64, block), "float16")
            C_l = T.alloc_fragment((block, block), "float32")
            T.clear(C_l)
            while done[0] < by * (size // block):  # the rows before this one are complete
                pass
            for _ in T.Pipelined(1, num_stages=2):
                T.copy(A[by * block, 0], A_s)
                T.copy(B[0, bx * block], B_s)
                T.gemm(A_s, B_s, C_l)
            T.copy(C_l, C[by * block, bx * block])
            T.atomic_add(done[0], 1)

    launch = launch_of(main)
    assert panels.bytes_by_axis(launch) == (64 * block * 2, 64 * block * 2)
    assert panels.rows_of_panel(launch, parse_gpu_target("h100")) == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("waits", [True, False])
def test_blocks_whose_program_lets_stores_run_do_not_stay(waits):
    """Its tile is free when the block ends: the next one of the same block would overwrite it."""
    M, N, K, size = 256, 128, 64, 64

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):  # fmt: skip
        with T.Kernel(N // size, M // size, threads=128) as (bx, by):
            A_s = T.alloc_shared((size, 32), "float16")
            B_s = T.alloc_shared((32, size), "float16")
            C_s = T.alloc_shared((size, size), "float16")
            C_l = T.alloc_fragment((size, size), "float32")
            T.clear(C_l)
            for k in T.Pipelined(K // 32, num_stages=2):
                T.copy(A[by * size, k * 32], A_s)
                T.copy(B[k * 32, bx * size], B_s)
                T.gemm(A_s, B_s, C_l)
            T.copy(C_l, C_s)
            T.tma_copy(C_s, C[by * size, bx * size])
            if waits:
                T.tma_store_wait(0)

    rng = np.random.default_rng(7)
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((M, K), (K, N)))
    c = np.zeros((M, N), np.float16)
    _, source = run(main, replace(FEW, shared_per_multiprocessor=1024), [a, b, c])
    np.testing.assert_array_equal(c, a @ b)
    assert source.entries[0].grid == (2, 4, 1)


@pytest.mark.parametrize(("target", "tries"), [("sm_80", 4), ("h100", 5)])
def test_what_does_not_fit_is_planned_once_without_each_pass_that_the_target_has(target, tries):
    seen = []
    func = product(1280, 1024, 64, (128, 256, 64), 8)
    with pytest.raises(InvalidConfig, match="shared memory"):
        lower_gpu(func, parse_gpu_target(target), lambda stage, _: seen.append(stage))
    assert seen.count("settle") == tries


@pytest.mark.few(1)
@pytest.mark.parametrize("rows", [7 * 64, 8 * 64, 7 * 64 + 8])
def test_tiles_of_resident_blocks_are_seen_to_lie_in_their_tensors(rows):
    """Each access was guarded: that a tile's number is one of the grid's stands in a branch."""

    @T.prim_func
    def main(
        A: T.Tensor((rows, 128), "float16"), B: T.Tensor((128, 512), "float16"),
        S: T.Tensor((rows,), "float32"), C: T.Tensor((rows, 512), "float32"),
    ):  # fmt: skip
        with T.Kernel(4, T.ceildiv(rows, 64), threads=128) as (bx, by):
            a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 128), "float16")
            sums = T.alloc_fragment((64, 128), "float32")
            T.clear(sums)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[by * 64, k * 64], a)
                T.copy(B[k * 64, bx * 128], b)
                T.gemm(a, b, sums)
            for i, j in T.Parallel(64, 128):
                C[by * 64 + i, bx * 128 + j] = sums[i, j] * S[by * 64 + i]

    small = replace(FEW, shared_per_multiprocessor=90_000)
    rng = np.random.default_rng(4)
    a, b = random(rng, (rows, 128), "float16"), random(rng, (128, 512), "float16")
    s, c = random(rng, (rows,), "float32"), np.zeros((rows, 512), np.float32)
    _, source = run(main, small, [a, b, s, c])
    close(c, (a.astype(np.float32) @ b.astype(np.float32)) * s[:, None], "float16")
    stored = source.text[source.text.rindex("tc_barrier_arrive") :]
    assert "* 3)" in stored  # blocks
    assert ("if (" in stored) == (rows % 64 > 0)


OWN = "C_tile: each warpgroup stores its own rows and waits for no other one"


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("sizes", "block", "threads", "is_own"),
    [
        ((640, 256, 192), (128, 128, 64), 256, True),
        ((648, 264, 136), (128, 128, 64), 256, True),
        ((640, 384, 192), (192, 128, 64), 384, True),
        ((640, 256, 192), (256, 64, 64), 256, True),
        ((640, 512, 192), (64, 256, 64), 256, False),  # warpgroups side by side
        ((640, 256, 192), (64, 128, 64), 128, False),  # one alone
        ((256, 128, 192), (128, 128, 64), 256, False),  # no further tiles
    ],
)
def test_each_warpgroup_of_resident_blocks_stores_its_own_rows(sizes, block, threads, is_own):
    m, n, k = sizes
    target = replace(FEW, shared_per_multiprocessor=60_000)
    func = gemm(m, n, k, block, 3, "float16", "float16", threads=threads)
    rng = np.random.default_rng(6)
    a, b = random(rng, (m, k), "float16"), random(rng, (k, n), "float16")
    c = np.zeros((m, n), np.float16)
    plan, source = run(func, target, [a, b, c])
    close(c, a.astype(np.float32) @ b.astype(np.float32), "float16")
    assert (OWN in plan.explain()) == is_own
    if is_own:
        kernel = source.text.rpartition('extern "C"')[2]
        assert f", {threads});" not in kernel.split("} else {", 1)[1]  # nobody waits for all


def test_a_program_of_its_own_loop_over_tiles_stores_them_in_order():
    """Tiles of its turns may overlap: what a warpgroup stores is ordered by all threads."""

    @T.prim_func
    def main(
        A: T.Tensor((128, 64), "float16"), B: T.Tensor((64, 128), "float16"),
        C: T.Tensor((192, 128), "float16"),
    ):  # fmt: skip
        with T.Kernel(1, threads=256):
            a, b = T.alloc_shared((128, 64), "float16"), T.alloc_shared((64, 128), "float16")
            out = T.alloc_shared((128, 128), "float16")
            sums = T.alloc_fragment((128, 128), "float32")
            for turn in T.serial(2):
                T.clear(sums)
                for _k in T.Pipelined(1, num_stages=2):
                    T.copy(A, a)
                    T.copy(B, b)
                    T.gemm(a, b, sums)
                for i, j in T.Parallel(128, 128):
                    sums[i, j] += turn
                T.copy(sums, out)
                T.copy(out, C[turn * 64, 0])

    rng = np.random.default_rng(6)
    a, b = random(rng, (128, 64), "float16"), random(rng, (64, 128), "float16")
    c = np.zeros((192, 128), np.float16)
    plan, _ = run(main, FEW, [a, b, c])
    assert "stored by TMA: out" in plan.explain()
    assert "its own rows" not in plan.explain()
    product = a.astype(np.float32) @ b.astype(np.float32)
    close(c, np.concatenate([product[:64], product + 1]), "float16")


def test_both_barriers_of_a_warpgroup_that_stores_its_rows_are_needed():
    """Each has the number of its warpgroup: the proof of order tells them apart."""
    func = gemm(640, 256, 128, (128, 128, 64), 2, "float16", "float16", threads=256)
    target = replace(FEW, shared_per_multiprocessor=60_000)
    plan, program, source = lower_gpu(func, target)
    assert OWN in plan.explain()
    assert source.text.count("tc_bar_sync((") == 2
    (kernel,) = order_programs(program)
    assert judge(kernel, ENOUGH) == Verdict((), ())
    assert {s.text for s in unneeded(kernel, ENOUGH)} == set()
