"""Measured peaks: tiles of AMX beside vectors."""

import pytest

from tilecore.target import cpu_target, host_features
from workers.peaks import PeakProbe


@pytest.mark.skipif("amx_int8" not in host_features(), reason="this machine has no tiles")
def test_tiles_are_faster_than_vectors():
    probe = PeakProbe(cpu_target())
    vectors, tiles = probe.fma_flop_per_s("float32"), probe.tile_flop_per_s("bfloat16")
    assert tiles > 2 * vectors
    assert probe.tile_flop_per_s("int8") > 1.2 * tiles
