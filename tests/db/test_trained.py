"""Models learn from one family of devices, which measurements of others do not crowd out."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from db.records import RetentionPolicy
from recommender.hardware import load_profile
from tests.db.conftest import BOTH

H100, H200, MI300X = map(load_profile, ("h100-sxm", "h200-sxm", "mi300x"))
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def mixed(store, make_measurement):
    """A log in which a busy CPU is newer than all GPUs."""
    ages = ((None, range(1, 7)), (H100, (9, 7)), (H200, (8,)), (MI300X, (9, 8, 7)))
    found = [
        replace(
            make_measurement(1e-3 * hours, measured_at=NOON - timedelta(hours=hours)),
            **({} if device is None else {"hardware": device}),
        )
        for device, all_hours in ages
        for hours in all_hours
    ]
    store.add_all(found)
    return store


@BOTH
def test_the_newest_of_a_family_are_trained_on(mixed):
    def hours(family, limit=100):
        found = mixed.training("gemm", family, limit=limit)
        return [(NOON - m.measured_at) // timedelta(hours=1) for m in found]

    assert hours("cpu") == [1, 2, 3, 4, 5, 6]
    assert hours("sm_90a") == [7, 8, 9]  # of two devices
    assert hours("sm_90a", limit=2) == [7, 8]
    assert hours("gfx942") == [7, 8, 9]
    assert hours("sm_80") == []
    assert mixed.training("softmax", "cpu", limit=1) == []


@BOTH
def test_each_family_keeps_what_is_trained_on(mixed):
    policy = RetentionPolicy(keep_days=1, keep_best=1, keep_recent=0, keep_training=2)
    mixed.retention.compact(policy, vacuum="off")
    left = {
        family: [round(m.time_s * 1e3) for m in mixed.training("gemm", family, limit=100)]
        for family in ("cpu", "sm_90a", "gfx942")
    }
    # the two newest of each family, and the fastest of each device
    assert left == {"cpu": [1, 2], "sm_90a": [7, 8], "gfx942": [7, 8]}
