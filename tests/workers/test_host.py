from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from recommender.hardware import HardwareProfile
from tilecore.artifact import source_digest
from workers import host
from workers.peaks import measure
from workers.toolchain import current_toolchain


def test_this_machine_has_a_profile_with_a_stable_key() -> None:
    found = host.detect()
    assert found == host.detect()
    assert found.key == host.detect().key
    assert found.cores >= 1
    assert found.l1d_bytes >= 16 * 1024
    assert found.l2_bytes > found.l1d_bytes
    assert found.arch.startswith("x86-64-")
    assert "fma" in found.features


@pytest.mark.parametrize(
    ("text", "size"), [("48K", 49152), ("2048K", 2 << 20), ("480M", 480 << 20), ("512", 512)]
)
def test_sizes_as_sys_spells_them(text: str, size: int) -> None:
    assert host.parse_size(text) == size


def test_hyperthreads_and_quotas_are_not_cores(tmp_path: Path) -> None:
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(siblings + "\n")
    assert host.one_per_core([3, 2, 1, 0], tmp_path) == [0, 1]
    assert host.one_per_core([2, 3, 7], tmp_path) == [2, 3, 7]
    assert host.usable_cores(range(4), tmp_path, "max 100000") == 2
    assert host.usable_cores([0, 2], tmp_path, "") == 1
    assert host.usable_cores(range(4), tmp_path, "150000 100000") == 1
    assert host.usable_cores(range(4), tmp_path, "50000 100000") == 1


def test_caches_come_from_sys(tmp_path: Path) -> None:
    for index, (level, kind, size) in enumerate(
        [(1, "Data", "32K"), (1, "Instruction", "64K"), (2, "Unified", "1024K")]
    ):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, value in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{value}\n")
    assert host.cache_sizes(tmp_path) == {1: 32 << 10, 2: 1 << 20}


@pytest.mark.exhaustive
def test_peaks_are_plausible_and_keep_the_key() -> None:
    detected = host.detect()
    found: HardwareProfile = measure(detected)
    assert found.key == detected.key
    assert found.source.startswith("measured 20")
    f32, f64 = found.peak_flop_per_s["float32"], found.peak_flop_per_s["float64"]
    assert f64 < f32 < 4 * f64
    assert f32 > 16e9  # AVX2, one port, 1 GHz
    assert 1e8 < found.core_bandwidth_bytes_per_s <= found.bandwidth_bytes_per_s < 1e12
    assert 1e-7 < found.launch_s < 1e-2
    assert 0.3 < found.turns_gain < 4


def test_the_toolchain_changes_with_the_compiler_and_not_with_kernels(tmp_path: Path) -> None:
    (tmp_path / "lowering").mkdir()
    (tmp_path / "kernels").mkdir()
    (tmp_path / "lowering" / "a.py").write_text("x = 1\n")
    before = source_digest(tmp_path)
    (tmp_path / "kernels" / "gemm.py").write_text("y = 1\n")
    assert source_digest(tmp_path) == before
    (tmp_path / "lowering" / "a.py").write_text("x = 2\n")
    assert source_digest(tmp_path) != before


def test_the_toolchain_is_the_same_in_every_process() -> None:
    code = "from workers.toolchain import current_toolchain as t; print(t().key)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == current_toolchain().key


def test_a_candidate_never_gets_all_memory(tmp_path: Path, monkeypatch) -> None:
    physical = host.memory_bytes()
    assert (1 << 28) < physical < (1 << 50)
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(host, "CGROUP_MEMORY", limit)
    limit.write_text("max\n")
    assert host.memory_bytes() >= physical
    limit.write_text(f"{200 << 20}\n")
    assert host.memory_bytes() == 200 << 20
    assert host.candidate_memory_bytes(32 << 30) == 100 << 20
    limit.write_text(f"{1 << 60}\n")
    assert host.candidate_memory_bytes(1 << 30) == 1 << 30
    assert host.candidate_memory_bytes(1 << 50) < physical
