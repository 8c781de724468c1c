"""Architectures of GPUs by their names, and how far two are from each other."""

import pytest

from recommender.gpu_names import STRANGER, architecture_of, steps_between
from recommender.hardware import load_profile, nearest_profile, profile_names
from tilecore.amd_target import amd_targets
from tilecore.gpu_target import gpu_targets


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("NVIDIA A100-SXM4-80GB", "sm_80"), ("NVIDIA H100 80GB HBM3", "sm_90"),
        ("NVIDIA RTX A4000", "sm_86"), ("RTX_3060_laptop", "sm_86"), ("NVIDIA A10G", "sm_86"),
        ("NVIDIA A40-48Q", "sm_86"), ("RTX_Titan", "sm_75"), ("NVIDIA TITAN RTX", "sm_75"),
        ("Quadro RTX 6000", "sm_75"), ("NVIDIA RTX 6000 Ada Generation", "sm_89"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "sm_89"), ("NVIDIA GeForce RTX 5090", "sm_120"),
        ("AMD Instinct MI300X", "gfx942"), ("MI250X", "gfx90a"), ("W6600", "gfx1032"),
        ("AMD Radeon RX 7900 XTX", "gfx1100"), ("sm_90a", "sm_90"), ("gfx942", "gfx942"),
        ("A1000000", None), ("AMD EPYC 9654", None), ("", None),
    ],
)  # fmt: skip
def test_a_name_tells_the_architecture(name, arch):
    found = architecture_of(name)
    assert (found and found.arch) == arch


@pytest.mark.parametrize(
    ("one", "other", "steps"),
    [
        ("RTX 3090", "NVIDIA RTX A6000", 0), ("NVIDIA A100-PCIE-40GB", "RTX 3090", 1),
        ("RTX_2080_Ti", "A100", 2), ("W6600", "W7800", 1), ("MI250X", "W7800", 2),
        ("MI250X", "A100", STRANGER), ("my board", "A100", STRANGER), ("my board", "My Board", 0),
        ("my board", "another", STRANGER),
    ],
)  # fmt: skip
def test_steps_between_two(one, other, steps):
    assert steps_between(one, other) == steps_between(other, one) == steps


def test_profiles_are_of_the_architecture_that_their_names_tell():
    gpus = [p for p in map(load_profile, profile_names()) if p.kind != "cpu"]
    for profile in gpus:
        for name in (profile.name, *profile.aliases):
            found = architecture_of(name)
            assert found is not None, name
            assert profile.arch.rstrip("a") == found.arch.rstrip("a"), name


@pytest.mark.parametrize("target", [*gpu_targets().values(), *amd_targets().values()], ids=str)
def test_devices_that_the_compiler_knows_are_of_its_architecture(target):
    found = architecture_of(target.device)
    assert found is not None
    assert found.arch.rstrip("a") == target.arch.rstrip("a")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("NVIDIA A10G", "sm_86"), ("NVIDIA A40", "sm_86"), ("NVIDIA A30", "sm_80"),
        ("NVIDIA L20", "sm_89"), ("AMD Instinct MI210", "gfx90a"), ("NVIDIA B300", "sm_100a"),
        ("AMD Instinct MI355X", "gfx950"), ("NVIDIA GeForce RTX 5060", "sm_120a"),
        ("sm_80", "sm_80"), ("sm_103a", "sm_100a"),
    ],
)  # fmt: skip
def test_a_device_without_a_profile_is_taken_for_one_of_its_family(name, nearest):
    found, emulated = nearest_profile(name), nearest_profile(f"emulated {name}")
    assert found is not None
    assert found.arch == nearest
    assert emulated is not None
    assert emulated.name == f"emulated {found.name}"
