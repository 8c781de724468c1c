"""How many candidates a node compiles at once."""

from __future__ import annotations

import pytest

from workers.compile_worker import compilers_of


@pytest.mark.parametrize(("cores", "devices", "kind", "compilers"), [
    (1, 1, "cpu", 1),
    (2, 1, "cpu", 2),  # timing one thread by its own time bears that
    (8, 1, "cpu", 4),
    (96, 1, "cpu", 8),  # one meter needs no more
    (96, 8, "cuda", 64),
    (32, 8, "cuda", 24),  # a core for each device
    (16, 1, "cuda", 8),
    (4, 4, "rocm", 2),
    (64, 0, "cuda", 63),  # it only compiles
    (2, 0, "cuda", 2),
    (0, 1, "cuda", 1),  # offered to Ray without CPUs
])  # fmt: skip
def test_compilers_follow_the_cores_and_devices_of_a_node(
    cores: int, devices: int, kind: str, compilers: int
) -> None:
    assert compilers_of(cores, devices, kind) == compilers
