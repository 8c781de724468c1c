"""What a candidate for a GPU is run on and compared with, on the device, with torch.

Tensor cores read 11 significant bits of float32 operands (tf32). Inputs of float32 have no more, so
that products of inputs are exact; where a kernel multiplies results of its own, what tf32 cuts off
them is allowed for.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recommender.workload import Workload
from tilecore.ir.dtype import DType
from tilecore.kernels.definition import KernelDefinition, Problem
from workers.correctness import (
    GUARD_BYTES,
    GUARD_VALUE,
    ROUND_SLACK,
    CheckReport,
    judged,
    tolerance,
    unit_roundoff,
)
from workers.problem import Call

Load = Callable[[Path], Any]
TF32_CUT = 2.0**-10  # of an operand, relative, where a tensor core cuts instead of rounding
# Sums of float32: what does not fit is cut off each time that terms are added, always towards 0
# (Fasi et al. 2021, "Numerical behavior of NVIDIA tensor cores"; seen on an H200: 1e-5 of sums of
# 2048 terms).
SUM_CUT, TERMS_AT_ONCE = 2.0**-23, 8
# Sums of float8 keep 13 bits behind the point of the largest term (DeepSeek-V3 technical report,
# 2024, section 3.3.2; seen on an H200: up to 0.014 of sums of 4096 terms of variance 1).
FLOAT8_CUT, FLOAT8_AT_ONCE = 2.0**-13, 32
TF32_MASK = -(1 << 13)  # of the bits of a float32 that tf32 has
CHUNK = 1 << 24  # elements compared at a time: some 400 MB of float64 at work


@dataclass(frozen=True, slots=True)
class GuardedTensor:
    """An output between two guard zones that a correct kernel leaves alone."""

    tensor: Any
    memory: Any  # the bytes: guard, tensor, guard

    @classmethod
    def allocate(cls, shape: Sequence[int], dtype: str, device: str) -> GuardedTensor:
        """Return a guarded tensor; call ``poison`` before use."""
        torch = importlib.import_module("torch")
        kind = DType(dtype).as_torch()
        size = math.prod(shape) * kind.itemsize
        memory = torch.empty(size + 2 * GUARD_BYTES, dtype=torch.uint8, device=device)
        tensor = memory[GUARD_BYTES : GUARD_BYTES + size].view(kind).reshape(tuple(shape))
        return cls(tensor, memory)

    def poison(self) -> None:
        """Fill with NaN (integers: the most negative value), and renew the guard zones."""
        torch = importlib.import_module("torch")
        kind = self.tensor.dtype
        self.memory[:GUARD_BYTES] = GUARD_VALUE
        self.memory[-GUARD_BYTES:] = GUARD_VALUE
        self.tensor.fill_(math.nan if kind.is_floating_point else torch.iinfo(kind).min)

    @property
    def is_intact(self) -> bool:
        """Whether the guard zones are untouched."""
        zones = (self.memory[:GUARD_BYTES], self.memory[-GUARD_BYTES:])
        return all(bool((zone == GUARD_VALUE).all()) for zone in zones)


@dataclass(slots=True)
class DeviceProblem:
    """A library kernel's workload: fresh random inputs and their reference, on a device."""

    definition: KernelDefinition
    problem: Problem
    load: Load
    synchronize: Callable[[], None]
    seed: int
    inputs: Sequence[Any]
    pristine: Sequence[Any]
    expected: Sequence[Any]
    outputs: Sequence[GuardedTensor]
    rtol: float
    atol: float
    has_rival: bool = True

    @classmethod
    def fresh(
        cls, workload: Workload, definition: KernelDefinition, *, device: str, load: Load,
        synchronize: Callable[[], None], has_rival: bool = True,
    ) -> DeviceProblem:  # fmt: skip
        """Return new random inputs with their reference.

        Args:
            workload: kernel and problem.
            definition: of the kernel.
            device: where torch puts tensors: "cuda" or "cpu" (of the emulator).
            load: returns the kernel of an artifact.
            synchronize: waits for the device; raises what went wrong on it.
            has_rival: whether torch runs on the device, too, to compare times.
        """
        seed = int(np.random.SeedSequence().generate_state(1)[0])
        problem = dict(workload.problem)
        inputs, expected = _inputs_and_reference(definition, problem, seed, device)
        out_dtype = str(problem.get("out_dtype", problem.get("dtype", "float32")))
        rtol, atol = _tolerance(definition, problem, out_dtype, expected)
        outputs = [GuardedTensor.allocate(e.shape, out_dtype, device) for e in expected]
        pristine = [x.clone() for x in inputs]
        return cls(
            definition, problem, load, synchronize, seed, inputs, pristine, expected, outputs,
            rtol, atol, has_rival,
        )  # fmt: skip

    def bind(self, path: Path) -> Call:
        """Return a call of an artifact's kernel: inputs, then outputs."""
        from tilecore.runtime.kernel import check

        kernel = self.load(path)
        arguments = [*self.inputs, *(out.tensor for out in self.outputs)]
        return functools.partial(
            kernel.unchecked, *check(kernel.parameters, arguments, kernel.device_type)
        )

    def check(self, call: Call) -> CheckReport:
        """Run a kernel once on poisoned outputs and compare everything it may have touched."""
        for out in self.outputs:
            out.poison()
        call()
        self.synchronize()
        reports = (
            (compare(out.tensor, wanted, self.rtol, self.atol, f"output {i}"), out.is_intact)
            for i, (out, wanted) in enumerate(zip(self.outputs, self.expected, strict=True))
        )
        return judged(reports, self._restored(), self.seed)

    def _restored(self) -> Iterator[int]:
        """Yield the numbers of inputs that were written to, once they are what they were."""
        for i, (now, before) in enumerate(zip(self.inputs, self.pristine, strict=True)):
            if not _is_same(now, before):
                now.copy_(before)
                yield i

    def rival(self) -> Call | None:
        """Return torch's call on the same tensors; None where torch has no such operator."""
        counterpart = self.definition.on_device if self.has_rival else None
        return None if counterpart is None else counterpart.rival(self.problem, self.pristine)


def _tolerance(
    definition: KernelDefinition, problem: Problem, out_dtype: str, expected: Sequence[Any]
) -> tuple[float, float]:
    """Return (rtol, atol) of the workers' one table, with what tensor cores cut off on the way."""
    accum_dtype = str(problem.get("accum_dtype", out_dtype))
    length = definition.reduction_length(problem)
    rounded = None if definition.rounded_dtype is None else definition.rounded_dtype(problem)
    rtol, atol = tolerance(out_dtype, accum_dtype, length, rounded)
    rtol += length / TERMS_AT_ONCE * SUM_CUT
    if str(problem.get("dtype", "")).startswith("float8"):
        cut = length / FLOAT8_AT_ONCE * FLOAT8_CUT
        return rtol + cut, atol + 2 * cut
    if rounded in ("float16", "bfloat16"):  # of millions of elements the unluckiest: 1.22 was seen
        return rtol, atol + ROUND_SLACK * unit_roundoff(rounded)
    if rounded != "float32":
        return rtol, atol
    largest = max(float(e.double().square().mean().sqrt()) for e in expected)
    return rtol + ROUND_SLACK * TF32_CUT, atol + 2 * ROUND_SLACK * TF32_CUT * largest


def compare(found: Any, expected: Any, rtol: float, atol: float, name: str) -> CheckReport:
    """Compare an output with what is expected, a chunk at a time where both lie."""
    torch = importlib.import_module("torch")
    worst, worst_at, wrong, unwritten = 0.0, 0, 0, 0
    flat = expected.reshape(-1)
    for start, values in _chunks(found.reshape(-1)):
        wanted = flat[start : start + len(values)].double()
        error = (values - wanted).abs()
        relative = torch.where(error == 0, 0.0, error / (atol + rtol * wanted.abs()))
        relative = torch.nan_to_num(relative, nan=math.inf, posinf=math.inf)
        wrong += int((relative > 1).sum())
        unwritten += int(values.isnan().sum())
        most = float(relative.max())
        if most > worst:
            worst, worst_at = most, start + int(relative.argmax())
    if not wrong:
        return CheckReport(worst)
    wanted, value = float(flat[worst_at]), float(found.reshape(-1)[worst_at])
    place = ", ".join(str(int(i)) for i in np.unravel_index(worst_at, tuple(expected.shape)))
    detail = (
        f"{name}[{place}]: expected {wanted:.6g} within {atol + rtol * abs(wanted):.2g}, "
        f"found {value:.6g}; {wrong} of {expected.numel()} elements wrong"
    )
    if unwritten:
        detail += f", {unwritten} never written or NaN"
    return CheckReport(worst, detail)


def _chunks(flat: Any) -> Iterator[tuple[int, Any]]:
    for start in range(0, len(flat), CHUNK):
        yield start, flat[start : start + CHUNK].double()


def _is_same(a: Any, b: Any) -> bool:
    torch = importlib.import_module("torch")
    return bool(torch.equal(a.view(torch.uint8), b.view(torch.uint8)))


def _inputs_and_reference(
    definition: KernelDefinition, problem: Problem, seed: int, device: str
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return inputs and reference by torch on the device, or by NumPy and copied there."""
    torch = importlib.import_module("torch")
    if definition.on_device is not None:
        generator = torch.Generator(device=device).manual_seed(seed)
        inputs = list(definition.on_device.inputs(problem, generator))
        for x in inputs:
            if x.dtype == torch.float32:
                x.view(torch.int32).bitwise_and_(TF32_MASK)
        return inputs, list(definition.on_device.reference(problem, inputs))
    given = list(definition.inputs(problem, np.random.default_rng(seed)))
    for array in given:
        if array.dtype == np.float32:
            array.view(np.int32)[...] &= TF32_MASK
    expected = definition.reference(problem, given)
    wide = [torch.from_numpy(np.ascontiguousarray(e)).to(device) for e in expected]
    return [to_torch(x, device) for x in given], wide


def on_device(value: Any, device: str) -> Any:
    """Return an array or a tensor as one of a device, anything else as it is."""
    if isinstance(value, np.ndarray):
        return to_torch(value, device)
    return value.to(device) if hasattr(value, "to") else value


def to_torch(array: np.ndarray[Any, Any], device: str) -> Any:
    """Return an array as a tensor of a device (NumPy's extension types by their bytes)."""
    torch = importlib.import_module("torch")
    raw = torch.from_numpy(np.frombuffer(bytearray(array.tobytes()), np.uint8))
    return raw.view(DType(array.dtype.name).as_torch()).reshape(array.shape).to(device)
