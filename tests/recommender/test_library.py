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
