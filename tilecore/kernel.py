"""JITKernel: a compiled program that takes inputs, allocates outputs and can be profiled."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilecore.errors import ArgumentError, TypeMismatch, UnsupportedOnTarget
from tilecore.ir.analysis import marked_outputs
from tilecore.ir.expr import Var
from tilecore.ir.never_set import never_set
from tilecore.ir.nodes import Buffer, PrimFunc
from tilecore.profiler import Profiler, TensorSupplyType
from tilecore.runtime.kept import KeptKernel
from tilecore.runtime.outputs import OutputMaker
from tilecore.target import names_emulator
from tilecore.torch_trace import is_traced, labelled

if TYPE_CHECKING:
    from tilecore.artifact import Artifact, ParameterSpec
    from tilecore.emulated import EmulatedKernel
    from tilecore.emulator import Schedule
    from tilecore.runtime import CudaKernel, LoadedKernel

NAME_DIGITS = 12  # of a digest, in the name of an operator of torch


class UnsetOutput(UserWarning):
    """A call allocates an output that the program only adds to: new memory is not zero."""


def input_parameters(func: PrimFunc) -> tuple[Buffer | Var, ...]:
    """Return the parameters that a caller passes."""
    outputs = marked_outputs(func)
    return tuple(p for i, p in enumerate(func.params) if i not in outputs)


def _restored(
    func: PrimFunc, artifact: Artifact, out_idx: Any, told: Mapping[str, Any]
) -> JITKernel:
    """Return a kernel that was pickled, compiled for this machine where its artifact is not."""
    if not artifact.library.is_file():
        from tilecore.compiler import compile

        manifest = artifact.manifest
        is_own = manifest.device is None and not names_emulator(manifest.isa)
        artifact = compile(func, "llvm" if is_own else manifest.isa, dict(manifest.config))
    kernel = JITKernel(func, artifact, None, out_idx)
    for name, value in told.items():
        setattr(kernel, name, value)
    return kernel


class JITKernel:
    """What ``tilelang.compile`` returns.

    Attributes:
        prim_func: the traced program.
        artifact: the compiled program on disk.
        out_idx: positions of the outputs as the caller gave them, or of T.empty tensors.
        latency: time of one call in ms once the profiler or the autotuner has measured it.
        ref_latency: the same of the autotuner's reference program.
        config: the keywords that the autotuner chose.
        kept: by position, what is passed in place of tensors kept packed.
        given: positions of the parameters that a call may pass: all but those kept packed.
        given_inputs: those of them that it has to pass.
        label: a name that nothing else has in this process.
        execution_backend: how calls reach the machine code; always "tvm_ffi".
    """

    execution_backend = "tvm_ffi"

    def __init__(
        self,
        prim_func: PrimFunc,
        artifact: Artifact | None = None,
        loaded: LoadedKernel | CudaKernel | EmulatedKernel | None = None,
        out_idx: int | Sequence[int] | None = None,
        *,
        target: Any = "auto",
        kept: Mapping[int, Any] | None = None,
        **options: Any,
    ) -> None:
        if artifact is None:  # JITKernel(program, target=...)
            from tilecore.jit_compile import compile

            made: JITKernel = compile(prim_func, out_idx=out_idx, target=target, **options)
            prim_func, artifact, loaded = made.prim_func, made.artifact, made._loaded
        self.prim_func: PrimFunc = prim_func
        self.artifact: Artifact = artifact
        self._loaded: LoadedKernel | CudaKernel | EmulatedKernel | None = loaded
        self.kept = kept or {}
        self.output_positions = marked_outputs(prim_func)
        self._outputs: OutputMaker | None = None
        self._make_for_cpu: Callable[[], JITKernel] | None = None
        self._for_cpu: JITKernel | None = None
        self.out_idx = list(self.output_positions) if out_idx is None else out_idx
        self.latency: float | None = None
        self.ref_latency: float | None = None
        self.config: dict[str, Any] | None = None
        positions = range(len(prim_func.params))
        self.given = tuple(i for i in positions if i not in self.kept)
        self.given_inputs = tuple(i for i in self.given if i not in self.output_positions)
        self.label = labelled(self)

    def __deepcopy__(self, known: Any) -> JITKernel:
        """Return this kernel: copies of a model share it, as they share machine code."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how another process gets it: from its artifact, or compiled anew elsewhere.

        Raises:
            TypeError: it has memory of this process: a packed tensor, or the emulator's.
        """
        if self.kept or self._for_emulator:
            raise TypeError(
                f"cannot pickle the kernel {self.prim_func.name}, which keeps a packed tensor or "
                "runs on the emulator: make it anew there"
            )
        told = {name: getattr(self, name) for name in ("latency", "ref_latency", "config")}
        return _restored, (self.prim_func, self.artifact, self.out_idx, told)

    @property
    def _for_emulator(self) -> bool:
        return type(self._loaded).__name__ == "EmulatedKernel"

    @property
    def loaded(self) -> LoadedKernel | CudaKernel | EmulatedKernel:
        """The kernel in this process, loaded by its first use.

        Raises:
            ToolchainMissing: it is a GPU's and there is no driver or device (TC306).
        """
        if self._loaded is None:
            from tilecore import runtime

            self._loaded = runtime.load(self.artifact)
        return self._loaded

    def keep(self, **weights: Any) -> JITKernel:
        """Return this kernel with a tensor that is packed now and kept: weights of a layer.

        It is called without that tensor, whose memory it does not hold on to. What it computes is
        the same; a product need not pack its second operand in every call, nor read it as it lies.

        Args:
            weights: one tensor by the name of its parameter; the program copies whole tiles of it
                for products that read them as their second operand.

        Raises:
            UnsupportedOnTarget: it is a kernel of a GPU (TC302).
            InvalidConfig: no product reads the tensor so (TC303).
            ArgumentError: no such parameter, not one, or a tensor that does not fit it (TC402).
        """
        from tilecore.compiler import compile

        manifest = self.artifact.manifest
        names = [p.name for p in manifest.parameters if p.kind == "tensor"]
        if len(weights) != 1 or not weights.keys() <= set(names):
            raise ArgumentError(
                position=0, name=self.prim_func.name, found=", ".join(weights) or "none",
                expected=f"one of the tensors {', '.join(names)} by name",
            )  # fmt: skip
        if manifest.device is not None:
            raise UnsupportedOnTarget(
                what="keeping a packed operand", target=manifest.isa,
                reason="kernels of GPUs pack nothing ahead of a launch",
            )  # fmt: skip
        ((name, tensor),) = weights.items()
        artifact = compile(self.prim_func, manifest.isa, {**manifest.config, "keep": name})
        position = [p.name for p in manifest.parameters].index(name)
        loaded = KeptKernel(artifact, position, tensor)
        kept = {position: loaded.placeholder}
        return JITKernel(self.prim_func, artifact, loaded, self.out_idx, kept=kept)

    def emulated(self, schedules: Sequence[Schedule] | None = None) -> JITKernel:
        """Return this kernel of a GPU as one that takes CPU tensors and runs on the emulator.

        Args:
            schedules: in which orders things happen that a GPU does not order; all must give one
                result. Default: as late as allowed (``tilecore.emulator.ALL_SCHEDULES``: four).

        Raises:
            UnsupportedOnTarget: it is a CPU's (TC302).
        """
        from tilecore.emulated import EmulatedKernel
        from tilecore.emulator import LATE
        from tilecore.target import parse_target

        manifest = self.artifact.manifest
        target = parse_target(manifest.isa)
        loaded = EmulatedKernel(self.prim_func, target, schedules or (LATE,), manifest.config)
        return JITKernel(self.prim_func, self.artifact, loaded, self.out_idx)

    @property
    def specs(self) -> Sequence[ParameterSpec]:
        """The parameters as the caller must pass them."""
        return self.artifact.manifest.parameters

    @property
    def operator_name(self) -> str:
        """The name of its operators of torch, the same in every process."""
        return f"{self.prim_func.name}_{self.artifact.manifest.key[:NAME_DIGITS]}"

    @property
    def torch_op(self) -> Any:
        """The kernel as an operator of torch that takes what a call does and returns new outputs.

        Calls in code that torch compiles or exports become this operator by themselves. A process
        that loads an exported program needs it defined before: by this property, of the same
        program for the same target. It has no gradient.
        """
        from tilecore import torch_ops

        return torch_ops.operator_of(self)

    def computes_as(self, other: JITKernel) -> bool:
        """Return whether two kernels surely compute the same: one artifact, nothing kept."""
        is_same = self.artifact.path == other.artifact.path
        runs_alike = is_same and type(self.loaded) is type(other.loaded)
        return self is other or (runs_alike and not self.kept and self.given == other.given)

    @property
    def params(self) -> tuple[Buffer | Var, ...]:
        """The parameters in order."""
        return self.prim_func.params

    @property
    def inputs(self) -> tuple[Buffer | Var, ...]:
        """The parameters a caller passes."""
        return input_parameters(self.prim_func)

    def __call__(self, *tensors: Any) -> Any:
        """Run the kernel.

        Args:
            tensors: the inputs (tensors and numbers), or all parameters (then outputs are written
                in place).

        Returns:
            The output tensor, a list of them if there are several, or None if there are none.
            Outputs are torch tensors if an input is one, else NumPy arrays.

        Raises:
            ArgumentError: a wrong number of tensors, or one of the wrong kind (TC402).
        """
        if is_traced():
            from tilecore import torch_ops

            return torch_ops.call(self, tensors)
        return self.run(*tensors)

    def run(self, *tensors: Any) -> Any:
        """Run the kernel as a call does, also where torch traces."""
        if self._make_for_cpu is not None and _lie_here(tensors):
            if self._for_cpu is None:
                self._for_cpu = self._make_for_cpu()
            return self._for_cpu.run(*tensors)
        is_whole = len(tensors) == len(self.given) and not self.kept
        arguments = tensors if is_whole else self._arguments(tensors)
        loaded = self._loaded
        (self.loaded if loaded is None else loaded)(*arguments)
        positions = self.output_positions
        if not positions:
            return None
        if len(positions) == 1:
            return arguments[positions[0]]
        return [arguments[i] for i in positions]

    def or_on_cpu(self, make: Callable[[], JITKernel]) -> JITKernel:
        """Return this kernel of a GPU, which runs what ``make`` returns for tensors of the CPU.

        The program left open where it runs: tensors decide.
        """
        self._make_for_cpu = make
        return self

    def _arguments(self, tensors: Sequence[Any]) -> list[Any]:
        """Return one argument per parameter: what is given or kept, and new outputs."""
        is_whole = len(tensors) == len(self.given)
        positions = self.given if is_whole else self.given_inputs
        if len(tensors) != len(positions):
            params = [self.params[i] for i in positions]
            what = "tensors" if all(isinstance(p, Buffer) for p in params) else "arguments"
            raise ArgumentError(
                position=min(len(tensors), len(positions)),
                name=self.prim_func.name,
                expected=f"{len(positions)} {what} ({', '.join(p.name for p in params)})",
                found=len(tensors),
            )
        arguments = list(tensors)
        if self.kept:
            found = {**self.kept, **dict(zip(positions, tensors, strict=True))}
            arguments = [found[i] for i in sorted(found)]
        return arguments if is_whole else self.with_outputs(arguments)

    def with_outputs(self, inputs: list[Any]) -> list[Any]:
        """Return all arguments, with new outputs of the shapes that the inputs give them.

        The first call warns of those that the program only adds to (``UnsetOutput``).
        """
        if self._outputs is None:
            for buffer, stmt in never_set(self.prim_func).items():
                warnings.warn(
                    f"{stmt.span}: {self.prim_func.name} only adds to `{buffer.name}`, which this "
                    "call allocates: nothing sets it, and new memory is not zero; pass a tensor "
                    "of zeros, or set it in a launch before",
                    UnsetOutput, stacklevel=5,
                )  # fmt: skip
            specs, device = self.artifact.manifest.parameters, self.loaded.device_type
            self._outputs = OutputMaker(specs, self.output_positions, device)
        return self._outputs.complete(inputs)

    def get_kernel_source(self, kernel_only: bool = True) -> str:
        """Return the CUDA text of a GPU's kernel, else the program that was compiled, in tile IR.

        ``kernel_only`` has no effect.
        """
        _ = kernel_only
        is_gpu = self.artifact.manifest.device is not None
        return self.artifact.cuda_text if is_gpu else self.artifact.program

    @property
    def kernel_source(self) -> str:
        """``get_kernel_source()``, by TileLang's name."""
        return self.get_kernel_source()

    def get_host_source(self) -> str:
        """Return how a GPU's kernels are launched, a line each; "" of a CPU, where a call is all.

        No code of a host is generated: the runtime passes the arguments.
        """
        device = self.artifact.manifest.device
        entries = () if device is None else device.entries
        return "".join(
            f"{e.name}<<<grid{e.grid}, block{e.block}, {e.shared_bytes}>>>"
            f"({', '.join(a.name for a in e.arguments)})\n"
            for e in entries
        )

    def show_source(self, which: str = "kernel") -> None:
        """Print the source of the kernel.

        Raises:
            TypeMismatch: ``which`` is not "kernel": no code of a host is generated, the runtime
                passes the arguments (TC202).
        """
        if which != "kernel":
            raise TypeMismatch(
                expected='"kernel" (no host code is generated: the runtime passes the arguments)',
                found=repr(which),
            )
        sys.stdout.write(self.get_kernel_source() + "\n")

    def export_sources(self, kernel_path: str | PathLike[str]) -> None:
        """Write the source of the kernel to a file, and make its folder."""
        path = Path(kernel_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.get_kernel_source(), encoding="utf-8")

    def print_source_code(
        self, which: str = "kernel", file: str | PathLike[str] | None = None
    ) -> None:
        """Print the source of the kernel, or write it to ``file`` (TileLang's older name)."""
        if file is not None:
            self.export_sources(file)
        else:
            self.show_source(which)

    def explain(self) -> str:
        """Return what was inferred for the program, and why."""
        return "\n".join(self.artifact.manifest.notes)

    def show(self, stage: str | None = None) -> str:
        """Return the program after a stage of its compilation (all up to TIR if None).

        Stages: ``source``, the passes by name, ``inference``, ``tir``; of a CPU ``llvm`` and
        ``asm``, of a GPU ``cuda``.

        Raises:
            TypeMismatch: there is no such stage (TC202).
        """
        from tilecore.show import show
        from tilecore.target import parse_target

        manifest = self.artifact.manifest
        return show(self.prim_func, parse_target(manifest.isa), manifest.config, stage)

    def get_profiler(
        self, tensor_supply_type: TensorSupplyType = TensorSupplyType.Auto
    ) -> Profiler:
        """Return a profiler that supplies inputs of the given kind."""
        return Profiler(self, tensor_supply_type)

    def run_once(self) -> Any:
        """Run the kernel on supplied inputs and return its outputs."""
        return self.get_profiler().run_once()

    def __repr__(self) -> str:
        return f"JITKernel({self.prim_func.name}, {self.artifact.manifest.target})"


def _lie_here(values: Sequence[Any]) -> bool:
    """Return whether the first tensor of a call lies in this machine's own memory."""
    for value in values:
        if hasattr(value, "shape"):
            return not getattr(value, "is_cuda", False)
    return False
