"""The structure of a model of XGBoost, checked before (and after) XGBoost reads it.

XGBoost trusts its files: a child index out of range or in a circle crashes or hangs it. What is
checked is what prediction follows; what it does not read may hold anything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from recommender.errors import InvalidModel

# Their predictions are the sum of the leaves: what ``CostModel`` takes for a logarithm of a ratio.
OBJECTIVES = ("reg:squarederror", "reg:pseudohubererror", "reg:absoluteerror")
MAX_TREES, MAX_NODES = 10_000, 1_000_000
MAX_FLOAT = 3.4e38  # of 4 bytes
MAX_LEAF = 50.0  # of a logarithm of a ratio; e^50 is 5e21


def parse(raw: bytes) -> dict[str, Any]:
    """Return the document in the bytes of a JSON model.

    Raises:
        InvalidModel: it is no JSON object (RC604).
    """
    try:
        found = json.loads(raw)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise _invalid("a JSON model of XGBoost", f"no JSON ({error})") from error
    if not isinstance(found, dict):
        raise _invalid("a JSON model of XGBoost", f"a {type(found).__name__}")
    return found


def check_structure(document: Mapping[str, Any], features: int) -> None:
    """Refuse a model that XGBoost could not predict with safely, or that is no cost model.

    Args:
        document: the model as JSON.
        features: columns that it must expect.

    Raises:
        InvalidModel: what is wrong, and where (RC604).
    """
    learner = _get(document, "learner", dict)
    objective = _get(_get(learner, "objective", dict), "name", str)
    if objective not in OBJECTIVES:
        raise _invalid(f"objective {' or '.join(OBJECTIVES)}", objective[:64])
    parameters = _get(learner, "learner_model_param", dict)
    for name, wanted in (("num_feature", features), ("num_target", 1)):
        found = _number(parameters, name)
        if found != wanted:
            raise _invalid(f"{name} {wanted}", str(found))
    if _number(parameters, "num_class") > 1:
        raise _invalid("a regression", "several classes")
    _check_base_score(parameters)
    booster = _get(learner, "gradient_booster", dict)
    if _get(booster, "name", str) != "gbtree":
        raise _invalid("booster gbtree", str(booster["name"])[:64])
    model = _get(booster, "model", dict)
    trees = _get(model, "trees", list)
    count = _number(_get(model, "gbtree_model_param", dict), "num_trees")
    if not (count == len(trees) == len(_get(model, "tree_info", list)) <= MAX_TREES):
        raise _invalid(f"num_trees and tree_info for {len(trees)} trees", str(count))
    if any(group != 0 for group in model["tree_info"]):
        raise _invalid("trees of one output", "others")
    _check_rounds(_get(model, "iteration_indptr", list), len(trees))
    if sum(_check_tree(i, tree, features) for i, tree in enumerate(trees)) > MAX_NODES:
        raise _invalid(f"at most {MAX_NODES} nodes", "more")


def check_names(document: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse a model that names its features otherwise: columns are told apart by their place.

    Raises:
        InvalidModel: the first that is another one (RC604).
    """
    given = _get(document, "learner", dict).get("feature_names") or names
    if not isinstance(given, list | tuple) or len(given) != len(names):
        raise _invalid(f"{len(names)} feature_names, or none", "another number of them")
    for place, (name, found) in enumerate(zip(names, given, strict=True)):
        if name != found:
            raise _invalid(f"feature {place} named {name}, or none named", str(found)[:64])


def _check_base_score(parameters: Mapping[str, Any]) -> None:
    text = _get(parameters, "base_score", str).strip("[]")
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not abs(score) <= MAX_LEAF:
        raise _invalid("a finite base_score", text[:32])


def _check_rounds(borders: Sequence[Any], trees: int) -> None:
    numbers = all(_is_int(b) for b in borders) and list(borders)
    if not numbers or numbers[0] != 0 or numbers[-1] != trees or numbers != sorted(numbers):
        raise _invalid(f"iteration_indptr from 0 to {trees}", "another")


def _check_tree(number: int, tree: Any, features: int) -> int:
    """Check one tree and return how many nodes it has."""
    if not isinstance(tree, dict):
        raise _invalid(f"tree {number}: an object", type(tree).__name__)
    size = _number(_get(tree, "tree_param", dict), "num_nodes")
    if _number(tree["tree_param"], "num_feature") != features:
        raise _invalid(f"tree {number}: num_feature {features}", "another")
    if _number(tree["tree_param"], "size_leaf_vector") > 1:
        raise _invalid(f"tree {number}: leaves of one number", "vectors")
    columns = {name: _column(number, tree, name, size, kind) for name, kind in COLUMNS.items()}
    if any(columns["split_type"]) or any(tree.get(name) for name in CATEGORIES):
        raise _invalid(f"tree {number}: splits of numbers", "categories")
    _check_nodes(number, columns, features)
    return size


COLUMNS = {
    "left_children": int, "right_children": int, "parents": int, "split_indices": int,
    "split_conditions": float, "split_type": int, "default_left": int, "base_weights": float,
    "loss_changes": float, "sum_hessian": float,
}  # fmt: skip
CATEGORIES = ("categories", "categories_nodes", "categories_segments", "categories_sizes")
LEAF = -1


def _column(number: int, tree: Mapping[str, Any], name: str, size: int, kind: type) -> list[Any]:
    found: list[Any] = _get(tree, name, list)
    if len(found) != size or size < 1:
        raise _invalid(f"tree {number}: {size} {name}", str(len(found)))
    if kind is int and not all(_is_int(v) for v in found):
        raise _invalid(f"tree {number}: integers as {name}", "others")
    if kind is float and not all(_is_finite(v) for v in found):
        raise _invalid(f"tree {number}: finite numbers as {name}", "others")
    return found


def _check_nodes(number: int, columns: Mapping[str, list[Any]], features: int) -> None:
    """Check that every node is reached once from the root, and what it asks for exists."""
    left, right = columns["left_children"], columns["right_children"]
    size, seen, waiting = len(left), {0}, [0]
    while waiting:
        node = waiting.pop()
        if (left[node] == LEAF) != (right[node] == LEAF):
            raise _invalid(f"tree {number}, node {node}: no child or two", "one")
        if left[node] == LEAF:
            if abs(columns["split_conditions"][node]) > MAX_LEAF:
                raise _invalid(f"tree {number}, node {node}: a leaf of a logarithm", "a huge one")
            continue
        if not 0 <= columns["split_indices"][node] < features:
            found = str(columns["split_indices"][node])
            raise _invalid(f"tree {number}, node {node}: a feature below {features}", found)
        for child in (left[node], right[node]):
            if not 0 < child < size or child in seen or columns["parents"][child] != node:
                raise _invalid(f"tree {number}, node {node}: a child of its own", str(child))
            seen.add(child)
            waiting.append(child)
    if len(seen) != size:
        raise _invalid(f"tree {number}: {size} nodes below the root", str(len(seen)))


def _get(holder: Mapping[str, Any], name: str, kind: type) -> Any:
    found = holder.get(name)
    if not isinstance(found, kind):
        raise _invalid(f"{name}: {kind.__name__}", "none" if found is None else repr(found)[:64])
    return found


def _number(holder: Mapping[str, Any], name: str) -> int:
    """Return a count, which XGBoost writes as text."""
    found = holder.get(name)
    text = str(found)
    if not (isinstance(found, (str, int)) and text.isascii() and text.isdigit()) or len(text) > 9:
        raise _invalid(f"{name}: a count", repr(found)[:64])
    return int(text)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= MAX_FLOAT


def _invalid(expected: str, found: str) -> InvalidModel:
    hint = "save it by Booster.save_model (UBJ or JSON), trained on recommender.features.NAMES"
    return InvalidModel(expected=expected, found=found, hint=hint)
