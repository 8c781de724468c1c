"""Devices of a machine by what nvidia-smi says, and which profile a name means."""

from __future__ import annotations

import os
import sys
import types
from dataclasses import replace

import pytest
import torch

from recommender.errors import UnknownHardware
from recommender.hardware import emulated, load_profile, profile_names
from workers import nvml
from workers.device_toolbox import DeviceToolbox, EmulatedToolbox
from workers.devices import ask_torch, devices_of, gpu_devices, parse_devices, profile_of
from workers.errors import DeviceMissing
from workers.offer import emulated_devices, offered_here, resource_name
from workers.rig import Rig, toolbox_of
from workers.toolbox import TilecoreToolbox

# As `nvidia-smi --query-gpu=uuid,name,driver_version --format=csv,noheader` prints it.
SMI = """\
GPU-6d5b, NVIDIA H200, 580.159.04
GPU-77aa, NVIDIA H200, 580.159.04
GPU-0c1d, NVIDIA A100-SXM4-80GB, 580.159.04
GPU-9f00, Matrox G200, 580.159.04
GPU-4444, NVIDIA H200 MIG 1g.18gb, 580.159.04
[Not Supported]
"""


def test_devices_are_those_that_somebody_knows():
    found = parse_devices(SMI)
    assert [(d.uuid, d.hardware.target) for d in found] == [
        ("GPU-6d5b", "h200"),
        ("GPU-77aa", "h200"),
        ("GPU-0c1d", "a100"),
    ]
    assert found[0].hardware == replace(load_profile("h200"), driver="NVIDIA 580.159.04")
    assert found[0].driver == "580.159.04"


def test_devices_of_amd_go_by_their_number():
    """As torch for ROCm names them (BY_TORCH)."""
    nvidia, _, first, second = parse_devices(
        "GPU-6d5b, NVIDIA H200, CUDA 13.0\n0, AMD Radeon 780M, ROCm 6.4\n"
        "GPU-77aa, NVIDIA H200, CUDA 13.0\n1, AMD Instinct MI300X, ROCm 6.4\n"
        "2, AMD Instinct MI300X, ROCm 6.4\n"
    )
    assert [d.hardware.target for d in (first, second)] == ["mi300x"] * 2
    assert [d.environment for d in (first, second)] == [
        {"HIP_VISIBLE_DEVICES": "1"}, {"HIP_VISIBLE_DEVICES": "2"},
    ]  # fmt: skip
    assert nvidia.environment["CUDA_VISIBLE_DEVICES"] == "GPU-6d5b"
    assert len({d.lock for d in (nvidia, first, second)}) == 3


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA L40S", "l40s"),
        ("Tesla V100-SXM2-32GB", "v100"),
    ],
)
def test_the_driver_s_name_of_a_device_means_its_profile(name, stem):
    assert profile_of(name) == load_profile(stem)


def test_a_device_without_a_profile_is_like_another_one_but_not_it():
    found, like = profile_of("NVIDIA H100 NVL"), load_profile("h100")
    assert found.arch == like.arch
    assert found.name == "NVIDIA H100 NVL"
    assert found.key != like.key
    assert "as NVIDIA H100" in found.source
    with pytest.raises(UnknownHardware):
        profile_of("Matrox G200")


@pytest.mark.skipif(bool(gpu_devices()), reason="this machine has a GPU")
def test_a_machine_without_the_device_says_what_it_has():
    with pytest.raises(DeviceMissing, match=r"WK708.*NVIDIA H200.*no GPU"):
        devices_of(load_profile("h200"))
    with pytest.raises(DeviceMissing, match="WK708"):
        Rig.of(load_profile("h200"), 1.0).build()


def test_an_emulated_device_is_a_device_of_its_own():
    real = load_profile("h200")
    stand_in = load_profile("Emulated H200")
    assert stand_in == emulated(real) == emulated(stand_in)
    assert stand_in.is_emulated
    assert not real.is_emulated
    assert stand_in.name == "emulated NVIDIA H200"
    assert stand_in.key != real.key
    assert (stand_in.target, stand_in.cores, stand_in.kind) == (real.target, real.cores, "cuda")
    assert load_profile("emulated mi300x").kind == "rocm"
    for name in ("emulated avx512", "emulated z80"):
        with pytest.raises(UnknownHardware):
            load_profile(name)


def test_a_node_is_what_its_resource_says():
    keys = {resource_name(load_profile(n)) for n in profile_names()}
    stand_ins = {resource_name(h): h for h in emulated_devices()}
    assert not keys & set(stand_ins)
    for resource, hardware in stand_ins.items():
        assert offered_here(resource) == hardware
    assert offered_here("hw:of nobody") is None


def test_each_kind_of_device_has_its_toolbox():
    kinds = {n: type(toolbox_of(load_profile(n))) for n in ("avx512", "h200", "emulated h200")}
    assert kinds == {
        "avx512": TilecoreToolbox, "h200": DeviceToolbox, "emulated h200": EmulatedToolbox,
    }  # fmt: skip


@pytest.fixture
def two_h200(tmp_path, monkeypatch):
    """A machine whose nvidia-smi lists three devices."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{SMI}END\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_each_device_has_a_process_that_sees_no_other_and_a_lock(two_h200):
    rig = Rig.of(load_profile("h200"), 1.0)
    built = [replace(rig, index=i).build() for i in range(2)]
    seen = [zygote.environment["CUDA_VISIBLE_DEVICES"] for zygote, _ in built]
    assert seen == ["GPU-6d5b", "GPU-77aa"]
    assert all(zygote.memory_bytes is None for zygote, _ in built)
    assert len({worker._lock for _, worker in built}) == 2
    assert all(worker._is_device for _, worker in built)
    with pytest.raises(DeviceMissing, match=r"WK708.*3 x NVIDIA H200.*found 2"):
        replace(rig, index=2).build()
    offered = replace(load_profile("h200"), driver="NVIDIA 580.159.04")
    assert offered_here(resource_name(load_profile("h200"))) == offered


def test_a_tool_that_fails_lists_no_device(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert gpu_devices() == ()


@pytest.mark.exhaustive
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_torch_is_asked_in_a_process_of_its_own(caplog):
    assert ask_torch() == []
    assert caplog.text == ""


class FakeNvml(types.ModuleType):
    """What nvidia-ml-py says on a device that does not tell its power."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def nvmlInit(self):
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid != "GPU-6d5b":
            raise self.NVMLError("not found")
        return uuid

    def nvmlDeviceGetClockInfo(self, handle, which):
        return {1: 1980, 2: 3201}[which]

    def nvmlDeviceGetTemperature(self, handle, which):
        return 41

    def nvmlDeviceGetPowerUsage(self, handle):
        raise self.NVMLError("not supported")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return 4


def test_clocks_are_told_where_the_library_is(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("pynvml"))
    assert nvml.readings("GPU-6d5b") == {
        "sm_clock_hz": 1.98e9, "memory_clock_hz": 3.201e9, "temperature_c": 41.0,
        "throttle_reasons": 4.0,
    }  # fmt: skip
    assert nvml.readings("GPU-none") == {}
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    assert nvml.readings("GPU-6d5b") == {}
