"""Toolboxes of GPUs whose candidates are programs of a user's (``workers.program_toolbox``)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from recommender.workload import Workload
from tilecore.ir.nodes import PrimFunc
from tilecore.tile_config import KnobValue, TileConfig
from workers.device_toolbox import DeviceToolbox, EmulatedToolbox
from workers.problem import Call
from workers.program_toolbox import ProgramProblem, ProgramToolbox


@dataclass(frozen=True, slots=True)
class DeviceProgramToolbox(DeviceToolbox):
    """The candidates of one tuning task, for a CUDA device.

    Attributes:
        programs: the candidates with their inputs.
    """

    programs: ProgramToolbox = field(kw_only=True)

    def program_digest(self, workload: Workload, config: TileConfig) -> str:
        """Return the version of a candidate."""
        return self.programs.program_digest(workload, config)

    def problem(self, workload: Workload) -> ProgramProblem:
        """Return the inputs of all candidates."""
        _ = workload
        binder = functools.partial(_bind, self.load)
        return ProgramProblem(
            self.programs.cases(), self.programs.tolerance, self.tensors_on, binder
        )

    def _candidate(
        self, workload: Workload, config: TileConfig
    ) -> tuple[PrimFunc, Mapping[str, KnobValue]]:
        return self.programs.candidate(config)

    def _work_and_traffic(self, workload: Workload) -> tuple[float, float]:
        """Return no work and the bytes of the inputs: what a call does at least."""
        cases = self.programs.cases().values()
        return 0.0, float(max((sum(map(_bytes, c.inputs)) for c in cases), default=0))


@dataclass(frozen=True, slots=True)
class EmulatedProgramToolbox(DeviceProgramToolbox, EmulatedToolbox):
    """The same where the emulator stands in for the device."""


def _bind(load: Callable[[Path], Any], path: Path, arguments: Sequence[Any]) -> Call:
    """Load an artifact and bind its arguments; raises ArtifactError, ArgumentError."""
    from tilecore.runtime.kernel import check

    kernel = load(path)
    bound = check(kernel.parameters, arguments, kernel.device_type)
    return functools.partial(kernel.unchecked, *bound)


def _bytes(value: Any) -> int:
    return int(value.nbytes) if isinstance(value, np.ndarray) or hasattr(value, "nbytes") else 0
