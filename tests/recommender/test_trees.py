"""Trees as arrays predict to the bit as XGBoost does, and refuse files that it would crash on."""

import base64
import gzip
import json
import subprocess
import sys

import numpy as np
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st

from recommender.cost_model import CostModel
from recommender.errors import InvalidModel
from recommender.families import schema_of
from recommender.prior import FOLDER
from recommender.trees import Trees
from tests.recommender.test_model_file import FEATURES, RAW, in_place, of_tree, trained

SHIPPED = sorted(FOLDER.glob("*.json.gz"))


def of_xgboost(raw):
    booster = xgboost.Booster({"nthread": 1})
    booster.load_model(bytearray(raw))
    return booster


def shipped(path):
    return base64.b64decode(json.loads(gzip.decompress(path.read_bytes()))["booster"])


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_models_that_ship_predict_to_the_bit_as_by_xgboost(path):
    raw = shipped(path)
    trees, booster = Trees.of_json(raw), of_xgboost(raw)
    rng = np.random.default_rng(7)
    borders = trees.threshold[rng.integers(len(trees.threshold), size=(3000, trees.columns))]
    spread = np.float32(10.0) ** rng.integers(-2, 5, (3000, trees.columns)).astype(np.float32)
    rows = np.where(rng.random(spread.shape) < 0.5, borders, spread).astype(np.float32)
    rows[1000:][rng.random((2000, trees.columns)) < 0.1] = np.nan
    rows[2000:][rng.random((1000, trees.columns)) < 0.05] = np.inf
    assert len(np.unique(booster.inplace_predict(rows))) > 1000
    np.testing.assert_array_equal(trees.predict(rows), booster.inplace_predict(rows))


@settings(max_examples=30, deadline=None)
@given(
    objective=st.sampled_from(["reg:squarederror", "reg:pseudohubererror", "reg:absoluteerror"]),
    max_depth=st.integers(1, 9), tree_method=st.sampled_from(["exact", "hist"]),
    base_score=st.none() | st.floats(-3, 3), count=st.sampled_from([0, 1, 40]),
    lacking=st.sampled_from([0.0, 0.3, 1.0]), seed=st.integers(0, 999),
)  # fmt: skip
def test_models_of_any_shape_predict_to_the_bit_as_by_xgboost(
    objective, max_depth, tree_method, base_score, count, lacking, seed
):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 9, (200, FEATURES)).astype(np.float32)
    rows[rng.random(rows.shape) < lacking] = np.nan
    matrix = xgboost.DMatrix(rows, label=rng.normal(size=200), nthread=1)
    options = {"objective": objective, "max_depth": max_depth, "tree_method": tree_method}
    options |= {"nthread": 1, "seed": seed}
    options |= {} if base_score is None else {"base_score": base_score}
    booster = xgboost.train(options, matrix, 12)
    asked = rng.integers(-1, 10, (count, FEATURES)).astype(np.float32)
    asked[rng.random(asked.shape) < lacking] = np.nan
    found = Trees.of_json(bytes(booster.save_raw("json"))).predict(asked)
    assert found.dtype == np.float32
    expected = booster.inplace_predict(asked) if count else np.zeros(0, np.float32)
    np.testing.assert_array_equal(found, expected)


BROKEN = {
    "a child beyond the end": of_tree("left_children", 0, 9999),
    "a child before the tree": of_tree("right_children", 0, -5),
    "a circle": of_tree("left_children", 0, 0),
    "two parents": of_tree("right_children", 0, 1),
    "a feature that is not there": of_tree("split_indices", 0, FEATURES),
    "a text": of_tree("split_conditions", 0, "much"),
    "a column too short": lambda d: d["learner"]["gradient_booster"]["model"]["trees"][1][
        "default_left"
    ].pop(),
    "another objective": in_place(("learner", "objective", "name"), "binary:logistic"),
    "another booster": in_place(("learner", "gradient_booster", "name"), "gblinear"),
    "no trees": in_place(("learner", "gradient_booster", "model", "trees"), []),
    "no learner": lambda d: d.pop("learner"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_model_is_refused(name):
    document = json.loads(RAW)
    BROKEN[name](document)
    with pytest.raises(InvalidModel, match="RC604"):
        Trees.of_json(json.dumps(document).encode())


def test_rows_of_other_features_are_refused():
    with pytest.raises(ValueError, match=f"expected {FEATURES} features, found 3"):
        Trees.of_json(trained()).predict(np.zeros((2, 3), np.float32))


ANSWER = """
import sys
from recommender.prior import prior_of
model = prior_of("gemm", "cpu", "x86-64-avx512")
import numpy as np
rows = np.linspace(0, 100, 5 * model.booster.columns, dtype=np.float32).reshape(5, -1)
print(model.predict(rows).factor.tolist(), "xgboost" in sys.modules, "scipy" in sys.modules)
"""


def test_an_answer_of_a_model_that_ships_loads_neither_xgboost_nor_scipy():
    done = subprocess.run(
        [sys.executable, "-c", ANSWER], capture_output=True, text=True, check=True
    )
    factors, others = done.stdout.strip().split("] ")
    assert others == "False False"
    blob = gzip.decompress((FOLDER / "gemm.x86-64-avx512.json.gz").read_bytes())
    model = CostModel.from_bytes(blob, feature_schema=schema_of("cpu"))
    assert isinstance(model.booster, xgboost.Booster)  # it is loaded here
    rows = np.linspace(0, 100, 5 * model.booster.num_features(), dtype=np.float32).reshape(5, -1)
    assert json.loads(factors + "]") == model.predict(rows).factor.tolist()


def test_a_model_that_was_read_is_written_as_it_was():
    blob = gzip.decompress(SHIPPED[0].read_bytes())
    model = CostModel.from_bytes(blob, feature_schema=schema_of("cpu"))
    read = CostModel(
        Trees.of_json(shipped(SHIPPED[0])), model.feature_schema, model.spread, model.rows,
        model.dtypes,
    )  # fmt: skip
    assert json.loads(read.to_bytes()) == json.loads(blob)
