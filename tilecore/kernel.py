"""JITKernel: a compiled program that takes inputs, allocates outputs and can be profiled."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tilecore.errors import ArgumentError
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Var
from tilecore.ir.nodes import Buffer, PrimFunc
from tilecore.profiler import Profiler, TensorSupplyType
from tilecore.runtime import dims

if TYPE_CHECKING:
    from tilecore.artifact import Artifact
    from tilecore.runtime import LoadedKernel


class JITKernel:
    """What ``tilelang.compile`` returns.

    Attributes:
        prim_func: the traced program.
        artifact: the compiled program on disk.
        out_idx: positions of the outputs as the caller gave them, or of T.empty tensors.
        latency: time of one call in ms once the profiler or the autotuner has measured it.
        ref_latency: the same of the autotuner's reference program.
        config: the keywords that the autotuner chose.
        execution_backend: how calls reach the machine code; always "tvm_ffi".
    """

    execution_backend = "tvm_ffi"

    def __init__(
        self,
        prim_func: PrimFunc,
        artifact: Artifact | None = None,
        loaded: LoadedKernel | None = None,
        out_idx: int | Sequence[int] | None = None,
        *,
        target: Any = "auto",
        **options: Any,
    ) -> None:
        if artifact is None or loaded is None:  # JITKernel(program, target=...)
            from tilecore.jit import compile

            made: JITKernel = compile(prim_func, out_idx=out_idx, target=target, **options)
            prim_func, artifact, loaded = made.prim_func, made.artifact, made.loaded
        self.prim_func: PrimFunc = prim_func
        self.artifact: Artifact = artifact
        self.loaded: LoadedKernel = loaded
        marked = [
            i for i, p in enumerate(prim_func.params) if isinstance(p, Buffer) and p.is_output
        ]
        self.output_positions = tuple(prim_func.attrs.get("out_idx", marked))
        self.out_idx = list(self.output_positions) if out_idx is None else out_idx
        self.latency: float | None = None
        self.ref_latency: float | None = None
        self.config: dict[str, Any] | None = None

    @property
    def params(self) -> tuple[Buffer | Var, ...]:
        """The parameters in order."""
        return self.prim_func.params

    @property
    def inputs(self) -> tuple[Buffer | Var, ...]:
        """The parameters a caller passes."""
        return tuple(p for i, p in enumerate(self.params) if i not in self.output_positions)

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
        arguments = list(tensors)
        if len(arguments) != len(self.params):
            if len(arguments) != len(self.inputs):
                names = ", ".join(p.name for p in self.inputs)
                plain = all(isinstance(p, Buffer) for p in self.inputs)
                what = "tensors" if plain else "arguments"
                raise ArgumentError(
                    position=min(len(arguments), len(self.inputs)),
                    name=self.prim_func.name,
                    expected=f"{len(self.inputs)} {what} ({names})",
                    found=len(arguments),
                )
            arguments = self.with_outputs(arguments)
        self.loaded(*arguments)
        outputs = [arguments[i] for i in self.output_positions]
        return (outputs if len(outputs) > 1 else outputs[0]) if outputs else None

    def with_outputs(self, inputs: list[Any]) -> list[Any]:
        """Return all arguments, with new outputs of the shapes that the inputs give them."""
        arguments: list[Any] = list(inputs)
        for position in sorted(self.output_positions):
            arguments.insert(position, None)
        specs = self.loaded.parameters
        values = dims.bind(specs, arguments)
        for position in self.output_positions:
            spec = specs[position]
            missing = dims.missing(spec, values)
            if missing:
                raise ArgumentError(
                    position=position,
                    name=spec.name,
                    expected=f"its size: no input has an axis {', '.join(missing)}",
                    found="an output left out",
                )
            shape = tuple(dims.evaluate(e, values) for e in spec.shape)
            arguments[position] = _empty(shape, DType(spec.dtype), inputs)
        return arguments

    def get_kernel_source(self, kernel_only: bool = True) -> str:
        """Return the program that was compiled, in tile IR (``kernel_only`` has no effect)."""
        _ = kernel_only
        return self.artifact.program

    def explain(self) -> str:
        """Return what was inferred for the program, and why."""
        return "\n".join(self.artifact.manifest.notes)

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


def _empty(shape: tuple[int, ...], dtype: DType, inputs: Sequence[Any]) -> Any:
    """Return an uninitialised output, of torch if an input is, or if torch is loaded at all."""
    torch = sys.modules.get("torch")
    is_numpy = any(isinstance(i, np.ndarray) for i in inputs)
    if dtype.is_packed:
        shape = (*shape[:-1], shape[-1] // 2)
    if torch is None or (is_numpy and not any(isinstance(i, torch.Tensor) for i in inputs)):
        return np.empty(shape, np.uint8 if dtype.is_packed else dtype.numpy)
    return torch.empty(shape, dtype=dtype.as_torch())
