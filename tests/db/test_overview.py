"""What the store tells of itself: counts for metrics, and whether anything is new."""

from db.records import NewTrial
from recommender.measurement import Protocol
from tests.db.conftest import BOTH, accept
from tilecore.tile_config import TileConfig

pytestmark = BOTH


def test_counts(store, new_run, make_measurement):
    empty = store.counts()
    assert (empty.runs, empty.trials, empty.lost_executions, empty.models) == ({}, {}, 0, {})
    run = new_run()
    epoch = store.leader.acquire("me", 60)
    hardware = make_measurement().hardware
    for key, devices in (("n1", 2), ("n2", 4), ("n3", 1)):
        store.nodes.join(key, name=key, hardware=hardware, devices=devices, epoch=epoch)
    store.nodes.see(["n1", "n2"], [], epoch)
    store.trials.add(
        run.id,
        [
            NewTrial(config=TileConfig.of(block_M=m), protocol=Protocol.SCREEN, purpose="search")
            for m in (1, 2, 3)
        ],
        epoch,
    )
    (first, second) = store.trials.claim(run.id, epoch, 2, 60)
    accept(store, first, epoch, make_measurement())
    store.trials.retry_later(second, epoch, "worker lost", 0.0)
    store.trials.claim(run.id, epoch, 1, 60)
    store.add_all([make_measurement(None), make_measurement()])
    metrics = {"top1": 0.9, "note": "text", "is_good": True}
    store.models.save(
        kernel="gemm", family="cpu", blob=b"m", feature_schema="s", metrics=metrics, trained_on=3,
        promote=True,
    )  # fmt: skip
    found = store.counts()
    assert found.runs == {"QUEUED": 1}
    assert sum(found.trials.values()) == 3
    assert found.trials["done"] == 1
    assert found.lost_executions == 1
    assert found.measurements == {("gemm", "OK"): 2, ("gemm", "COMPILE_ERROR"): 1}
    assert found.models["gemm", "cpu"].metrics["top1"] == 0.9
    assert "note" not in found.models["gemm", "cpu"].metrics
    assert found.devices == {(hardware.name, "active"): 6, (hardware.name, "lost"): 1}
