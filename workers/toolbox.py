"""Toolbox: what the workers need from the compiler and the runtime, as one value.

Workers get it as an argument and hand it to their child processes, so it must be picklable by
reference. Everything heavy (TVM, the runtime, torch) is imported inside the methods, i.e. in the
child process that uses it.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from recommender.workload import Workload
from tilecore import kernels
from tilecore.errors import InvalidConfig
from tilecore.kernels.definition import KernelDefinition
from tilecore.tile_config import KnobValue, TileConfig
from workers.correctness import Array
from workers.outcome import Compiled

Call = Callable[[], object]


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

    def definition(self, kernel: str) -> KernelDefinition:
        """Return the kernel's definition; raises UnknownKernel."""
        ...

    def compile(self, workload: Workload, config: TileConfig, store: Path) -> Compiled:
        """Compile a candidate into ``store``."""
        ...

    def bind(self, path: Path, arrays: Sequence[Array]) -> Call:
        """Return a call of an artifact's kernel on inputs and outputs, checked here, once."""
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
        return ("tilecore.compiler", "tilecore.codegen.llvm", "tilecore.kernels")

    @property
    def run_modules(self) -> tuple[str, ...]:
        """The runtime, and torch for the rival where it is installed."""
        return ("tilecore.runtime", "tilecore.kernels", "torch")

    def definition(self, kernel: str) -> KernelDefinition:
        """Return the kernel's definition; raises UnknownKernel (TC501)."""
        return kernels.get(kernel)

    def compile(self, workload: Workload, config: TileConfig, store: Path) -> Compiled:
        """Trace, lower and generate code for a candidate; raises TileErrors."""
        from tilecore.artifact import ArtifactStore
        from tilecore.compiler import compile

        start = time.perf_counter()
        definition = self.definition(workload.kernel)
        knobs = complete_config(definition, config)
        program = definition.program(dict(workload.problem), knobs)
        artifact = compile(
            program, self.target, lowering_knobs(definition, knobs), ArtifactStore(store)
        )
        code = artifact.library.read_bytes()
        return Compiled(
            path=str(artifact.path),
            digest=hashlib.sha256(code).hexdigest()[:32],
            compile_s=time.perf_counter() - start,
            metrics={**artifact.manifest.resources, "code_bytes": float(len(code))},
        )

    def bind(self, path: Path, arrays: Sequence[Array]) -> Call:
        """Load an artifact and bind its arguments; raises ArtifactError, ArgumentError."""
        from tilecore.runtime import load
        from tilecore.runtime.kernel import check

        kernel = load(path)
        return functools.partial(kernel.unchecked, *check(kernel.parameters, arrays))

    def set_threads(self, threads: int) -> None:
        """Set the number of cores that the runtime's parallel loops use."""
        from tilecore.runtime import set_num_threads

        set_num_threads(threads)


def complete_config(definition: KernelDefinition, config: TileConfig) -> TileConfig:
    """Return the config with defaults for the knobs it leaves open.

    Raises:
        InvalidConfig: it has a knob that the kernel does not (TC303).
    """
    known = definition.default_config()
    for name, value in config.items():
        if name not in known:
            raise InvalidConfig(knob=name, value=value, expected=f"one of {', '.join(known)}")
    return known.replace(**config)


def lowering_knobs(definition: KernelDefinition, config: TileConfig) -> dict[str, KnobValue]:
    """Return the knobs that the lowering reads (the program has the others already)."""
    return {k.name: config[k.name] for k in definition.knobs if not k.symbolic}
