"""ProgramToolbox: candidates that are programs of a user's, traced elsewhere and passed as files.

The folder holds ``<config key>.program`` for each candidate and ``cases``, the inputs (and the
expected outputs, where they are known) by program digest. Everything in it was pickled by the
process that asks: it must not come from anybody else.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recommender.workload import Workload
from tilecore.ir.nodes import PrimFunc
from tilecore.ir.printer import program_digest
from tilecore.profiler import Tolerance
from tilecore.tile_config import KnobValue, TileConfig
from tilecore.tuning import Candidate
from workers.correctness import CheckReport
from workers.device_problem import on_device
from workers.outcome import Compiled
from workers.pinning import set_threads
from workers.problem import Binder, Call
from workers.toolbox import bind, build

CASES, TORCH_CASES = "cases", "cases.torch"


@dataclass(frozen=True, slots=True)
class Case:
    """What one program is run on, and what it must compute (None: nobody knows)."""

    inputs: Sequence[Any]
    expected: Sequence[Any] | None


@dataclass(frozen=True, slots=True)
class ProgramToolbox:
    """The candidates of one tuning task.

    Attributes:
        folder: where ``write`` has put them.
        versions: of the candidates, by config.
        target, knobs: what they are compiled for and with, beside each candidate's own knobs.
        tolerance: of comparisons with what is expected.
    """

    folder: Path
    versions: Mapping[TileConfig, str]
    target: str
    knobs: tuple[tuple[str, KnobValue], ...]
    tolerance: Tolerance

    @property
    def compile_modules(self) -> tuple[str, ...]:
        """TVM takes seconds to import: once per zygote."""
        return ("tilecore.compiler", "tilecore.codegen.llvm", "workers.program_toolbox")

    @property
    def run_modules(self) -> tuple[str, ...]:
        """The runtime, and torch: inputs are its tensors where it is installed."""
        return ("tilecore.runtime", "workers.program_toolbox", "torch")

    def write(self, candidates: Sequence[Candidate]) -> None:
        """Put the candidates into the folder; inputs that they share are written once."""
        cases = {}
        for c in candidates:
            lowering = {**dict(self.knobs), **c.lowering}
            self._file(c.config).write_bytes(pickle.dumps((c.program, lowering)))
            expected = None if c.expected is None else _on_host(c.expected)
            cases[program_digest(c.program)] = Case(_on_host(c.inputs), expected)
        torch = sys.modules.get("torch")
        if torch is not None:  # plain pickle cannot restore tensors of float8
            torch.save(cases, self.folder / TORCH_CASES)
        else:
            (self.folder / CASES).write_bytes(pickle.dumps(cases))

    def program_digest(self, workload: Workload, config: TileConfig) -> str:
        """Return the version of a candidate."""
        _ = workload
        return self.versions[config]

    def compile(self, workload: Workload, config: TileConfig, store: Path) -> Compiled:
        """Compile a candidate into ``store``; raises TileErrors."""
        _ = workload
        start = time.perf_counter()
        program, lowering = self.candidate(config)
        return build(program, self.target, lowering, store, start)

    def problem(self, workload: Workload) -> ProgramProblem:
        """Return the inputs of all candidates."""
        _ = workload
        return ProgramProblem(self.cases(), self.tolerance)

    def candidate(self, config: TileConfig) -> tuple[PrimFunc, Mapping[str, KnobValue]]:
        """Return the program of a candidate and the knobs of its lowering."""
        found: tuple[PrimFunc, Mapping[str, KnobValue]]
        found = pickle.loads(self._file(config).read_bytes())
        return found

    def set_threads(self, threads: int) -> None:
        """Set the number of cores that the runtime's parallel loops use."""
        set_threads(threads)

    def cases(self) -> dict[str, Case]:
        """Return inputs and expected outputs by program digest."""
        found: dict[str, Case]
        if (self.folder / TORCH_CASES).exists():
            import torch

            found = torch.load(self.folder / TORCH_CASES, weights_only=False)
        else:
            found = pickle.loads((self.folder / CASES).read_bytes())
        return found

    def _file(self, config: TileConfig) -> Path:
        return self.folder / f"{config.key}.program"


@dataclass(slots=True)
class ProgramCall:
    """A call of a user's program, with what it writes."""

    run: Call
    results: Sequence[Any]
    written: Sequence[tuple[Any, Any]]  # inputs that the kernel writes, with their first values
    expected: Sequence[Any] | None

    def __call__(self) -> object:
        """Run the kernel."""
        return self.run()


@dataclass(frozen=True, slots=True)
class ProgramProblem:
    """Inputs by program digest, and how outputs are compared.

    Attributes:
        device: where kernels want their tensors, "" where they are.
        binder: makes calls of an artifact's kernel.
    """

    cases: Mapping[str, Case]
    tolerance: Tolerance
    device: str = ""
    binder: Binder = bind

    def bind(self, path: Path) -> ProgramCall:
        """Return a call of an artifact's kernel; raises ArtifactError, ArgumentError."""
        from tilecore.artifact import Artifact
        from tilecore.runtime.outputs import OutputMaker

        manifest = Artifact.open(path).manifest
        case, specs = self.cases[manifest.program_digest], manifest.parameters
        outputs = [i for i, spec in enumerate(specs) if spec.is_output]
        arguments = list(case.inputs)
        if self.device:
            arguments = [on_device(x, self.device) for x in arguments]
        if len(arguments) < len(specs):
            maker = OutputMaker(specs, outputs, self.device or "cpu")
            arguments = maker.complete(arguments)
        written = [i for i, spec in enumerate(specs) if spec.is_written and i not in outputs]
        return ProgramCall(
            run=self.binder(path, arguments),
            results=[arguments[i] for i in (outputs or written)],
            written=[(arguments[i], _copy(arguments[i])) for i in written],
            expected=case.expected,
        )

    def check(self, call: Call) -> CheckReport:
        """Run a kernel on its inputs' first values and compare its outputs with what is known.

        What a program returns nothing of but writes in place is compared in the parameters' order.
        """
        assert isinstance(call, ProgramCall)
        for now, first in call.written:
            now[...] = first
        call()
        if not call.expected:
            return CheckReport(0.0)
        found = [x.cpu() if self.device else x for x in call.results]
        detail = self.tolerance.difference(found, call.expected)
        return CheckReport(np.inf if detail else 0.0, detail)

    def rival(self) -> Call | None:
        """Return None: what the same work would cost otherwise is the user's to say."""
        return None


def _on_host(values: Sequence[Any]) -> list[Any]:
    """Return values with the tensors of a device as tensors of this process's memory."""
    return [v.cpu() if hasattr(v, "cpu") else v for v in values]


def _copy(tensor: Any) -> Any:
    return tensor.clone() if hasattr(tensor, "clone") else tensor.copy()
