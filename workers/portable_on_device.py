"""Programs that came as data on a GPU: the same inputs and judge, tensors of the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recommender.programs import work_flop
from recommender.workload import ProgramSource, Workload
from tilecore.graph import build
from tilecore.ir.expr import int_value
from tilecore.ir.nodes import Buffer
from tilecore.portable import at_sizes
from workers.correctness import Array
from workers.device_problem import Load, to_torch
from workers.portable_problem import PortableProblem, candidate
from workers.problem import Binder, Call
from workers.toolbox import bind


@dataclass(slots=True)
class DeviceCall:
    """A kernel bound to tensors of a device, which stand for arrays of the host."""

    kernel: Callable[..., None]
    bound: Sequence[Any]
    tensors: Sequence[Any]  # of each argument; numbers are there as they are
    arrays: Sequence[Any]
    synchronize: Callable[[], None]

    def __call__(self) -> None:
        """Run the kernel; the arrays learn nothing of it."""
        self.kernel(*self.bound)

    def run(self) -> None:
        """Run the kernel on what the arrays hold, and let them have what it wrote."""
        for tensor, array in self._pairs():
            tensor.copy_(to_torch(array, str(tensor.device)))
        self()
        self.synchronize()
        for tensor, array in self._pairs():
            array[...] = _as_array(tensor, array)

    def _pairs(self) -> list[tuple[Any, Array]]:
        both = zip(self.tensors, self.arrays, strict=True)
        return [(t, a) for t, a in both if hasattr(a, "dtype")]


def bind_on_device(
    load: Load, device: str, synchronize: Callable[[], None], path: Path, arrays: Sequence[Any]
) -> DeviceCall:
    """Load an artifact and bind copies of its arguments; raises ArtifactError, ArgumentError."""
    from tilecore.runtime.kernel import check

    kernel = load(path)
    tensors = [_on_device(x, device) if hasattr(x, "dtype") else x for x in arrays]
    bound = check(kernel.parameters, tensors, kernel.device_type)
    return DeviceCall(kernel.unchecked, bound, tensors, arrays, synchronize)


class PortableDeviceProblem(PortableProblem):
    """PortableProblem on a GPU, or on the emulator in its place."""

    __slots__ = ()

    @classmethod
    def binder_on_host(cls, binder: Binder) -> Binder:
        """Return what binds kernels of this host's CPU."""
        return bind

    def run(self, call: Call) -> None:
        """Run a kernel on the arguments."""
        assert isinstance(call, DeviceCall)
        call.run()


def work_and_traffic(workload: Workload, source: ProgramSource) -> tuple[float, float]:
    """Return FLOP and compulsory bytes of a program, by its reference config."""
    whole, _ = candidate(workload, source, source.reference)
    func = at_sizes(whole, dict(workload.problem))
    sizes = [
        math.prod(int_value(e) or 1 for e in p.shape) * p.dtype.itemsize
        for p in func.params
        if isinstance(p, Buffer)
    ]
    return work_flop(build(func)), float(sum(sizes))


def _on_device(array: Array, device: str) -> Any:
    """Return a tensor with the values and the strides of an array."""
    import torch

    values = to_torch(array, device)
    if array.flags.c_contiguous:
        return values
    steps = [s // array.itemsize for s in array.strides]
    tensor = torch.empty_strided(array.shape, steps, dtype=values.dtype, device=device)
    tensor.copy_(values)
    return tensor


def _as_array(tensor: Any, like: Array) -> Array:
    """Return a tensor's values as an array of a type that torch need not have in NumPy."""
    import numpy as np
    import torch

    raw = tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
    found: Array = np.frombuffer(raw.tobytes(), like.dtype).reshape(like.shape)
    return found
