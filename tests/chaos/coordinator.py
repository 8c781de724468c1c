"""The coordinator of the chaos test: the real one, whose workers stand in for the device.

python -m tests.chaos.coordinator REPEATS LOG   (settings from TILECORE_... as always)
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.chaos.stand_in import StandInBench, StandInToolbox
from tuner_service import wiring
from tuner_service.coordinator.cluster_workplace import ClusterWorkplace
from tuner_service.coordinator.main import run_coordinator
from tuner_service.settings import load_settings
from workers.ray_pool import RayPool


def main(repeats: float, log: Path) -> None:
    settings = load_settings()
    assert settings.ray_address is not None
    store = wiring.open_store(settings)
    workplace = ClusterWorkplace(
        settings.ray_address,
        wiring.host_toolchain(),
        lambda hardware, epoch, **shared: RayPool(
            hardware,
            artifact_dir=settings.artifact_dir,
            epoch=epoch,
            installation=store.installation,
            compile_workers=settings.compile_workers,
            toolbox=StandInToolbox(repeats, log),
            bench=StandInBench,
        ),
    )
    run_coordinator(settings, store, until_idle=False, parent=None, workplace=workplace)


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]))
