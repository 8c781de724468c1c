"""What lies near a workload: records of devices that tell nothing do not crowd out the others."""

from dataclasses import replace

import pytest

from db.snapshot import Snapshot
from recommender.hardware import HardwareProfile, load_profile
from recommender.nearest import best_nearby
from tests.db.conftest import HARDWARE, TOOLCHAIN, measurement, workload

GPU = load_profile("h100-sxm")
OTHER_CPU = HardwareProfile(name="another CPU", kind="cpu", arch="x86-64-avx2", cores=8)
EMULATED = load_profile("emulated h100-sxm")
CROWD = range(100, 140)  # sizes that devices of no use were measured at, close to what is asked


def sizes(found, hardware):
    return {dict(m.workload.problem)["m"] for m in found if m.hardware.key == hardware.key}


@pytest.mark.few(1)
@pytest.mark.parametrize("crowd", [GPU, OTHER_CPU])
@pytest.mark.parametrize("form", [lambda store: store, Snapshot])
def test_records_of_other_devices_do_not_take_the_places_of_this_one(store, crowd, form):
    store.add_all([measurement(workload=workload(m), hardware=crowd) for m in CROWD])
    store.add_all([measurement(workload=workload(m)) for m in (160, 200, 400, 8000)])
    asked, known = workload(120), form(store)
    near = known.nearest(asked, hardware=HARDWARE)
    assert sizes(near, HARDWARE) == {160, 200, 400, 8000}
    assert len(sizes(near, crowd)) == 9  # the nearest of any device stay
    few = known.nearest(asked, count=2, hardware=HARDWARE)
    assert sizes(few, HARDWARE) == {160, 200}
    key = {"program_digest": "p1", "toolchain_key": TOOLCHAIN.key}
    first = best_nearby(near, asked, HARDWARE, **key)
    own = [dict(n.measurement.workload.problem)["m"] for n in first
           if n.measurement.hardware.key == HARDWARE.key]  # fmt: skip
    assert own == [160, 200, 400, 8000]
    assert known.nearest(asked, hardware=HARDWARE) == near


def test_devices_of_its_kind_are_found_behind_others(store):
    store.add_all([measurement(workload=workload(m), hardware=EMULATED) for m in CROWD])
    store.add_all([measurement(workload=workload(m), hardware=OTHER_CPU) for m in CROWD])
    store.add_all([measurement(workload=workload(m), hardware=GPU) for m in (160, 200)])
    asked_for = replace(GPU, name="a GPU without records")
    near = store.nearest(workload(120), hardware=asked_for)
    assert sizes(near, GPU) == {160, 200}
    assert all(m.hardware.key != GPU.key for m in store.nearest(workload(120)))


def test_what_is_too_far_to_carry_over_is_not_looked_for(store):
    store.add_all([measurement(workload=workload(m), hardware=GPU) for m in CROWD])
    store.add(measurement(workload=workload(120 << 9)))  # a factor of 512
    assert sizes(store.nearest(workload(120), hardware=HARDWARE), HARDWARE) == set()
