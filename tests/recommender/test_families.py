"""Cost models of GPUs: what one learns from, whom it answers, and what it is worth."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from recommender.analytic import estimate
from recommender.errors import NotEnoughMeasurements
from recommender.families import family_of_schema, feature_names, schema_of
from recommender.features import features
from recommender.gpu import model as gpu_model
from recommender.hardware import emulated, load_profile
from recommender.ports import StoredModel
from recommender.predict import active_model
from recommender.recommend import recommend
from recommender.space import SearchSpace
from recommender.training import make_groups, train
from tests.recommender.support import GEMM, HOST, MemoryStore, workload
from tilecore.kernels.attention import ATTENTION
from workers.pack_results import read_results

H200 = load_profile("h200")
RECORDED = Path(__file__).parents[2] / "benchmarks/data/h200/c5_2026-11-26.jsonl.gz"


@pytest.fixture(scope="module")
def recorded():
    return list(read_results(RECORDED))


class GpuStore(MemoryStore):
    """A store whose model is that of the H200's family."""

    def active_model(self, kernel, family):
        return self.model if family == "sm_90a" else None


def test_a_family_is_all_cpus_or_one_architecture_of_gpus():
    assert HOST.family == "cpu"
    assert H200.family == load_profile("h100-sxm").family == "sm_90a"
    assert emulated(H200).family == "emulated-sm_90a"
    assert load_profile("mi300x").family == "gfx942"


@pytest.mark.parametrize("family", ["cpu", "sm_90a", "emulated-sm_80", "gfx90a"])
def test_the_version_of_features_names_the_family(family):
    assert family_of_schema(schema_of(family)) == family
    assert family_of_schema(schema_of(family) + "0") is None


@pytest.mark.parametrize("device", ["h200", "a100-80gb", "mi300x"])
def test_features_are_finite_and_tell_configs_apart(device):
    problem = dict(workload(1000, 1024, 512, dtype="float16").problem)
    space = SearchSpace.build(GEMM, problem, load_profile(device))
    table = features(space, space.columns, estimate(space))
    assert table.shape == (len(space), len(feature_names(space.hardware.family)))
    assert np.isfinite(table).all()
    assert len(np.unique(table, axis=0)) == len(space)


def test_measurements_of_other_families_are_not_learned_from(recorded):
    some = recorded[:200]
    with pytest.raises(NotEnoughMeasurements, match="found 0"):
        train(some, GEMM, family="sm_80")
    with pytest.raises(NotEnoughMeasurements, match="found 0"):
        train(some, GEMM)
    assert list(make_groups(some, GEMM, "sm_90a"))


def test_on_shapes_held_out_it_chooses_better_than_formulas_that_were_never_fitted(
    recorded, monkeypatch
):
    """As the formulas of other devices are: those of the H200 were fitted to these very times."""
    rough = replace(
        gpu_model.DEFAULT_GPU_CONSTANTS, group_overlap=0.0, own_overlap=0.0, step_clocks=0.0
    )
    monkeypatch.setattr(gpu_model, "gpu_terms", partial(gpu_model.gpu_terms, constants=rough))
    found = train(recorded, ATTENTION, family="sm_90a")
    assert found.is_promoted
    assert found.metrics["model"] > 0.97
    assert found.metrics["model"] > found.metrics["analytic"]


def test_the_order_of_measurements_does_not_say_which_shape_is_the_nearest(recorded):
    some = [m for m in recorded if m.workload.kernel == "attention"]
    first, second = (train(rows, ATTENTION, family="sm_90a").metrics for rows in (some, some[::-1]))
    assert first["nearest"] == second["nearest"]
    assert first["analytic"] == second["analytic"]


def test_it_answers_for_gpus_of_its_family(recorded):
    model = train(recorded, ATTENTION, family="sm_90a").model
    store = GpuStore()
    store.model = StoredModel(
        id=1, kernel="attention", blob=model.to_bytes(), feature_schema=schema_of("sm_90a"),
        metrics={}, trained_on=9,
    )  # fmt: skip
    asked = next(m.workload for m in recorded if m.workload.kernel == "attention")
    first = recommend(asked, ATTENTION, H200, store)[0]
    assert first.source == "predicted"
    best_s = min(m.time_s for m in recorded if m.workload == asked)
    assert 0.8 < first.time_s / best_s < 1.3
    for device in ("a100-80gb", "mi300x", "emulated h200"):
        assert recommend(asked, ATTENTION, load_profile(device), store)[0].source == "analytic"
    assert active_model(store, "attention", H200, "float32") is None  # a type it never met
