"""What lies near a workload: records of devices that tell nothing do not crowd out the others."""

import random
from dataclasses import replace

import pytest

from db.rows import add_measurements
from db.snapshot import Snapshot
from recommender.hardware import HardwareProfile, load_profile
from recommender.nearest import best_nearby, workload_distance
from tests.db.conftest import BOTH, HARDWARE, TOOLCHAIN, measurement, workload

GPU = load_profile("h100-sxm")
OTHER_CPU = HardwareProfile(name="another CPU", kind="cpu", arch="x86-64-avx2", cores=8)
EMULATED = load_profile("emulated h100-sxm")
CROWD = range(100, 140)  # sizes that devices of no use were measured at, close to what is asked


def sizes(found, hardware):
    return {dict(m.workload.problem)["m"] for m in found if m.hardware.key == hardware.key}


@BOTH
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


@BOTH
def test_devices_of_its_kind_are_found_behind_others(store):
    store.add_all([measurement(workload=workload(m), hardware=EMULATED) for m in CROWD])
    store.add_all([measurement(workload=workload(m), hardware=OTHER_CPU) for m in CROWD])
    store.add_all([measurement(workload=workload(m), hardware=GPU) for m in (160, 200)])
    asked_for = replace(GPU, name="a GPU without records")
    near = store.nearest(workload(120), hardware=asked_for)
    assert sizes(near, GPU) == {160, 200}
    assert all(m.hardware.key != GPU.key for m in store.nearest(workload(120)))


@pytest.mark.covering
@BOTH
@pytest.mark.parametrize("measured", [(HARDWARE,), (OTHER_CPU, GPU), (HARDWARE, GPU), ()])
@pytest.mark.parametrize("count", [2, 5])
def test_new_workloads_beyond_the_reach_change_nothing_that_was_found(store, measured, count):
    """What is new changes some answers, those of workloads that it is near to."""
    rng, asked = random.Random(f"{len(measured)} {count}"), workload(120)
    for _ in range(8):
        size = round(2 ** rng.uniform(4, 14))
        store.add_all([measurement(workload=workload(size), hardware=rng.choice(measured))
                       for _ in measured])  # fmt: skip
    before = Snapshot(store)
    found, changed = before.nearest(asked, count=count, hardware=HARDWARE), []
    for i in range(24):
        new = workload(round(2 ** rng.uniform(3, 15)))
        store.add(measurement(1e-4 - i * 1e-6, workload=new, hardware=rng.choice((HARDWARE, GPU))))
        after = Snapshot(store)
        differs = after.nearest(asked, count=count, hardware=HARDWARE) != found
        if workload_distance(new, asked) > before.reach:
            assert not differs
        changed.append(differs)
        before, found = after, after.nearest(asked, count=count, hardware=HARDWARE)
    assert any(changed)
    assert not all(changed)


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_workloads_that_were_numbered_first_and_committed_last_are_found(store, second_store):
    early, late, last = workload(256), workload(512), workload(1024)
    store.add(measurement())
    assert store.log.workloads("gemm").index.workloads == [workload()]
    with store.database.write() as session:
        add_measurements(session, [measurement(workload=early)], measurement().measured_at)
        session.flush()
        second_store.add(measurement(workload=late))
        assert list(store.log.workloads("gemm").index.workloads) == [workload(), late]
    assert list(store.log.workloads("gemm").index.workloads) == [workload(), early, late]
    second_store.add(measurement(workload=last))
    known = store.log.workloads("gemm")
    assert list(known.index.workloads) == [workload(), early, late, last]
    assert known.ids == sorted(known.ids)
    assert known.keys == {w.key for w in known.index.workloads}


@BOTH
def test_what_is_too_far_to_carry_over_is_not_looked_for(store):
    store.add_all([measurement(workload=workload(m), hardware=GPU) for m in CROWD])
    store.add(measurement(workload=workload(120 << 9)))  # a factor of 512
    assert sizes(store.nearest(workload(120), hardware=HARDWARE), HARDWARE) == set()
