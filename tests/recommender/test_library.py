"""Every kernel of the library has a space of configs with estimates."""

from __future__ import annotations

import numpy as np
import pytest

from recommender.analytic import estimate
from recommender.space import SearchSpace
from tests.recommender.support import HOST
from tilecore.kernels import KERNELS

HEADS = {"batch": 1, "heads": 4, "kv_heads": 2, "dim": 64, "causal": True}
PROBLEMS = {
    "batched_gemm": {"batch": 3, "m": 100, "n": 200, "k": 300},
    "split_k_gemm": {"m": 64, "n": 64, "k": 20000},
    "attention": {**HEADS, "seq_q": 100, "seq_kv": 300},
    "attention_backward": {**HEADS, "seq_q": 100, "seq_kv": 300},
    "decode_attention": {**HEADS, "seq_q": 1, "seq_kv": 300},
    "linear_attention": {"batch": 1, "heads": 2, "seq_len": 100, "dim": 64, "dim_v": 32},
}


@pytest.mark.covering
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_spaces_have_estimates(name: str, dtype: str) -> None:
    definition = KERNELS[name]
    problem = definition.parse_problem({**PROBLEMS[name], "dtype": dtype})
    space = SearchSpace.build(definition, problem, HOST)
    space.check(definition.default_config())
    times_s = estimate(space, threads=1).time_s
    assert np.isfinite(times_s).all()
    assert (times_s > 0).all()


def test_a_batch_takes_as_often_the_time_of_one_product() -> None:
    definition = KERNELS["batched_gemm"]
    one, many = (
        SearchSpace.build(
            definition,
            definition.parse_problem({"batch": count, "m": 256, "n": 320, "k": 200}),
            HOST,
        )
        for count in (1, 24)
    )
    columns = one.columns
    alone, together = (estimate(space, columns, threads=1) for space in (one, many))
    launch = alone.terms_s["launch"]
    np.testing.assert_allclose(together.time_s - launch, 24 * (alone.time_s - launch))
    assert (estimate(many, columns, threads=2).time_s < together.time_s).all()


def test_rows_of_experts_are_computed_in_whole_tiles() -> None:
    definition = KERNELS["grouped_gemm"]
    experts, rows = 12, 600
    problem = definition.parse_problem({"experts": experts, "m": rows, "n": 512, "k": 256})
    space = SearchSpace.build(definition, problem, HOST)
    found = estimate(space, threads=1)
    assert found.tiling is not None
    assert found.tiling.m == rows / experts
    assert found.tiling.products == experts
    rng = np.random.default_rng()
    begins = np.sort(rng.integers(0, rows + 1, (4000, experts - 1)), axis=1)
    sizes = np.diff(begins, axis=1, prepend=0, append=rows)
    for block, computed in zip(
        space.columns["block_M"], np.asarray(found.tiling.rows), strict=True
    ):
        mean = (np.ceil(sizes / block) * block).mean()
        assert computed == pytest.approx(mean, rel=0.2)
    config = space.config(int(np.argmin(found.time_s)))
    assert int(config["block_M"]) <= 32  # 112 rows would be computed for 50


def test_experts_without_rows_cost_nothing() -> None:
    definition = KERNELS["grouped_gemm"]
    sizes = {"m": 8, "n": 768, "k": 1024}
    times = []
    for experts in (8, 128, 1024):
        problem = definition.parse_problem({"experts": experts, **sizes})
        found = estimate(SearchSpace.build(definition, problem, HOST), threads=1)
        assert found.tiling is not None
        times.append(found.time_s.min())
    few, many, most = times
    assert few < many < 2 * few  # of 8 experts some have several rows
    assert most == pytest.approx(many, rel=0.05)
