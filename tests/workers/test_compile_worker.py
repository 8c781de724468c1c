"""How many candidates a node compiles at once, and when it compiles none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers.fault_toolbox import FaultToolbox
from workers.compile_worker import CompileWorker, compile_zygote, compilers_of
from workers.errors import WorkerLost


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


def test_a_compiler_without_room_is_not_back_before_there_is_some(tmp_path: Path) -> None:
    """Of a run on a full disk all candidates were COMPILE_ERROR, for good."""
    store = tmp_path / "artifacts"
    store.write_text("in the way")
    worker = CompileWorker(compile_zygote(FaultToolbox()), FaultToolbox(), store, 5.0)
    with pytest.raises(WorkerLost, match=r"compile worker: .*artifacts"):
        worker.recover()
    store.unlink()
    worker.recover()
    assert list(store.iterdir()) == []
    worker.close()
