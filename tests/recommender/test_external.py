"""Spaces of external kernels: values and conditions as data."""

import itertools
import json
import math
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recommender.conditions import Condition
from recommender.errors import InvalidExternalSpace
from recommender.external import ExternalSpace
from recommender.joined import joined
from recommender.recorded import RecordedSpace
from recommender.search import STRATEGIES, Observations

DATA = Path(__file__).parents[2] / ".." / "shared" / "data" / "benchmark_hub"
TILES = {"BM": (64, 128, 256), "BN": (64, 128), "stages": (2, 3, 4), "layout": ("nt", "nn")}
CONDITIONS = ("(BM + BN) * 64 * stages <= 48 * 1024", "layout == 'nt' or BN % 128 == 0")


@pytest.mark.parametrize(
    "text",
    [
        "a <= b", "not a == 2 and b > 1", "a in (1, 2) or b not in [3]", "1 < a <= b < 9",
        "a * b % 4 == 0", "-a + b // 2 >= -1", "min(a, b, 3) == a", "max(a, b) - abs(a - b) < 4",
        "a ** 2 < b", "a / b <= 0.5", "s == 'x' or a == 1", "s in ('x', 'y')", "True", "a",
        "a != 0 and b % a == 0", "a == 0 or b // a > 1", "0 < a <= b / a", "not a or a ** -b < 1",
        "a in (b, b - 1, 7)", "a not in (b + 1,)", "a in ()", "1 < b in (2, a + 3)", "s < 'y'",
    ],
)  # fmt: skip
def test_conditions_mean_what_python_means(text):
    domain = list(itertools.product((0, 1, 2, 3), (1, 2, 5), ("x", "z")))
    condition = Condition(text, "abs")
    columns = [np.array(column) for column in zip(*domain, strict=True)]
    held = condition.holds(dict(zip("abs", columns, strict=True)))
    expected = [bool(eval(text, {"a": a, "b": b, "s": s})) for a, b, s in domain]
    assert held.tolist() == expected


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')", "a.real", "a[0]", "(lambda: 1)()", "open('x')", "c <= 1", "a <", "",
        "f'{a}'", "[x for x in a]", "a := 1", "min()", "abs(x=1)", "1j", "None", "a if a else b",
        "a" * 3000, "+".join(["a"] * 500), "(" * 300 + "a" + ")" * 300, "\0", "abs(a, b)",
        "a < 'x'", "-'x'", "a and 'x' * 2", "max", "min < a", "max(min, a)",
        "'x' + 'y' == 'xy'", "a < " + "9" * 400, "a < 0x1" + "0" * 1900, "-" * 1900 + "a",
        "a in 'x'", "a in b", "a == (1, 2)", "a in ((1, 2),)", "a in (1, 2) == b", "(1, 2)",
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_its_reason(text):
    columns = {"a": np.array([1.0, 2.0]), "b": np.array([1.0, 2.0])}
    with pytest.raises(InvalidExternalSpace, match="RC610"):
        Condition(text, "ab").holds(columns)


@pytest.mark.parametrize("text", ["b % a == 0", "1 / 0 > a", "a ** -1 < 9", "a > 1 or b // a > 1"])
def test_a_division_by_zero_is_told_with_where_it_happens(text):
    columns = {"a": np.array([4, 1, 0]), "b": np.array([4, 5, 6])}
    with pytest.raises(InvalidExternalSpace, match="a division by zero where a = "):
        Condition(text, "ab").holds(columns)
    if "1 / 0" not in text:
        held = Condition(text, "ab").holds(columns, np.array([True, True, False]))
        assert held[:2].tolist() == [
            bool(eval(text, {"a": a, "b": b})) for a, b in ((4, 4), (1, 5))
        ]


def test_texts_are_never_copied_out_over_a_grid():
    """A request of 64 KiB took gigabytes: 4 M combinations, each with room for the longest text."""
    texts = tuple(f"{i:0>1000}" for i in range(1000))
    domain = {"s": texts, "t": texts[:4], "a": tuple(range(500))}
    tracemalloc.start()
    space = ExternalSpace(domain, (f"t == '{texts[3]}' and t < s and a in (3, 4)",))
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()
    assert len(space) == 996 * 2
    with pytest.raises(InvalidExternalSpace, match="texts can only be compared"):
        ExternalSpace(domain, ("s + t != t + s",))


def test_a_condition_is_asked_of_what_those_before_it_keep():
    domain = {"a": (0, 1, 2), "s": ("x", "y"), "b": (2, 3)}
    space = ExternalSpace(domain, ("a != 0 or s == 'y'", "s == 'x'", "b % a == 0"))
    assert [space.config(row) for row in range(len(space))] == [
        {"a": 1, "s": "x", "b": 2}, {"a": 1, "s": "x", "b": 3}, {"a": 2, "s": "x", "b": 2},
    ]  # fmt: skip
    with pytest.raises(InvalidExternalSpace, match="a division by zero where a = 0, b = 2"):
        len(ExternalSpace(domain, ("b % a == 0", "a != 0")))


PARTS = ("a + b <= 4", "c * a >= 2", "s == 'x' or b > 1", "b != 2", "s < 'y' and d in (0, 3)", "d",
         "a != 0", "c % a == 0", "a > 0 and b % a == 0", "min(a, d) < c", "1 < 2")  # fmt: skip


@given(st.lists(st.sampled_from(PARTS), max_size=6), st.permutations("abcds"))
def test_joined_parameters_are_those_of_the_grid(texts, names):
    values = {"a": (0, 1, 2), "b": (1, 2, 3), "c": (4, 1), "d": (0, 3), "s": ("x", "z")}
    parameters = {name: values[name] for name in names}
    conditions = [Condition(text, parameters) for text in texts]
    try:
        expected = ExternalSpace(parameters, tuple(texts))._codes.tolist()
    except InvalidExternalSpace as error:
        if error.fields["what"] != "space":  # a division that a later condition may rule out
            return
        expected = []
    assert joined(parameters, conditions, 1000).codes.tolist() == expected


def test_a_space_of_many_combinations_is_found_by_its_conditions():
    """A Triton kernel's ten parameters were refused: more than 4 million combinations."""
    tiles, few = (16, 32, 64, 128, 256), (1, 2, 4, 8, 16)
    parameters = {"BM": tiles, "BN": tiles, "BK": tiles, "group": few, "warps": few,
                  "stages": (1, 2, 3, 4, 5, 6, 7), "split": few, "order": ("a", "b"),
                  "x": tuple(range(100))}  # fmt: skip
    conditions = (
        "(BM * BK + BK * BN) * 2 * stages <= 64 * 1024", "BM * BN == warps * 32 * 64",
        "split == 1 or BK >= 64", "order == 'a' or split == 2", "x % 50 == group",
        "x // 50 < split",
    )  # fmt: skip
    began = time.process_time()
    space = ExternalSpace(parameters, conditions)
    assert time.process_time() - began < 1.0
    assert len(space) > 1000
    for row in (0, 777, len(space) - 1):
        config = space.config(row)
        assert all(eval(c, dict(config)) for c in conditions)
        assert space.row(config) == row
    parameters = {f"p{i}": tuple(range(1, 1000)) for i in range(4)}
    with pytest.raises(InvalidExternalSpace, match="conditions on few of them"):
        ExternalSpace(parameters, ("p0 * p1 * p2 * p3 == 12345",))


WIDE = {name: tuple(range(100)) for name in "abcd"}
SUMS = np.convolve(np.ones(100, int), np.ones(100, int))  # how often b + c is each number
BELOW = np.cumsum(SUMS)
BELOW_150 = {(a, d): int(BELOW[149 - a - d]) for a in range(100) for d in range(100) if a + d < 150}


@pytest.mark.parametrize(
    ("parameters", "conditions", "legal", "is_exact"),
    [
        ({name: WIDE[name] for name in "abc"}, (), 10**6, True),  # looked at as a grid
        (WIDE, (), 10**8, True),
        (WIDE, ("a + b < 100",), 5050 * 10**4, True),  # parameters join, and all is counted
        (WIDE, ("a < 10", "b % 2 == 0 or c % 2 == 0", "d + a > 9"), 7500 * 945, False),
        (WIDE, ("a + b + c + d < 150",), sum(BELOW_150.values()), False),
        (WIDE, ("a + b + c + d < 150", "a != 0 and d // a < 5"),
         sum(count for (a, d), count in BELOW_150.items() if a and d // a < 5), False),
    ],
)  # fmt: skip
def test_of_very_many_configurations_a_sample_is_known(parameters, conditions, legal, is_exact):
    """More than 200,000 were refused."""
    space = ExternalSpace(parameters, conditions)
    assert abs(len(space) - legal) <= (0 if is_exact else 0.01 * legal)
    assert space.is_estimate is not is_exact
    rows = space.sample
    assert 55_000 < len(rows) == len(set(rows.tolist())) <= 1 << 16
    configs = [space.config(int(row)) for row in rows[::97]]
    assert all(eval(c, dict(config)) for config in configs for c in conditions)
    assert [space.find(config) for config in configs] == rows[::97].tolist()
    assert np.array_equal(ExternalSpace(parameters, conditions).sample, rows)
    values = space.features(rows)
    for column, name in zip(values.T, parameters, strict=True):  # as likely as any other
        if not any(name in condition for condition in conditions):
            assert np.bincount(column.astype(int), minlength=100).max() < 1.25 * len(rows) / 100
    landscape = space.landscape(rows)
    assert len(landscape) == len(rows)
    steps = {row: landscape.neighbours(row) for row in range(0, len(rows), 97)}
    assert all(np.abs(values[row] - values[n]).sum() == 1 for row in steps for n in steps[row])


def test_what_is_around_a_configuration_of_a_sample():
    untold = "1 % (abs(a - 61) + abs(b - 12) + abs(c - 6) + d) < 9"  # of one of them
    space = ExternalSpace(WIDE, ("a + b + c + d < 300", untold, "c != 7"))
    config = {"a": 60, "b": 12, "c": 6, "d": 0}
    found = [space.config(int(row)) for row in space.around(space.row(config))]
    apart = [{k: abs(config[k] - other[k]) for k in "abcd"} for other in found]
    assert all(sum(c.values()) < 300 and c["c"] != 7 for c in found)
    assert {"a": 61, "b": 12, "c": 6, "d": 0} not in found
    assert {"a": 99, "b": 12, "c": 6, "d": 0} in found
    assert {"a": 61, "b": 11, "c": 6, "d": 0} in found
    assert {"a": 60, "b": 12, "c": 6, "d": 99} in found
    assert {"a": 60, "b": 12, "c": 7, "d": 0} not in found
    assert all(sorted(d.values())[:3] == [0, 0, 0] or sorted(d.values()) == [0, 0, 1, 1]
               for d in apart)  # fmt: skip
    assert all(any(d.values()) for d in apart)
    assert space.find(config | {"c": 7}) is None


@given(st.text(max_size=60))
def test_no_text_does_harm(text):
    try:
        held = Condition(text, "a").holds({"a": np.array([1.0])})
    except InvalidExternalSpace:
        return
    assert (held.dtype, held.shape) == (np.bool_, (1,))


def test_rows_are_exactly_the_configs_that_keep_the_conditions():
    space = ExternalSpace(TILES, CONDITIONS)
    expected = [
        dict(zip(TILES, values, strict=True))
        for values in itertools.product(*TILES.values())
        if all(eval(c, dict(zip(TILES, values, strict=True))) for c in CONDITIONS)
    ]
    assert [space.config(row) for row in range(len(space))] == expected
    assert [space.find(config) for config in expected] == list(range(len(space)))
    assert space.find(expected[0] | {"BM": 63}) is None
    assert space.find({"BM": 64}) is None


def test_neighbours_differ_in_one_parameter_by_one_step():
    space = ExternalSpace(TILES, CONDITIONS)
    landscape = space.landscape()
    steps = [list(values).index for values in TILES.values()]

    def distance(a, b):
        pairs = zip(steps, space.config(a).values(), space.config(b).values(), strict=True)
        return sum(abs(at(x) - at(y)) for at, x, y in pairs)

    for row in range(len(space)):
        expected = [other for other in range(len(space)) if distance(row, other) == 1]
        assert sorted(landscape.neighbours(row)) == expected


def test_a_list_is_a_space_of_its_own():
    listed = [
        {"BM": 2**i, "warps": w, "layout": x} for i in range(30) for w, x in ((4, "n"), (8, "t"))
    ]
    space = ExternalSpace.of_list(listed[::-1], default=listed[7])
    assert len(space) == 60
    assert sorted(map(str, map(space.config, range(60)))) == sorted(map(str, listed))
    assert all(space.config(space.row(config)) == config for config in listed)
    assert space.find(listed[0] | {"warps": 8}) is None
    assert space.key == ExternalSpace.of_list(listed[::-1]).key
    assert space.key != ExternalSpace.of_list(listed[:59]).key
    near = [space.config(row) for row in space.landscape().neighbours(space.row(listed[20]))]
    assert listed[18] in near
    assert listed[20] not in near
    rows = STRATEGIES["evolutionary"].ask(8, space.landscape(), Observations(), 0)
    assert len(set(rows)) == 8


BAD = {
    "no parameter": ({}, ()),
    "no values": ({"a": ()}, ()),
    "twice the same": ({"a": (1, 1)}, ()),
    "mixed": ({"a": (1, "x")}, ()),
    "odd name": ({"a b": (1,)}, ()),
    "too many": ({f"p{i}": tuple(range(1000)) for i in range(7)}, ()),
    "huge": ({"a": (2**60,)}, ()),
    "beyond all": ({"a": (10**5000,)}, ()),
    "no number": ({"a": (math.nan,)}, ()),
    "long text": ({"a": ("x" * 1025, "y")}, ()),
    "long name": ({"a" * 1025: (1,)}, ()),
    "nothing left": ({"a": (1, 2)}, ("a > 2",)),
    "unknown name": ({"a": (1, 2)}, ("b > 2",)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_spaces_say_what_is_wrong(name):
    with pytest.raises(InvalidExternalSpace, match="RC610"):
        ExternalSpace(*BAD[name])


def test_a_default_must_be_in_the_space():
    good = {"BM": 64, "BN": 64, "stages": 2, "layout": "nt"}
    assert ExternalSpace(TILES, CONDITIONS, good).row(good) == 0
    with pytest.raises(InvalidExternalSpace, match="default"):
        ExternalSpace(TILES, CONDITIONS, good | {"layout": "nn"})


def test_a_t1_document_spans_the_space_that_was_measured():
    document = json.loads((DATA / "raw" / "T1_convolution_milo.json").read_text())
    began = time.process_time()
    space = ExternalSpace.of_t1(document)
    landscape = space.landscape()
    assert time.process_time() - began < 5.0
    recorded = RecordedSpace.load(DATA / "csv" / "convolution_milo__A100.csv.gz")
    known = {
        tuple(sorted((k, float(v)) for k, v in zip(recorded.knobs, c, strict=True)))
        for c in recorded.configs
    }
    configs = [space.config(row) for row in range(len(space))]
    mine = {
        tuple(sorted((k, float(v)) for k, v in c.items() if k in recorded.knobs)) for c in configs
    }
    assert known <= mine
    assert len(space) == len(recorded)
    rows = STRATEGIES["model"].ask(8, landscape, Observations(), 0)
    assert len(set(rows)) == 8
    with pytest.raises(InvalidExternalSpace, match="T1"):
        ExternalSpace.of_t1({"ConfigurationSpace": {}})


@pytest.mark.parametrize(
    "values",
    ["-" * 5_000 + "1", "-" * 60_000 + "1", "[" * 5_000, "[0x1" + "0" * 60_000 + "]", "[1e999]"],
    ids=lambda values: values[:4],
)
def test_values_of_a_t1_document_that_are_none(values):
    """Python's reader gives up on the first with errors that nobody caught."""
    parameters = [{"Name": "a", "Values": values}]
    with pytest.raises(InvalidExternalSpace, match="RC610"):
        ExternalSpace.of_t1({"TuningParameters": parameters})
