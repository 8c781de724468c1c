"""Toolbox: what the workers need from the compiler and the runtime, as one value.

Workers get it as an argument and hand it to their child processes, so it must be picklable by
reference. Everything heavy (TVM, the runtime, torch) is imported inside the methods, i.e. in the
child process that uses it.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from recommender.open_shapes import program_digest
from recommender.workload import Workload, digest_of
from tilecore import kernels
from tilecore.errors import InvalidConfig
from tilecore.ir.nodes import PrimFunc
from tilecore.kernels.definition import KernelDefinition
from tilecore.tile_config import KnobValue, TileConfig
from workers.outcome import Compiled
from workers.pinning import set_threads
from workers.portable_problem import PortableProblem, candidate
from workers.problem import Call, KernelProblem, Problem


class Toolbox(Protocol):
    """Compiles, loads and runs candidates."""

    @property
    def compile_modules(self) -> tuple[str, ...]:
        """Modules worth importing once, before compile processes are forked."""
        ...

    @property
    def run_modules(self) -> tuple[str, ...]:
        """Modules worth importing once, before measuring processes are forked."""
        ...

    def program_digest(self, workload: Workload, config: TileConfig) -> str:
        """Return the version of a candidate's program: most workloads have one for all configs."""
        ...

    def problem(self, workload: Workload) -> Problem:
        """Return inputs and expectation, in the measuring process."""
        ...

    def compile(self, workload: Workload, config: TileConfig, store: Path) -> Compiled:
        """Compile a candidate into ``store``."""
        ...

    def set_threads(self, threads: int) -> None:
        """Let kernels use this many cores from now on."""
        ...


@dataclass(frozen=True, slots=True)
class TilecoreToolbox:
    """The real one: tilecore's compiler and runtime."""

    target: str = "llvm"

    @property
    def compile_modules(self) -> tuple[str, ...]:
        """TVM takes seconds to import: once per zygote."""
        return ("tilecore.compiler", "tilecore.codegen.llvm", *kernels.MODULES)

    @property
    def run_modules(self) -> tuple[str, ...]:
        """The runtime, and torch for the rival where it is installed."""
        return ("tilecore.runtime", *kernels.MODULES, "torch")

    def program_digest(self, workload: Workload, config: TileConfig) -> str:
        """Return the digest of the kernel's program; raises UnknownKernel (TC501)."""
        sent = digest_of(workload.kernel)
        if sent is not None:
            return sent
        return program_digest(kernels.get(workload.kernel), dict(workload.problem))

    def problem(self, workload: Workload) -> Problem:
        """Return random inputs with their reference; raises UnknownKernel (TC501)."""
        if workload.source is not None:
            return PortableProblem.fresh(workload, workload.source, bind)
        return KernelProblem.fresh(workload, kernels.get(workload.kernel), bind)

    def compile(self, workload: Workload, config: TileConfig, store: Path) -> Compiled:
        """Trace, lower and generate code for a candidate; raises TileErrors."""
        start = time.perf_counter()
        if workload.source is not None:
            program, knobs = candidate(workload, workload.source, config)
            return build(program, self.target, knobs, store, start)
        definition = kernels.get(workload.kernel)
        whole = complete_config(definition, config)
        program = definition.program(dict(workload.problem), whole)
        return build(program, self.target, lowering_knobs(definition, whole), store, start)

    def set_threads(self, threads: int) -> None:
        """Set the number of cores that the runtime's parallel loops use."""
        set_threads(threads)


def build(
    program: PrimFunc, target: str, knobs: Mapping[str, KnobValue], store: Path, start_s: float
) -> Compiled:
    """Compile a program into ``store``; ``start_s`` is the ``perf_counter`` at which it began."""
    from tilecore.artifact import ArtifactStore
    from tilecore.compiler import compile

    artifact = compile(program, target, knobs, ArtifactStore(store))
    code = artifact.library.read_bytes()
    return Compiled(
        path=str(artifact.path),
        digest=hashlib.sha256(code).hexdigest()[:32],
        compile_s=time.perf_counter() - start_s,
        metrics={**artifact.manifest.resources, "code_bytes": float(len(code))},
    )


def bind(path: Path, arrays: Sequence[Any]) -> Call:
    """Load an artifact and bind its arguments; raises ArtifactError, ArgumentError."""
    from tilecore.runtime import load
    from tilecore.runtime.kernel import check

    kernel = load(path)
    return functools.partial(kernel.unchecked, *check(kernel.parameters, arrays))


def complete_config(
    definition: KernelDefinition, config: TileConfig, kind: str = "cpu"
) -> TileConfig:
    """Return the config with defaults for the knobs of a kind of target that it leaves open.

    Raises:
        InvalidConfig: it has a knob that the kernel does not (TC303).
    """
    known = definition.default_config(kind)
    for name, value in config.items():
        if name not in known:
            raise InvalidConfig(knob=name, value=value, expected=f"one of {', '.join(known)}")
    return known.replace(**config)


def lowering_knobs(definition: KernelDefinition, config: TileConfig) -> dict[str, KnobValue]:
    """Return the knobs that the lowering reads (the program has the others already)."""
    return {k.name: config[k.name] for k in definition.knobs if not k.symbolic}
