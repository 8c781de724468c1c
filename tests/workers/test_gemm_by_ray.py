"""What tuning does by itself: a local Ray whose actors compile and measure real kernels."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from recommender.measurement import MeasureStatus, Protocol
from tests.workers.test_gemm_end_to_end import CONFIGS, GEMM, WORKLOAD, requests
from tuner_service.settings import Settings
from tuner_service.wiring import detected_host, make_measurer
from workers import ray_pool
from workers.errors import ClusterUnavailable
from workers.pool import LocalPool, wait_for_all
from workers.ray_pool import RayPool


def test_kernels_are_compiled_and_measured_by_a_ray_that_starts_by_itself(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    try:
        measurer = make_measurer(
            Settings(data_dir=tmp_path, executor="ray"), detected_host(), 1, "real kernels"
        )
    except ClusterUnavailable as error:  # Ray's own start-up limits, on a starved machine
        pytest.skip(f"no local Ray can be started here: {error.message}")
    try:
        with closing(measurer) as pool:
            assert isinstance(pool, RayPool)
            for protocol in Protocol:
                found = wait_for_all(pool, requests(protocol), 240)
                assert set(found) == set(CONFIGS)
                for name in ("default", "tuned"):
                    m = found[name]
                    if m.status is MeasureStatus.UNSTABLE:
                        continue  # a busy machine; that the check passed is what counts here
                    assert m.status is MeasureStatus.OK, m.detail
                    assert 0 < (m.max_error or 0) <= 1
                    assert m.program_digest == GEMM.program_digest(dict(WORKLOAD.problem))
                    assert 0 <= m.metrics["relative_interval"] < 1
                    assert ("is_quiet" in m.metrics) == (protocol is Protocol.CONFIRM)
                assert found["unknown knob"].status is MeasureStatus.INVALID_CONFIG
    finally:
        ray.shutdown()


def test_where_no_ray_starts_processes_of_this_machine_measure(tmp_path, monkeypatch):
    def refused(*_args, **_options):
        raise ClusterUnavailable(address="this machine", reason="a starved one")

    monkeypatch.setattr(ray_pool.RayPool, "__init__", refused)
    made = make_measurer(Settings(data_dir=tmp_path, executor="auto"), detected_host(), 1)
    with closing(made):
        assert isinstance(made, LocalPool)
    with pytest.raises(ClusterUnavailable):
        make_measurer(Settings(data_dir=tmp_path, executor="ray"), detected_host(), 1)
