"""Measured peaks: tiles of AMX beside vectors; the processor to themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilecore.lowering.cpu.peaks import reading_probe
from tilecore.target import cpu_target, host_features
from workers import host
from workers.device_lock import device_lock
from workers.errors import DeviceBusy
from workers.peaks import PeakProbe, measure


@pytest.mark.skipif("amx_int8" not in host_features(), reason="this machine has no tiles")
def test_tiles_are_faster_than_vectors():
    probe = PeakProbe(cpu_target())
    vectors, tiles = probe.fma_flop_per_s("float32"), probe.tile_flop_per_s("bfloat16")
    assert tiles > 2 * vectors
    assert probe.tile_flop_per_s("int8") > 1.2 * tiles


def test_reading_adds_up_every_number_whatever_the_way():
    times_s = PeakProbe(cpu_target()).reading_s((1, 64), (4, 64), (16, 1024))
    assert all(1e-4 < time_s < 1.0 for time_s in times_s)


def test_reading_wants_whole_pieces():
    with pytest.raises(ValueError, match="expected 3 parts of pieces of 64, found 1024 elements"):
        reading_probe(1024, 3, 64, cpu_target())


def test_nothing_is_probed_while_somebody_measures(tmp_path: Path) -> None:
    lock = tmp_path / "cpu.lock"
    with device_lock(lock), pytest.raises(DeviceBusy, match="WK703"):
        measure(host.detect(), lock=lock, wait_s=0.0)
