from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from recommender.cost_model import CostModel
from recommender.errors import InvalidModel, NotEnoughMeasurements
from recommender.features import SCHEMA
from recommender.measurement import Protocol
from recommender.training import make_groups, train
from tests.recommender.support import GEMM, SimulatedDevice, sample, workload

SHAPES = [
    (512, 512, 512),
    (1024, 1024, 1024),
    (1000, 1000, 1000),
    (64, 2048, 2048),
    (2048, 64, 512),
]


@pytest.fixture(scope="module")
def outcome():
    measurements = [m for s in SHAPES for m in sample(workload(*s), 60)]
    return train(measurements, GEMM)


def test_model_is_promoted_only_because_it_wins_on_held_out_workloads(outcome) -> None:
    assert outcome.is_promoted, outcome.reason
    assert outcome.metrics["model"] > outcome.metrics["analytic"]
    assert outcome.metrics["model"] > outcome.metrics["nearest"]
    assert outcome.metrics["groups"] == len(SHAPES)


def test_interval_covers_an_unseen_workload(outcome) -> None:
    (group,) = make_groups(sample(workload(768, 1536, 640), 80), GEMM)
    p = outcome.model.predict(group.features)
    ratio = group.time_s / group.analytic_s
    assert np.mean((p.low <= ratio) & (ratio <= p.high)) > 0.5
    error = np.abs(np.log(ratio / p.factor))
    assert np.median(error) < 0.5 * np.median(np.abs(np.log(ratio)))


@pytest.mark.exhaustive
def test_equal_incumbent_is_not_replaced(outcome) -> None:
    measurements = [m for s in SHAPES for m in sample(workload(*s), 60)]
    again = train(measurements, GEMM, incumbent=outcome.model)
    assert again.metrics["incumbent"] >= again.metrics["model"] or again.is_promoted


def test_one_workload_or_few_rows_promote_nothing() -> None:
    lone = train(sample(workload(512, 512, 512), 30), GEMM)
    assert not lone.is_promoted
    assert "too few workloads" in lone.reason
    with pytest.raises(NotEnoughMeasurements, match="RC606"):
        train(sample(workload(512, 512, 512), 5), GEMM)


def test_failures_are_not_trained_on() -> None:
    device = SimulatedDevice(workload(512, 512, 512), failing="none")
    rows = range(0, len(device.space), 97)
    tried = [device.measure(device.space.config(r), Protocol.SCREEN) for r in rows]
    (group,) = make_groups(tried, GEMM)
    assert 0 < len(group.configs) < len(tried)


def test_round_trip_and_damage(outcome) -> None:
    blob = outcome.model.to_bytes()
    (group,) = make_groups(sample(workload(512, 512, 512), 20), GEMM)
    again = CostModel.from_bytes(blob, feature_schema=SCHEMA)
    np.testing.assert_array_equal(
        again.predict(group.features).factor, outcome.model.predict(group.features).factor
    )
    assert again.dtypes == ("float32",)
    assert again.knows("float32")
    assert not again.knows("int8")
    assert replace(again, dtypes=()).knows("int8")  # a file from elsewhere does not tell
    strange = {**json.loads(blob), "dtypes": [4]}
    with pytest.raises(InvalidModel, match="element types"):
        CostModel.from_bytes(json.dumps(strange).encode(), feature_schema=SCHEMA)
    with pytest.raises(InvalidModel, match="feature schema"):
        CostModel.from_bytes(blob, feature_schema="other")
    rng = np.random.default_rng(0)
    for position in rng.integers(len(blob), size=60).tolist():
        broken = bytearray(blob)
        broken[position] ^= 1 << int(rng.integers(7))
        try:
            model = CostModel.from_bytes(bytes(broken), feature_schema=SCHEMA)
        except InvalidModel:
            continue
        assert model.predict(group.features).factor.shape == (20,)  # a digit of spread or rows
    for junk in (b"", b"{}", b"[1]", b"\xff", json.dumps({"format": 1}).encode(), blob[:-9]):
        with pytest.raises(InvalidModel):
            CostModel.from_bytes(junk, feature_schema=SCHEMA)
