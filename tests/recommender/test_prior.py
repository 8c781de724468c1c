"""Models that ship with the package: when they answer, what they are worth, damage."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from db.exchange.t4 import t4_measurements
from recommender import prior as module
from recommender.analytic import estimate
from recommender.errors import InvalidRecording
from recommender.features import SCHEMA
from recommender.hardware import load_profile
from recommender.ports import StoredModel
from recommender.predict import shipped
from recommender.prior import FOLDER, file_name, prior
from recommender.recommend import recommend
from recommender.space import SearchSpace
from recommender.training import fit_groups, make_groups
from recommender.workload import Workload
from tests.recommender.support import GEMM, HOST, MemoryStore, workload

RECORDED = Path(__file__).parents[2] / "benchmarks/data/cpu_2026-11-22"
SHIPPED = sorted(FOLDER.glob("*.json.gz"))


def recorded(pattern):
    return [
        m
        for path in sorted(RECORDED.glob(pattern))
        for m in t4_measurements(gzip.decompress(path.read_bytes()).decode(), path.name)
    ]


def ask(hardware=HOST, store=None):
    return recommend(workload(1024, 1024, 1024), GEMM, hardware, store or MemoryStore(), top_k=5)


def test_a_machine_that_measured_nothing_is_answered_by_what_ships():
    found = ask()
    assert found[0].source == "prior"
    assert "ships with tilecore" in found[0].rationale
    assert ask(load_profile("avx2"))[0].source == "shipped"  # winners do better there
    assert ask(load_profile("h100-sxm"))[0].source == "analytic"  # nobody recorded such a device


def test_a_model_is_not_asked_about_element_types_that_it_never_met():
    model = fit_groups(
        list(make_groups(recorded("gemm_float32_[235]*"), GEMM)), 0, with_interval=True
    )
    assert model.dtypes == ("float32",)
    assert shipped("gemm", HOST, "bfloat16").source == "prior"
    store = MemoryStore()
    store.model = StoredModel(
        id=1, kernel="gemm", blob=model.to_bytes(), feature_schema=SCHEMA, metrics={},
        trained_on=9,
    )  # fmt: skip
    assert ask(store=store)[0].source == "predicted"
    sizes = {"m": 1024, "n": 1024, "k": 1024, "dtype": "bfloat16"}
    of_half = Workload.of("gemm", GEMM.parse_problem(sizes))
    assert recommend(of_half, GEMM, HOST, store)[0].source == "prior"  # what ships here knows it
    on_avx2 = recommend(of_half, GEMM, load_profile("avx2"), store)
    assert on_avx2[0].source == "shipped"


def test_a_model_trained_here_goes_before_it():
    blob = gzip.decompress(SHIPPED[0].read_bytes())
    store = MemoryStore()
    store.model = StoredModel(
        id=1, kernel="gemm", blob=blob, feature_schema=SCHEMA, metrics={}, trained_on=9
    )
    assert ask(store=store)[0].source == "predicted"
    store.model = replace(store.model, feature_schema="of another version")
    assert ask(store=store)[0].source == "prior"


def test_what_one_thread_taught_is_not_stretched_to_two():
    space = SearchSpace.build(GEMM, dict(workload(1000, 1024, 512).problem), HOST)
    learned = shipped("gemm", HOST, "float32")
    columns = space.rows(np.arange(0, len(space), 97))
    alone, both = (estimate(space, columns, threads=t) for t in (1, 2))
    np.testing.assert_array_equal(
        learned.factors(space, columns, both).factor, learned.factors(space, columns, alone).factor
    )
    found = ask()[0]
    rate = 2 * 1024**3 / found.time_s
    assert rate < 0.95 * HOST.cores * HOST.peak_flop_per_s["float32"]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_what_ships_fits_this_version(path):
    kernel, arch = path.name.removesuffix(".json.gz").split(".")
    model = prior(kernel, replace(HOST, arch=arch))
    assert model is not None
    assert model.rows >= 1000
    assert model.spread[0] < 0 < model.spread[1]


def test_a_damaged_file_is_as_none(tmp_path, monkeypatch):
    good = SHIPPED[0].read_bytes()
    for number, damaged in enumerate((good[: len(good) // 2], b"{}", gzip.compress(b"{}"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / file_name("gemm", HOST.arch)).write_bytes(damaged)
        monkeypatch.setattr(module, "FOLDER", folder)
        assert prior("gemm", HOST) is None
        assert ask()[0].source == "analytic"


def test_recorded_shapes_are_predicted_from_others():
    groups = list(make_groups(recorded("gemm_float32_*"), GEMM))
    assert sum(len(g.configs) for g in groups) == 2400
    known, unseen = groups[::2], groups[1::2]
    model = fit_groups(known, 0, with_interval=False)
    first, eight = [], []
    for group in unseen:
        speed = group.time_s.min() / group.time_s
        order = np.argsort(group.analytic_s * model.predict(group.features).factor)
        first.append(speed[order[0]])
        eight.append(speed[order[:8]].max())
    assert np.mean(first) > 0.90
    assert np.mean(eight) > 0.96


def test_recordings_read_back_are_checked():
    text = gzip.decompress(next(RECORDED.glob("softmax*")).read_bytes()).decode()
    (first, *_) = t4_measurements(text, "softmax")
    assert (first.workload.kernel, first.threads) == ("softmax", 1)
    assert first.hardware.peak_flop_per_s["float32"] > 1e10
    for damaged in (text[:-40], "[]", text.replace('"hardware_profile"', '"profile"')):
        with pytest.raises(InvalidRecording) as error:
            t4_measurements(damaged, "softmax.json")
        assert "softmax.json" in str(error.value)
