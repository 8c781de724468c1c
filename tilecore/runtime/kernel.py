"""LoadedKernel: checked, zero-copy calls."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilecore import amx
from tilecore.artifact import Artifact, ParameterSpec
from tilecore.assertion import parse_failure
from tilecore.errors import AliasError, ArgumentError, ArtifactError, UnknownTarget
from tilecore.ir.dtype import DType
from tilecore.runtime import dims, threads
from tilecore.runtime.library import join_threads, load_library
from tilecore.runtime.native import ENTRY, table_of
from tilecore.runtime.quick import QuickCheck, QuickChecks, quick_check
from tilecore.runtime.tensor import TensorView, view
from tilecore.target import Target, host_features, parse_cpu_target, widest_target


class LoadedKernel:
    """A compiled kernel in this process; call it with all arguments in parameter order."""

    device_type = "cpu"  # where its tensors lie

    def __init__(self, artifact: Artifact) -> None:
        _check_isa(artifact)
        self.artifact = artifact
        self.parameters = artifact.manifest.parameters
        self._module, self._function = load_library(artifact.library, artifact.manifest.entry)
        self._quick: QuickCheck | QuickChecks | None = quick_check(self.parameters, None)
        self._table = table_of(self.parameters)
        self._checked = None if self._table is None else self._entry(self._table)
        self._common: frozenset[type] = frozenset()  # types that the entry looks at
        if self._checked is not None:
            self._common = frozenset((np.ndarray, int, float, bool))
        self._knows_torch = False
        self._meet_torch()
        if not self._knows_torch:
            join_threads(artifact.library)

    def __call__(self, *arguments: Any) -> None:
        """Run the kernel; output tensors are written in place.

        Raises:
            ArgumentError: wrong number of arguments, a scalar of the wrong type, or a tensor of the
                wrong device, dtype, rank, shape, strides or alignment (TC402).
            AliasError: a written tensor shares memory with another one (TC403).
            AssertionFailed: a condition that the program asserts does not hold (TC404).
            EmulationError: emulated code does what no processor runs (TC307).
        """
        if not self._knows_torch:
            self._meet_torch()
        elif (np.ndarray in map(type, arguments)) is not threads.apart[0]:
            threads.follow(of_numpy=not threads.apart[0])
        common = self._common
        if common and common.issuperset(map(type, arguments)) and self._ran(arguments):
            return
        quick = self._quick
        if quick is None or not _accepts(quick, arguments):
            accepted = tuple(check(self.parameters, arguments))
            if isinstance(quick, QuickChecks):
                quick.learn(arguments)
            arguments = accepted
        self.unchecked(*arguments)

    def _meet_torch(self) -> None:
        """Make the quick check anew once torch is there, and share its threads."""
        torch = sys.modules.get("torch")
        if torch is not None:
            self._quick, self._knows_torch = quick_check(self.parameters, torch), True
            join_threads(self.artifact.library)
            if self._common:
                self._common |= {torch.Tensor, torch.nn.Parameter}

    def _entry(self, table: Any) -> Callable[..., Any] | None:
        """Return the entry that looks at arguments itself; None: an older library has none."""
        try:
            entry = self._module[ENTRY]
        except AttributeError:
            return None
        return functools.partial(entry, ctypes.addressof(table))

    def _ran(self, arguments: Sequence[Any]) -> bool:
        """Run the kernel if its entry accepts the arguments; return whether it has run."""
        assert self._checked is not None
        try:
            return self._checked(*arguments) is None
        except RuntimeError as error:
            failed = parse_failure(str(error), self.artifact.manifest.name)
            if failed is None:  # of what made a DLTensor of a tensor
                return False
            raise failed from None
        except (TypeError, ValueError, OverflowError, BufferError):
            return False

    def unchecked(self, *tensors: Any) -> None:
        """Run the kernel with tensors that ``check`` has accepted before (for timing loops).

        Raises:
            AssertionFailed: a condition that the program asserts does not hold (TC404).
            EmulationError: emulated code does what no processor runs (TC307).
        """
        try:
            self._function(*tensors)
        except RuntimeError as error:
            failed = parse_failure(str(error), self.artifact.manifest.name)
            if failed is None:
                raise
            raise failed from None


def _accepts(quick: QuickCheck | QuickChecks, arguments: Sequence[Any]) -> bool:
    try:
        return quick.accepts(arguments)
    except RuntimeError:  # of tensors that have no memory or strides
        return False


def check(
    parameters: Sequence[ParameterSpec], arguments: Sequence[Any], device: str = "cpu"
) -> list[Any]:
    """Return the arguments as the kernel takes them, or raise (see LoadedKernel.__call__).

    ``device``: the type of the device that tensors must be on.
    """
    if len(arguments) != len(parameters):
        names = ", ".join(p.name for p in parameters)
        is_plain = all(p.kind == "tensor" for p in parameters)
        raise ArgumentError(
            position=min(len(arguments), len(parameters)),
            name=names,
            expected=f"{len(parameters)} {'tensors' if is_plain else 'arguments'}",
            found=len(arguments),
        )
    scalars = {
        position: _scalar(position, spec, arguments[position])
        for position, spec in enumerate(parameters)
        if spec.kind != "tensor"
    }
    given = [scalars.get(position, argument) for position, argument in enumerate(arguments)]
    is_static = all(p.is_static for p in parameters)
    values: Mapping[str, int] = {} if is_static else dims.bind(parameters, given)
    values = dims.with_absent(parameters, given, values)
    tensors = [(i, p) for i, p in enumerate(parameters) if p.kind == "tensor"]
    if device != "cpu":  # there, one that is not used is passed as no address
        tensors = [(i, p) for i, p in tensors if p.is_used or arguments[i] is not None]
    views = [_checked(i, s, _present(s, arguments[i], values), values, device) for i, s in tensors]
    _check_aliases([spec for _, spec in tensors], views)
    for (position, _), found in zip(tensors, views, strict=True):
        given[position] = found.handle
    return given


def _scalar(position: int, spec: ParameterSpec, argument: Any) -> Any:
    """Return a scalar argument as an int, float or bool; a pointer as an address."""

    def fail(expected: str, found: object) -> ArgumentError:
        return ArgumentError(position=position, name=spec.name, expected=expected, found=found)

    found = view(argument) if getattr(argument, "ndim", 0) else None
    if spec.kind == "pointer":
        if found is not None:
            return found.address
        if not isinstance(argument, int):
            raise fail("a tensor or an address", type(argument).__name__)
        return argument
    try:
        if spec.dtype == "bool":
            return bool(argument)
        if "float" in spec.dtype:
            return float(argument)
        number = operator.index(argument)
    except (TypeError, ValueError) as error:
        raise fail(f"a number ({spec.dtype})", repr(argument)) from error
    low, high = DType(spec.dtype).ends
    if not low <= number <= high:
        raise fail(f"a value of type {spec.dtype}", number)
    return number


def _checked(
    position: int, spec: ParameterSpec, tensor: Any, values: Mapping[str, int], device: str
) -> TensorView:
    def fail(expected: str, actual: str, hint: str = "") -> ArgumentError:
        return ArgumentError(
            position=position, name=spec.name, expected=expected, found=actual, hint=hint
        )

    found = view(tensor, spec.dtype)
    if found is None:
        raise fail("a torch.Tensor or numpy.ndarray", type(tensor).__name__)
    if found.device != device:
        hint = f"move it with .{device}()"
        raise fail(f"a tensor on the {device}", f"one on {found.device}", hint)
    if found.dtype != spec.dtype:
        hint = "" if found.is_dense else "call .to_dense()"
        raise fail(f"dtype {DType(spec.dtype).storage}", found.dtype, hint)
    shape = spec.shape
    if len(found.shape) != len(shape):
        raise fail(f"rank {len(shape)} (shape {dims.show(shape)})", f"rank {len(found.shape)}")
    if not spec.is_static:
        shape = tuple(dims.evaluate(e, values) for e in shape)
    if found.shape != shape:
        written = "" if shape == spec.shape else f" = {dims.show(spec.shape)}"
        raise fail(f"shape {shape}{written}", f"shape {found.shape}")
    if spec.strides is not None:
        _check_strides(spec, found, values, fail)
    elif not found.is_contiguous:
        raise fail("contiguous row-major strides", f"strides {found.strides}", "call .contiguous()")
    if found.address % found.itemsize:
        raise fail(f"memory aligned to {found.itemsize} bytes", f"address {found.address:#x}")
    if spec.is_written and found.is_readonly:
        raise fail("a writable tensor", "a read-only one")
    return found


def _present(spec: ParameterSpec, tensor: Any, values: Mapping[str, int]) -> Any:
    """Return the tensor; of the right shape, where one that the kernel does not touch is absent."""
    if tensor is not None or spec.is_used:
        return tensor
    kind = DType(spec.dtype)
    shape = [dims.evaluate(e, values) for e in spec.shape]
    if kind.is_packed:
        return np.empty([*shape[:-1], shape[-1] // 2], np.uint8)
    steps = None if spec.strides is None else [dims.evaluate(e, values) for e in spec.strides]
    found = np.empty(shape, kind.numpy)
    if steps is None:
        return found
    return np.lib.stride_tricks.as_strided(found, shape, [s * found.itemsize for s in steps])


def _check_strides(
    spec: ParameterSpec, found: TensorView, values: Mapping[str, int], fail: Any
) -> None:
    """Check strides, but for axes of extent 1 and tensors without elements: they mean nothing."""
    if 0 in found.shape:
        return
    expected = tuple(dims.evaluate(e, values) for e in spec.strides or ())
    axes = zip(expected, found.strides, found.shape, strict=True)
    if any(want != have for want, have, extent in axes if extent > 1):
        named = dims.show(spec.strides or ())
        equal = "" if named == str(expected) else f" = {named}"
        raise fail(f"strides {expected}{equal}", f"{found.strides}")


def _check_aliases(parameters: Sequence[ParameterSpec], views: Sequence[TensorView]) -> None:
    for i, (spec, one) in enumerate(zip(parameters, views, strict=True)):
        if not spec.is_written:
            continue
        for j, (other_spec, other) in enumerate(zip(parameters, views, strict=True)):
            overlap = one.address < other.end and other.address < one.end
            if i != j and overlap and one.size_bytes and other.size_bytes:
                raise AliasError(first=spec.name, second=other_spec.name, written=spec.name)


def _check_isa(artifact: Artifact) -> None:
    needed = artifact.manifest.isa
    have: Target | None = None
    target: Target | None = None
    with contextlib.suppress(UnknownTarget):
        have = widest_target(host_features())
        target = parse_cpu_target(needed)
    if have is None or target is None or not have.runs(target):
        raise ArtifactError(
            path=artifact.path,
            reason=f"compiled for {needed}, this machine has {have.name if have else 'none'}",
            hint='compile it here, or for target avx2; "emulated " before the name of its target '
            "makes code that every machine runs, slowly",
        )
    if not target.is_emulated and "amx_tile" in target.features and not amx.request():
        raise ArtifactError(
            path=artifact.path,
            reason="the kernel of this machine refused the process the tiles of AMX",
            hint="compile it for target avx512",
        )
