from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from recommender.analytic import ADVICE, estimate
from recommender.cpu.choices import Tiling, instruction
from recommender.cpu.few_rows import joined_blocks
from recommender.features import NAMES, features
from recommender.hardware import load_profile
from recommender.space import SearchSpace
from tests.recommender.support import GEMM, HOST, space_of, workload
from tilecore.inference.cpu.options import CpuOptions
from tilecore.ir.expr import int_value
from tilecore.ir.nodes import KernelLaunch
from tilecore.ir.visitor import walk
from tilecore.passes.pipeline import cpu_pipeline, run_passes
from tilecore.target import parse_target

CUBE = workload(1024, 1024, 1024)
BASE = GEMM.default_config().replace(
    block_M=128, block_N=256, block_K=512, micro_m=14, micro_n=2, pack_a="block", pack_b="grid"
)


def time_of(w=CUBE, threads: int = 1, hardware=HOST, **knobs) -> float:
    space = space_of(w, hardware)
    return float(estimate(space, space.table([BASE.replace(**knobs)]), threads=threads).time_s[0])


def test_no_config_is_faster_than_the_peak() -> None:
    space = space_of(CUBE)
    for threads in (1, 2):
        e = estimate(space, threads=threads)
        assert e.time_s.min() >= e.work_flop / (threads * HOST.peak_flop_per_s["float32"])


def test_terms_add_up_and_are_named() -> None:
    e = estimate(space_of(CUBE))
    np.testing.assert_allclose(sum(e.terms_s.values()), e.time_s)
    assert set(e.terms_s) <= set(ADVICE)
    assert all((t >= 0).all() for t in e.terms_s.values())
    one = e.at(int(np.argmin(e.time_s)))
    assert one.bound_by == "fma"
    assert "GFLOP/s" in one.explain()
    assert "bound by fma" in one.explain()


def test_the_micro_kernels_time_counts_under_the_slowest_resource() -> None:
    space = space_of(CUBE)
    few = space.rows(np.arange(0, len(space), max(1, len(space) // 500)))
    e = estimate(space, few)
    resources = e.resources_s
    slowest = np.argmax(np.stack(list(resources.values())), axis=0)
    for row, place in enumerate(slowest):
        terms = e.at(row).terms_s
        assert [name for name in resources if name in terms] == [list(resources)[place]]
        assert all(seconds > 0 for seconds in terms.values())


def test_known_effects_have_the_right_sign() -> None:
    assert time_of(micro_m=4, micro_n=1) > 1.3 * time_of()  # latency and loads
    assert time_of(block_K=16) > 1.1 * time_of()  # many short runs
    assert time_of(pack_b="block") > time_of()  # packed 8 times instead of once
    assert time_of(pack_a="none", micro_m=14) > time_of(pack_a="none", micro_m=6, micro_n=4)
    assert time_of(threads=2) < 0.6 * time_of(threads=1)
    assert time_of(threads=2, block_M=1024, block_N=1024) > 0.9 * time_of(threads=1)  # one block
    wide = replace(HOST, core_bandwidth_bytes_per_s=1e9, name="slow memory")
    assert time_of(hardware=wide) > time_of()


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("m", [1, 4, 16])
def test_few_rows_wait_for_memory(m, transpose_b) -> None:
    weights = workload(m, 4096, 4096, transpose_b=transpose_b)
    knobs = {"block_M": 16, "micro_m": 4, "pack_a": "none"}
    space = space_of(weights)
    e = estimate(space, threads=1)
    arrival_s = 4096 * 4096 * 4 / HOST.core_bandwidth_bytes_per_s
    assert e.time_s.min() > 0.5 * arrival_s  # reading alone is faster than the copy it is told by
    if transpose_b:  # rows of B are as long as a step is deep
        pieces = [{"block_N": 64, "block_K": k} for k in (2048, 512, 128)]
    else:
        pieces = [{"block_N": n, "block_K": 64} for n in (2048, 512, 128)]
    times = [time_of(weights, **knobs, **p, pack_b="none") for p in pieces]
    assert times == sorted(times)
    if transpose_b:
        assert times[-1] > 1.5 * times[0] or m == 16
    else:  # narrow blocks are joined for one thread
        assert times[-1] < 1.05 * times[0]
        many = replace(HOST, cores=32)
        alone = [time_of(weights, 32, many, **knobs, **p, pack_b="none") for p in pieces[1:]]
        assert alone[-1] > 0.4 * alone[0] or m == 16  # four times as many threads have work
    slow = replace(HOST, core_bandwidth_bytes_per_s=1e9, name="slow memory")
    for pack_b in ("none", "block"):
        config = {**knobs, **pieces[0], "pack_b": pack_b}
        assert time_of(weights, hardware=slow, **config) > 2 * time_of(weights, **config)


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 4096, 4096), (3, 5000, 2048), (1, 512, 64)])
def test_blocks_of_few_rows_are_joined_as_the_compiler_does(m, n, k, dtype) -> None:
    """Blocks of the first version, which is the one for a single thread."""
    w = workload(m, n, k, dtype=dtype, out_dtype=dtype)
    target = parse_target("avx512")
    options = CpuOptions.parse({"pack_b": "none"}, target, {})
    pipeline = cpu_pipeline(target, options)
    configs = [BASE.replace(block_M=16, block_N=wide, pack_b="none") for wide in (32, 128, 384)]
    space = space_of(w)
    t = Tiling(space.site, space.known(space.table(configs)), HOST)
    alone = np.ones(len(configs))
    joined = joined_blocks(t, space.site, alone, 1)
    for number, config in enumerate(configs):
        func = run_passes(GEMM.program(dict(w.problem), config), pipeline=pipeline)
        launch = next(s for s in walk(func.body) if isinstance(s, KernelLaunch))
        blocks = t.grid_n / (1 if joined is None else joined)
        assert int_value(launch.grid[0]) == np.ceil(blocks[number])
    if joined is not None:
        assert (joined_blocks(t, space.site, alone, 7) == 1).all()  # of four blocks at most


def test_inferred_knobs_mean_what_the_lowering_infers() -> None:
    inferred = time_of(micro_m=0, micro_n=0, pack_a="auto", pack_b="auto")
    assert inferred == pytest.approx(time_of(pack_a="rows"))
    few = workload(64, 1024, 1024)
    alone = time_of(few, block_M=64, pack_b="grid")  # not shared: the lowering packs per block
    assert alone == pytest.approx(time_of(few, block_M=64, pack_b="block"))


@pytest.mark.parametrize("cores", [1, 2, 3, 8])
def test_the_busiest_core_is_the_one_that_counts(cores: int) -> None:
    w = workload(520, 1000, 256)
    space = space_of(w)
    columns = space.table(
        [
            BASE.replace(block_M=rows, block_N=wide, micro_m=micro)
            for rows in (32, 128, 512, 1024)
            for wide in (64, 256, 384, 1024)
            for micro in (6, 14)
        ]
    )
    t = Tiling(space.site, space.known(columns), HOST)
    shares = t.busiest_share(cores, np.ones(len(t.blocks)))
    for number, share in enumerate(shares):
        heights, widths = (
            [-(-min(block, whole - start) // tile) for start in range(0, whole, block)]
            for whole, block, tile in (
                (520, int(t.block_m[number]), int(t.micro_m[number])),
                (1000, int(t.block_n[number]), int(t.panel[number])),
            )
        )
        work = [h * w for h in heights for w in widths]
        each = -(-len(work) // cores)
        busiest = max(sum(work[i : i + each]) for i in range(0, len(work), each))
        assert share == pytest.approx(busiest / sum(work))


def test_two_cores_get_blocks_of_one_size() -> None:
    small = workload(512, 512, 512)
    halves = time_of(small, threads=2, block_M=512, block_N=256)
    assert halves < 0.8 * time_of(small, threads=2, block_M=512, block_N=384)


def test_bytes_take_the_time_of_the_instruction_that_a_cpu_has_for_them() -> None:
    """vpdpbusd sums up four products per lane at the rate of FMAs, vpmaddwd two."""
    plain = load_profile("avx2")
    client = replace(plain, features=(*plain.features, "avx_vnni"))
    fields = {"dtype": "int8", "accum_dtype": "int32", "out_dtype": "int32"}
    problem = GEMM.parse_problem({"m": 1024, "n": 1024, "k": 1024, **fields})
    spaces = [SearchSpace.build(GEMM, problem, h) for h in (plain, client)]
    slow_s, fast_s = (estimate(space, threads=1).time_s.min() for space in spaces)
    assert 1.6 < slow_s / fast_s < 2.6
    assert fast_s > 2 * 1024**3 / (4 * plain.peak_flop_per_s["float32"])
    site = spaces[0].site
    assert site is not None
    found = [instruction(site, h) for h in (plain, client, replace(client, vector_bytes=64))]
    assert [dot and dot.name for dot in found] == ["vpmaddwd", "vpdpbusd", "vpmaddwd"]


def test_features_are_finite_and_named() -> None:
    space = space_of(workload(1000, 77, 333))
    table = features(space, space.columns, estimate(space))
    assert table.shape == (len(space), len(NAMES))
    assert np.isfinite(table).all()


@pytest.mark.parametrize("threads", [1, 8])
def test_columns_of_an_answer_are_gone_with_it(threads: int) -> None:
    """What knows itself stays until garbage is looked for: megabytes per answer."""
    gc.disable()
    try:
        found = estimate(space_of(workload(520, 1000, 256)), threads=threads)
        found.on(2).at(0)
        assert found.tiling is not None
        tiling = weakref.ref(found.tiling)
        del found
        assert tiling() is None
    finally:
        gc.enable()
