"""Products on tiles of AMX: spaces without knobs of no effect, a model that knows the rates."""

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from db.exchange.t4 import t4_measurements
from recommender.analytic import estimate
from recommender.hardware import load_profile
from recommender.space import SearchSpace
from recommender.training import make_groups
from tests.recommender.support import GEMM

RECORDED = Path(__file__).parents[2] / "benchmarks/data/cpu_2026-11-22"
VECTOR = load_profile("avx512")
TILES = replace(
    VECTOR,
    l1d_bytes=48 << 10,
    l2_bytes=2 << 20,
    features=(*VECTOR.features, "amx_tile", "amx_bf16", "amx_int8"),
    peak_flop_per_s={"float32": 202e9, "bfloat16": 2.4e12, "int8": 4.8e12},
    core_bandwidth_bytes_per_s=11.6e9,
)
FIELDS = {
    "bfloat16": {"dtype": "bfloat16", "out_dtype": "bfloat16"},
    "int8": {"dtype": "int8", "accum_dtype": "int32", "out_dtype": "int32"},
}


def space_of(dtype, shape, hardware=TILES, **fields):
    problem = {**dict(zip("mnk", shape, strict=True)), **FIELDS.get(dtype, {}), **fields}
    return SearchSpace.build(GEMM, GEMM.parse_problem(problem), hardware)


def test_register_tiles_are_not_enumerated():
    space = space_of("bfloat16", (1024, 1024, 1024))
    assert set(space.columns["micro_m"]) == set(space.columns["micro_n"]) == {0}
    assert (space.columns["block_M"] % 32 == 0).all()
    assert 100 < len(space) < len(space_of("float32", (1024, 1024, 1024)))
    assert 0 not in space_of("bfloat16", (1024, 1024, 1024), VECTOR).columns["micro_m"]
    turned = space_of("bfloat16", (1024, 1024, 1024), transpose_a=True)  # whose rows are copied
    assert set(turned.columns["micro_m"]) == {0}


def test_odd_rows_are_said_to_be_not_worth_trying():
    space = space_of("int8", (1024, 1024, 1024))
    config = {**space.config(0), "block_M": 48}
    assert any("multiple of 32 rows of tiles" in line for line in space.explain(config))
    assert not any("of tiles" in s for s in space_of("int8", (40, 64, 64)).explain(config))


def test_estimates_follow_the_peak_of_the_type():
    shape = (1024, 1024, 1024)
    times = {d: estimate(space_of(d, shape), threads=1).time_s.min() for d in FIELDS}
    assert times["int8"] < 0.8 * times["bfloat16"]
    assert times["bfloat16"] > 2 * 1024**3 / 2.4e12
    slow = replace(TILES, peak_flop_per_s={"float32": 20e9})
    assert estimate(space_of("int8", shape, slow), threads=1).time_s.min() > times["int8"]


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", FIELDS)
def test_choices_among_recorded_configs(dtype):
    kept = []
    for path in sorted(RECORDED.glob(f"gemm_{dtype}_*.json.gz")):
        measured = t4_measurements(gzip.decompress(path.read_bytes()).decode(), path.name)
        (group,) = make_groups(measured, GEMM)
        space = SearchSpace.build(GEMM, dict(group.workload.problem), group.hardware)
        predicted = estimate(space, space.table(list(group.configs)), threads=1).time_s
        kept.append(group.time_s.min() / group.time_s[np.argmin(predicted)])
    assert len(kept) >= 6
    assert np.mean(kept) > 0.92
    assert min(kept) > 0.75
