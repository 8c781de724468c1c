"""What a candidate is run on and compared with, in the measuring child process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from recommender.workload import Workload
from tilecore.kernels.definition import KernelDefinition
from workers.correctness import (
    Array,
    CheckReport,
    GuardedOutput,
    aligned_copy,
    compare,
    judged,
    tolerance,
)

Call = Callable[[], object]
Binder = Callable[[Path, Sequence[Array]], Call]


class Problem(Protocol):
    """Inputs of one workload, and what its candidates must compute from them."""

    def bind(self, path: Path) -> Call:
        """Return a call of an artifact's kernel on the inputs."""
        ...

    def check(self, call: Call) -> CheckReport:
        """Run a call that ``bind`` returned once and compare everything it may have touched."""
        ...

    def rival(self) -> Call | None:
        """Return a call that does the same work otherwise (with torch), None without one."""
        ...


@dataclass(slots=True)
class KernelProblem:
    """A library kernel's workload: fresh random inputs and their float64 expectation."""

    workload: Workload
    definition: KernelDefinition
    binder: Binder
    seed: int
    inputs: list[Array]
    pristine: list[Array]  # what the inputs must still be after a run
    expected: list[Array]
    outputs: list[GuardedOutput]
    rtol: float
    atol: float

    @classmethod
    def fresh(
        cls, workload: Workload, definition: KernelDefinition, binder: Binder
    ) -> KernelProblem:
        """Return new random inputs with their float64 expectation."""
        seed = int(np.random.SeedSequence().generate_state(1)[0])
        problem = dict(workload.problem)
        given = list(definition.inputs(problem, np.random.default_rng(seed)))
        expected = list(definition.reference(problem, given))
        out_dtype = str(problem.get("out_dtype", problem.get("dtype", "float32")))
        accum_dtype = str(problem.get("accum_dtype", out_dtype))
        length, rounded = definition.reduction_length(problem), definition.rounded_dtype
        rtol, atol = tolerance(
            out_dtype, accum_dtype, length, None if rounded is None else rounded(problem)
        )
        outputs = [GuardedOutput.allocate(x.shape, out_dtype) for x in expected]
        inputs = [aligned_copy(x) for x in given]
        return cls(workload, definition, binder, seed, inputs, given, expected, outputs, rtol, atol)

    def bind(self, path: Path) -> Call:
        """Return a call of an artifact's kernel: inputs, then outputs."""
        return self.binder(path, [*self.inputs, *(out.array for out in self.outputs)])

    def check(self, call: Call) -> CheckReport:
        """Run a kernel once on poisoned outputs and compare everything it may have touched."""
        for out in self.outputs:
            out.poison()
        call()
        reports = (
            (compare(out.array, wanted, self.rtol, self.atol, f"output {i}"), out.is_intact)
            for i, (out, wanted) in enumerate(zip(self.outputs, self.expected, strict=True))
        )
        return judged(reports, self._restored(), self.seed)

    def _restored(self) -> Iterator[int]:
        """Yield the numbers of inputs that were written to, once they are what they were."""
        for i, (now, before) in enumerate(zip(self.inputs, self.pristine, strict=True)):
            if now.tobytes() != before.tobytes():
                np.copyto(now, before)
                yield i

    def rival(self) -> Call | None:
        """Return torch's call; without torch or its operator there is none."""
        with contextlib.suppress(ImportError):  # torch is optional
            found: Call | None = self.definition.rival(dict(self.workload.problem), self.pristine)
            return found
        return None
