"""Models and limits in straight-line code say what NumPy computes of the same formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recommender import analytic
from recommender.analytic import estimate, estimate_each
from recommender.errors import EmptySpace
from recommender.hardware import load_profile
from recommender.space import SearchSpace, space_of
from recommender.straight_line import MOST_TEXTS, StraightLine, from_table, place_of_largest
from tests.recommender.support import GEMM, HOST
from tests.recommender.test_open_shapes import AMX, problem_of
from tilecore import kernels
from tilecore.graph import build
from tilecore.kernels.definition import knob_symbols

DEVICES = (HOST, AMX, *map(load_profile, ("x86-64-avx2", "v100", "a100", "h100", "mi300x")))


def refused(*_args, **_options):
    raise AssertionError("left to NumPy")


@pytest.mark.few(2)
@pytest.mark.parametrize("name", sorted(kernels.KERNELS))
@settings(deadline=None, max_examples=8)
@given(data=st.data(), hardware=st.sampled_from(DEVICES))
def test_each_config_alone_is_as_in_columns(data, name, hardware):
    definition = kernels.get(name).on(hardware.kind)
    try:
        space = SearchSpace.build(definition, problem_of(data, definition), hardware)
    except EmptySpace:
        return
    rows = data.draw(st.lists(st.integers(0, len(space) - 1), min_size=1, max_size=4))
    configs = [*map(space.config, rows), definition.default_config(hardware.kind)]
    threads = data.draw(st.integers(0, 64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analytic, "estimate", refused)
        found = estimate_each(space, configs, threads=threads)
    for config, of_one in zip(configs, found, strict=True):
        wanted = estimate(space, space.table([config]), threads=threads).at(0)
        assert of_one.terms_s == pytest.approx(wanted.terms_s, rel=1e-12)
        assert of_one.explain() == wanted.explain()
    knobs = definition.knobs_of(hardware.kind)
    others = [
        {knob.name: data.draw(st.sampled_from(knob.values_on(hardware.kind))) for knob in knobs}
        for _ in range(6)
    ]
    hard = [limit for limit in space.limits if limit.is_hard]
    columns = [space.table([config]) for config in others]
    kept = [all(np.all(limit.holds(c)) for limit in hard) for c in columns]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SearchSpace, "table", refused)
        assert space.can_run(others) == kept


def test_programs_without_open_sizes_are_left_to_numpy():
    space = SearchSpace.build(GEMM, GEMM.parse_problem({"m": 8, "n": 64, "k": 64}), HOST)
    graph = build(GEMM.program(space.problem, knob_symbols(GEMM)))
    closed = space_of(GEMM, space.problem, HOST, graph)
    configs = [space.config(row) for row in (0, len(space) - 1)]
    found, wanted = ([e.explain() for e in estimate_each(s, configs)] for s in (closed, space))
    assert found == wanted


NUMBER = st.one_of(st.integers(1, 5000), st.floats(0.01, 1e6))


def formulas(c):
    a, b, n = c["a"], c["b"], c["n"]
    is_less = (a < b) & ~(n == 3) | (b >= 100)
    whole, rest = divmod(np.ceil(a), np.floor(b) + 1)
    some = np.where(is_less, np.minimum(a, b), np.maximum(a, 2.0) ** 0.5)
    some += np.sqrt(a) / b + np.expm1(-1 / a) + np.log2(b + 1) - np.exp(-a)
    return {
        "some": some, "whole": whole, "rest": rest, "left": -(7 - a) % 3.5, "floor": a // b,
        "gcd": np.gcd(n, 12) * 1.0, "entry": from_table((0.5, 2, 4), n % 3),
        "largest": place_of_largest([a, b, n.astype(float)]) + 0.0,
        "text": np.where(c["text"] == "auto", 1.0, np.where(c["text"] != "none", 2.0, 3.0)),
        "cut": (a + b).astype(int) + np.abs(a - b), "flag": np.where(c["flag"], 1.0, 0.0),
        "constant": 4,
    }  # fmt: skip


STRAIGHT = StraightLine(formulas)


@given(NUMBER, NUMBER, st.integers(0, 99), st.sampled_from(("auto", "none", "b")), st.booleans())
def test_formulas_are_numpys(a, b, n, text, flag):
    values = {"a": a, "b": b, "n": n, "text": text, "flag": flag}
    found = STRAIGHT(values)
    wanted = formulas({name: np.array([value]) for name, value in values.items()})
    assert found == pytest.approx({k: np.asarray(v).item() for k, v in wanted.items()}, rel=1e-14)


def test_a_branch_that_goes_another_way_has_a_text_of_its_own():
    calls = []

    def halved(c):
        calls.append(c)
        return {"x": c["x"] / 2 if c["x"] > 10 else c["x"] + c["y"]}

    straight = StraightLine(halved)
    assert [straight({"x": x, "y": 1})["x"] for x in (20, 4, 12, 6)] == [10, 5, 6, 7]
    assert len(calls) == 2


def test_a_function_that_goes_too_many_ways_is_left_to_numpy():
    straight = StraightLine(lambda c: {"x": next(i for i in range(99) if c["x"] == i)})
    ways = range(MOST_TEXTS)
    assert [straight({"x": x}) for x in ways] == [{"x": x} for x in ways]
    assert straight({"x": MOST_TEXTS}) is None
    assert straight({"x": 3}) == {"x": 3}


@pytest.mark.parametrize("function", [
    lambda c: {"x": float(c["x"])},
    lambda c: {"x": np.sort(c["x"])},
    lambda c: {"x": np.add.reduce(c["x"])},
    lambda c: {"x": c["x"] + np.arange(3)},
    lambda c: {"x": np.where(c["x"] > 0, *np.ones((2, 4)))},
    lambda c: {"x": sum(c["x"])},
])  # fmt: skip
def test_what_has_no_text_is_left_to_numpy(function):
    assert StraightLine(function)({"x": 4}) is None


def test_what_plain_numbers_refuse_is_left_to_numpy():
    straight = StraightLine(lambda c: {"x": np.where(c["x"] > 0, 1 / c["x"], 0.0)})
    assert straight({"x": 4}) == {"x": 0.25}
    assert straight({"x": 0}) is None
    assert straight({"x": 2}) == {"x": 0.5}
