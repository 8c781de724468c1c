"""The structure of model files: what XGBoost writes passes, what would crash it does not."""

import json
import random

import numpy as np
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st

from recommender.cost_model import CostModel, reloaded
from recommender.errors import InvalidModel
from recommender.model_file import check_structure, parse

FEATURES = 5


def trained(form="json", **options):
    rng = np.random.default_rng(3)
    rows = rng.random((80, FEATURES)).astype(np.float32)
    matrix = xgboost.DMatrix(rows, label=rows[:, 0] - rows[:, 1], nthread=1)
    given = {"max_depth": 3, "nthread": 1, "objective": "reg:squarederror", **options}
    return bytes(xgboost.train(given, matrix, 4).save_raw(form))


RAW = trained()


@pytest.mark.parametrize("form", ["json", "ubj"])
@pytest.mark.parametrize("objective", ["reg:squarederror", "reg:pseudohubererror"])
def test_what_xgboost_writes_is_taken_and_predicts_the_same(form, objective):
    raw = trained(form, objective=objective)
    document = reloaded(raw, FEATURES)
    check_structure(parse(document), FEATURES)
    rows = np.random.default_rng(4).random((9, FEATURES)).astype(np.float32)
    booster = xgboost.Booster({"nthread": 1})
    booster.load_model(bytearray(raw))
    model = CostModel.of_json(document, feature_schema="f")
    expected = np.exp(booster.inplace_predict(rows).astype(np.float64))
    assert model.predict(rows).factor == pytest.approx(expected)


def tree(document):
    return document["learner"]["gradient_booster"]["model"]["trees"][1]


def in_place(path, value):
    def change(document):
        *parents, last = path
        holder = document
        for name in parents:
            holder = holder[name]
        holder[last] = value

    return change


def of_tree(name, index, value):
    return lambda document: tree(document)[name].__setitem__(index, value)


LEARNER = ("learner", "learner_model_param")
FAULTS = {
    "a circle": (of_tree("left_children", 1, 0), "tree 1, node 1: a child"),
    "a child out of range": (of_tree("right_children", 0, 10**6), "tree 1, node 0: a child"),
    "a negative child": (of_tree("right_children", 0, -2), "tree 1, node 0: a child"),
    "one child": (of_tree("right_children", 0, -1), "no child or two"),
    "a foreign feature": (of_tree("split_indices", 0, 10**6), "a feature below 5"),
    "another parent": (of_tree("parents", 1, 2), "a child of its own"),
    "no number": (of_tree("split_conditions", 0, float("nan")), "finite numbers"),
    "a text": (of_tree("split_indices", 0, "0"), "integers as split_indices"),
    "a huge leaf": (of_tree("split_conditions", -1, 1e9), "a leaf of a logarithm"),
    "a short column": (lambda d: tree(d)["parents"].pop(), "parents"),
    "categories": (of_tree("split_type", 0, 1), "splits of numbers"),
    "more trees told": (
        in_place(("learner", "gradient_booster", "model", "gbtree_model_param", "num_trees"), "9"),
        "num_trees",
    ),
    "another booster": (in_place(("learner", "gradient_booster", "name"), "dart"), "gbtree"),
    "classes": (in_place((*LEARNER, "num_class"), "3"), "a regression"),
    "another width": (in_place((*LEARNER, "num_feature"), "6"), "num_feature 5"),
    "another target": (in_place(("learner", "objective", "name"), "rank:ndcg"), "objective"),
    "an endless score": (in_place((*LEARNER, "base_score"), "[inf]"), "base_score"),
    "no learner": (lambda d: d.pop("learner"), "learner"),
    "rounds beyond": (
        in_place(("learner", "gradient_booster", "model", "iteration_indptr"), [0, 9]),
        "iteration_indptr",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_named(name):
    document = json.loads(RAW)
    change, said = FAULTS[name]
    change(document)
    with pytest.raises(InvalidModel, match=said) as refused:
        check_structure(document, FEATURES)
    assert refused.value.hint


@pytest.mark.parametrize("raw", [b"", b"[]", b"\xff", b"{" * 100_000, b"[" * 100_000])
def test_what_is_no_document_is_refused(raw):
    with pytest.raises(InvalidModel, match="RC604"):
        parse(raw)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_flipped_bytes_are_refused_or_leave_a_sound_structure(seed):
    rng, raw = random.Random(seed), bytearray(RAW)
    for _ in range(rng.randint(1, 8)):
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    try:
        document = parse(bytes(raw))
        check_structure(document, FEATURES)
    except InvalidModel:
        return
    for t in document["learner"]["gradient_booster"]["model"]["trees"]:  # it ends, and in range
        for row in np.random.default_rng(seed).random((3, FEATURES)):
            node, steps = 0, 0
            while t["left_children"][node] != -1:
                is_left = row[t["split_indices"][node]] < t["split_conditions"][node]
                node = t["left_children" if is_left else "right_children"][node]
                steps += 1
            assert steps < len(t["parents"])


def test_what_xgboost_says_of_damage_is_told_without_places_in_its_sources():
    raw = trained("ubj")
    with pytest.raises(InvalidModel, match="XGBoost says") as refused:
        reloaded(raw[: len(raw) * 2 // 3], FEATURES)
    assert "/" not in refused.value.message
    assert "[" not in refused.value.message
