"""GPU targets by the names that people write, and their limits."""

import pytest

from tilecore.errors import UnknownTarget, UnsupportedOnTarget
from tilecore.gpu_target import DEVICES, GpuTarget, find_gpu_target, gpu_targets, local_device
from tilecore.target import Target, gpu_programs_on_cpu, parse_cpu_target, parse_target


@pytest.mark.parametrize(
    ("name", "arch", "device"),
    [
        ("h100", "sm_90a", "h100"), ("NVIDIA H100 80GB HBM3", "sm_90a", "h100"),
        ("NVIDIA H100 PCIe", "sm_90a", "h100pcie"), ("H200", "sm_90a", "h200"),
        ("nvidia/nvidia-a100", "sm_80", "a100"), ("NVIDIA A100-SXM4-40GB", "sm_80", "a100"),
        ("RTX 4090", "sm_89", "rtx4090"), ("NVIDIA GeForce RTX 3090", "sm_86", "rtx3090"),
        ("NVIDIA RTX A6000", "sm_86", "rtxa6000"), ("a6000", "sm_86", "rtxa6000"),
        ("L40S", "sm_89", "l40s"), ("B200", "sm_100a", "b200"),
        ("Tesla V100-SXM2-16GB", "sm_70", "v100"), ("RTX 2080", "sm_75", "rtx2080"),
        ("NVIDIA GeForce RTX 5090", "sm_120a", "rtx5090"), ("5080", "sm_120a", "rtx5080"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "sm_120a", "rtxpro6000"),
        ("sm_87", "sm_86", "sm_86"), ("sm_103", "sm_103a", "sm_103a"),
        ("sm_120", "sm_120a", "sm_120a"), ("sm_120a", "sm_120a", "sm_120a"),
        ("Tesla T4", "sm_75", "t4"), ("NVIDIA L4", "sm_89", "l4"), ("NVIDIA A10", "sm_86", "a10"),
        ("NVIDIA RTX 6000 Ada Generation", "sm_89", "rtx6000ada"), ("NVIDIA H20", "sm_90a", "h20"),
        ("NVIDIA GeForce RTX 2080 Ti", "sm_75", "rtx2080ti"), ("NVIDIA A30", "sm_80", "a30"),
        ("sm_80", "sm_80", "sm_80"), ("sm_90", "sm_90a", "sm_90a"), ("sm_90a", "sm_90a", "sm_90a"),
        ("cuda -arch=sm_90a", "sm_90a", "sm_90a"), ("cuda -arch=sm_75", "sm_75", "sm_75"),
    ],
)  # fmt: skip
def test_names(name, arch, device):
    found = parse_target(name)
    assert isinstance(found, GpuTarget)
    assert (found.arch, found.device, found.kind) == (arch, device, "cuda")
    assert parse_target(found.name) == found


def test_targets_of_tvm_and_mappings():
    import tvm

    assert parse_target({"kind": "cuda", "arch": "sm_90"}).arch == "sm_90a"
    assert parse_target(tvm.target.Target({"kind": "cuda", "arch": "sm_80"})).arch == "sm_80"


def test_cuda_alone_is_this_machines_device_or_the_oldest_with_async_copies():
    found = parse_target("cuda")
    assert found == (local_device() or gpu_targets()["sm_80"])


def test_programs_for_gpus_still_run_on_the_cpu_where_that_was_asked_for():
    with gpu_programs_on_cpu():
        assert isinstance(parse_target("cuda"), Target)
    assert isinstance(parse_target("auto"), Target)


@pytest.mark.parametrize(
    "name", ["cuda -arch=sm_12", "sm_42", "sm_79", "sm_80a", "h900", "RTX 5090 Laptop GPU"]
)
def test_unknown_names(name):
    with pytest.raises(UnknownTarget, match="sm_90a"):
        parse_target(name)


def test_a_gpu_where_a_cpu_is_needed():
    with pytest.raises(UnsupportedOnTarget, match="expected a CPU target"):
        parse_cpu_target("h100")


def test_every_device_names_its_source_and_keeps_the_rules_of_its_architecture():
    for name, _, _, source in DEVICES:
        found = find_gpu_target(name)
        assert found is not None
        assert len(source) > 20
        assert found.shared_per_block + found.shared_reserved <= found.shared_per_multiprocessor
        assert found.threads_per_multiprocessor % found.threads_per_block == 0 or (
            found.threads_per_multiprocessor == 1536
        )


def test_instructions_of_architectures():
    a100, h100, b200 = (parse_target(n) for n in ("a100", "h100", "b200"))
    assert a100.has_cp_async and not a100.has_tma and not a100.has_wgmma  # noqa: PT018
    assert h100.has_wgmma and h100.has("sm_90") and h100.has("sm_80")  # noqa: PT018
    assert b200.has_tma and b200.has("sm_100a") and not b200.has_wgmma  # noqa: PT018
    rtx5090 = parse_target("rtx5090")
    assert rtx5090.has_tma and not rtx5090.has_wgmma and not rtx5090.has_tcgen05  # noqa: PT018
    assert not parse_target("v100").has("sm_75")
