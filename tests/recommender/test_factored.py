"""Factored columns give what plain columns give, for fewer elements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recommender import factored
from recommender.analytic import estimate
from recommender.factored import Factored, Grid, constant
from recommender.hardware import load_profile
from recommender.predict import first_of_sort
from recommender.space import SearchSpace
from tilecore import kernels

CHOICES = {
    "a": np.array([1, 2, 4, 8, 16]),
    "b": np.array([3, 5, 7, 9]),
    "c": np.array([10, 20, 30, 40, 50, 60]),
    "pack": np.array(["auto", "none", "block"]),
}
FORMULAS = {
    "one knob": lambda c: np.ceil(100 / c["a"]) * 2.0,
    "two knobs": lambda c: c["a"] * c["b"] % 7 == 0,
    "all knobs": lambda c: np.where(c["pack"] == "none", c["a"] * c["b"], c["c"]) / c["a"],
    "divmod": lambda c: divmod(c["c"], c["b"])[0] + divmod(c["c"], c["b"])[1] * c["a"],
    "with a plain column": lambda c: c["a"] + np.arange(len(c["a"])),
    "reduced": lambda c: np.maximum.reduce([c["a"], c["b"], np.minimum(c["c"], 8)]),
    "stacked": lambda c: np.argmax(np.stack([c["a"], c["b"], c["c"]]), axis=0),
    "selected": lambda c: np.select([c["a"] > 4, c["b"] > 4], [c["c"], c["a"]], -1),
    "without knobs": lambda c: constant(3, c["a"]) * 2.0,
    "negated": lambda c: ~(c["pack"] == "auto") & (c["a"] <= c["b"]),
    "mean": lambda c: np.mean(c["a"] * c["c"]),
}


@pytest.fixture(params=[1.0, 0.2], ids=["all points", "some points"])
def both(request):
    sizes = [len(values) for values in CHOICES.values()]
    rng, total = np.random.default_rng(5), int(np.prod(sizes))
    codes = np.flatnonzero(rng.random(total) < request.param)
    digits = np.unravel_index(codes, sizes)
    plain = {k: v[d] for (k, v), d in zip(CHOICES.items(), digits, strict=True)}
    return Grid(sizes, codes).columns(CHOICES), plain


@pytest.mark.parametrize("formula", FORMULAS.values(), ids=FORMULAS.keys())
def test_formulas_give_what_plain_columns_give(both, formula):
    factored, plain = both
    np.testing.assert_array_equal(np.asarray(formula(factored)), formula(plain))


def test_rows_and_single_elements_are_those_of_the_column(both):
    factored, plain = both
    product = factored["a"] * factored["b"]
    rows = np.array([3, 0, 17])
    np.testing.assert_array_equal(product[rows], (plain["a"] * plain["b"])[rows])
    assert product[5].item() == plain["a"][5] * plain["b"][5]
    assert product.shape == (len(product),) == plain["a"].shape


def test_few_combinations_stay_few(both):
    factored, _ = both
    found = factored["a"] * 2 + factored["pack"].astype("U5").__eq__("none")
    assert isinstance(factored["a"] * 2.0, Factored)
    assert (factored["a"] * 2.0).values.size == 5
    assert not isinstance(found + factored["b"] * factored["c"], Factored)  # as many as configs


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("kernel", "problem", "device"),
    [
        ("gemm", {"m": 333, "n": 512, "k": 777}, "x86-64-avx512"),
        ("gemm", {"m": 512, "n": 512, "k": 512, "dtype": "bfloat16"}, "x86-64-avx512"),
        ("gemm", {"m": 4096, "n": 4096, "k": 4096, "dtype": "float16"}, "h100-sxm"),
        ("softmax", {"m": 512, "n": 1024}, "x86-64-avx2"),
    ],
)
def test_a_space_is_estimated_as_its_configs_are(kernel, problem, device):
    definition = kernels.get(kernel)
    space = SearchSpace.build(definition, definition.parse_problem(problem), load_profile(device))
    rows = np.linspace(0, len(space) - 1, 200, dtype=int)
    configs = [space.config(row) for row in rows]
    assert all(not space.explain(config) for config in configs)
    alone = estimate(space, space.table(configs))
    whole = estimate(space)
    np.testing.assert_allclose(whole.time_s[rows], alone.time_s, rtol=1e-12)
    for name, seconds in alone.terms_s.items():
        np.testing.assert_allclose(whole.terms_s[name][rows], seconds, rtol=1e-9, atol=1e-18)


def test_legal_configs_are_found_once_for_all_shapes_that_have_the_same(monkeypatch):
    calls = []
    found_codes = factored.kept_codes
    monkeypatch.setattr(
        factored, "kept_codes", lambda *given: calls.append(1) or found_codes(*given)
    )
    device, gemm = load_profile("avx512"), kernels.get("gemm")
    spaces = [
        SearchSpace.build(gemm, gemm.parse_problem({"m": m, "n": 768, "k": 1000}), device)
        for m in (1200, 1201, 1202, 3)
    ]
    assert len(calls) == 2
    assert spaces[0].codes is spaces[1].codes is spaces[2].codes
    assert len(spaces[3]) != len(spaces[0])


@given(
    times=st.lists(st.sampled_from([0.5, 1.0, 1.5, np.inf]) | st.floats(0, 1), max_size=60),
    repeats=st.integers(1, 200), count=st.sampled_from([1, 5, 64, 512]), seed=st.integers(0, 99),
)  # fmt: skip
def test_the_fastest_are_the_first_of_a_stable_sort(times, repeats, count, seed):
    all_times = np.random.default_rng(seed).permutation(np.tile(np.array(times, float), repeats))
    expected = np.argsort(all_times, kind="stable")[:count]
    np.testing.assert_array_equal(first_of_sort(all_times, count), expected)
