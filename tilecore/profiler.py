"""Timing and checking a kernel from Python: Profiler, do_bench, TensorSupplyType.

For quick looks by a user in one process. Measurements that are stored go through the workers,
which isolate, interleave and repeat (see workers.timing).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from tilecore.errors import TypeMismatch
from tilecore.ir.expr import Var
from tilecore.ir.nodes import Buffer
from tilecore.ir.values.evaluate import evaluate
from tilecore.ir.values.packed import packed
from tilecore.ir.visitor import walk_expr
from tilecore.target import emulates_gpus

if TYPE_CHECKING:
    from tilecore.kernel import JITKernel

Reference = Callable[..., Any]
COLD_BYTES = 256 << 20  # more than the L2 of any GPU
_MODES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean, "median": statistics.median, "min": min, "max": max,
}  # fmt: skip


class TensorSupplyType(Enum):
    """What supplied inputs contain, in the distributions of TileLang.

    ``Normal`` has the mean -1, ``Randn`` the mean 0; ``Auto`` is ``Uniform`` (between -1 and 1) for
    floats of 16 bits or more, ``Randn`` for narrower ones, else ``Integer``.
    """

    Integer = 1
    Uniform = 2
    Normal = 3
    Randn = 4
    Zero = 5
    One = 6
    Auto = 7


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25.0,
    rep: float = 100.0,
    n_warmup: int = 0,
    n_repeat: int = 0,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
    **options: Any,
) -> Any:
    """Return the time of one call of ``fn`` in ms.

    By the clock; where this process uses a CUDA device, between events on its stream, and what the
    caches hold is written over before each call.

    Args:
        fn: what to time.
        warmup: time to run before measuring, ms.
        rep: time to measure for, ms.
        n_warmup: calls before measuring; 0: as many as fit ``warmup``.
        n_repeat: calls measured; 0: as many as fit ``rep``.
        quantiles: if given, these quantiles are returned as a list.
        return_mode: "mean", "median", "min" or "max".
        options: keywords of TileLang for GPUs (``backend``, ``fast_flush``), without effect.

    On the emulator one call is timed, whatever is asked for.

    Raises:
        TypeMismatch: an unknown return mode (TC202).
    """
    _ = options
    if return_mode not in _MODES:
        raise TypeMismatch(expected=f"return_mode {', '.join(_MODES)}", found=repr(return_mode))
    if emulates_gpus():  # times mean nothing there
        return [_once_ms(fn)] * len(quantiles) if quantiles else _once_ms(fn)
    once = _device_clock() or _once_ms
    fn()
    first_ms = max(once(fn), 1e-4)
    for _call in range(n_warmup or max(1, int(warmup / first_ms))):
        fn()
    times = [once(fn) for _ in range(n_repeat or max(1, int(rep / first_ms)))]
    if quantiles:
        return [float(np.quantile(times, q)) for q in quantiles]
    return _MODES[return_mode](times)


def _device_clock() -> Callable[[Callable[[], Any]], float] | None:
    """Return what times a call on the CUDA device that this process uses, None if it uses none."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    cold = torch.empty(COLD_BYTES, dtype=torch.uint8, device="cuda")

    def once_ms(fn: Callable[[], Any]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        cold.zero_()
        begin.record()
        fn()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    return once_ms


def _once_ms(fn: Callable[[], Any]) -> float:
    start = time.perf_counter_ns()
    fn()
    return (time.perf_counter_ns() - start) / 1e6


def supply(
    buffer: Buffer,
    kind: TensorSupplyType,
    rng: np.random.Generator,
    sizes: Mapping[str, int] | None = None,
) -> Any:
    """Return a tensor for a parameter: of torch where torch is installed, else of NumPy.

    ``sizes`` gives dimensions their values by name.
    """
    symbols = {n for e in buffer.shape for n in walk_expr(e) if isinstance(n, Var)}
    known = {symbol: _size(symbol, sizes or {}) for symbol in symbols}
    shape = tuple(int(evaluate(e, known)) for e in buffer.shape)
    if kind is TensorSupplyType.Auto:
        kind = _automatic(buffer)
    if kind in (TensorSupplyType.Zero, TensorSupplyType.One):
        values = np.full(shape, float(kind is TensorSupplyType.One), np.float32)
    elif kind is TensorSupplyType.Integer:
        low = -2 if buffer.dtype.is_signed else 0
        values = rng.integers(low, 3, shape).astype(np.float32)
    elif kind is TensorSupplyType.Uniform:
        values = rng.uniform(-1.0, 1.0, shape).astype(np.float32)
    else:
        values = rng.standard_normal(shape, dtype=np.float32)
        values -= np.float32(kind is TensorSupplyType.Normal)
    return _as_tensor(values, buffer)


def _automatic(buffer: Buffer) -> TensorSupplyType:
    if not buffer.dtype.is_float:
        return TensorSupplyType.Integer
    return TensorSupplyType.Uniform if buffer.dtype.bits >= 16 else TensorSupplyType.Randn


def supply_all(
    params: Sequence[Buffer | Var],
    kind: TensorSupplyType,
    rng: np.random.Generator,
    sizes: Mapping[str, int] | None = None,
) -> list[Any]:
    """Return a value for each parameter; ``sizes`` gives scalars and dimensions theirs by name."""
    given = dict(sizes or {})
    return [
        supply(p, kind, rng, given) if isinstance(p, Buffer) else _size(p, given) for p in params
    ]


def on_device(values: Sequence[Any], device_type: str) -> list[Any]:
    """Return values with the tensors on a device as torch names it."""
    if device_type == "cpu":
        return list(values)
    return [v.to(device_type) if hasattr(v, "to") else v for v in values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """When two tensors count as equal: ``|found - expected| <= atol + rtol * |expected|``.

    ``max_mismatched_ratio`` is the share of elements that may miss that.
    """

    atol: float = 1e-2
    rtol: float = 1e-2
    max_mismatched_ratio: float = 0.01

    def difference(self, found: Sequence[Any], expected: Sequence[Any]) -> str:
        """Return what is wrong with the outputs of a kernel, '' if nothing."""
        if len(found) != len(expected):
            return f"expected {len(expected)} outputs, found {len(found)}"
        for index, (a, b) in enumerate(zip(found, expected, strict=True)):
            x, y = _as_float(a), _as_float(b)
            if x.shape != y.shape:
                return f"output {index}: expected shape {y.shape}, found {x.shape}"
            wrong = np.logical_not(np.isclose(x, y, atol=self.atol, rtol=self.rtol, equal_nan=True))
            if wrong.size and wrong.mean() > self.max_mismatched_ratio:
                largest = np.nanmax(abs(x - y))
                return (
                    f"output {index}: {wrong.sum()} of {wrong.size} elements differ by more than "
                    f"atol={self.atol}, rtol={self.rtol}; the largest difference is {largest:.3g}"
                )
        return ""


class Profiler:
    """Runs a kernel on inputs that it supplies: torch tensors where torch is installed."""

    def __init__(
        self,
        kernel: JITKernel,
        tensor_supply_type: TensorSupplyType = TensorSupplyType.Auto,
        seed: int = 0,
    ) -> None:
        self.kernel = kernel
        self.supply = tensor_supply_type
        self.rng = np.random.default_rng(seed)

    def inputs(self, sizes: Mapping[str, int] | None = None) -> list[Any]:
        """Return new inputs; ``sizes`` gives scalars and dimensions their values by name."""
        made = supply_all(self.kernel.inputs, self.supply, self.rng, sizes)
        return on_device(made, self.kernel.loaded.device_type)

    def _get_inputs(
        self,
        with_output: bool = False,
        dynamic_symbolic_constraints: Mapping[str, int] | None = None,
    ) -> list[Any]:
        """Return new inputs (TileLang's name, which programs use), or all arguments."""
        found = self.inputs(dynamic_symbolic_constraints)
        return self.kernel.with_outputs(found) if with_output else found

    @property
    def func(self) -> JITKernel:
        """The kernel."""
        return self.kernel

    def run_once(self, func: Reference | None = None) -> Any:
        """Run the kernel (or ``func``) on supplied inputs and return its outputs."""
        return (func or self.kernel)(*self.inputs())

    def do_bench(
        self,
        func: Reference | None = None,
        warmup: float = 25.0,
        rep: float = 100.0,
        input_tensors: Sequence[Any] | None = None,
        **options: Any,
    ) -> Any:
        """Return the wall time of one call in ms, outputs allocated beforehand (see do_bench)."""
        sizes = options.pop("dynamic_symbolic_constraints", None)
        inputs = self.inputs(sizes) if input_tensors is None else list(input_tensors)
        if func is not None:
            return do_bench(lambda: func(*inputs), warmup, rep, **options)
        kernel = self.kernel
        if len(inputs) < len(kernel.params):
            inputs = kernel.with_outputs(inputs)
        found = do_bench(lambda: kernel(*inputs), warmup, rep, **options)
        if isinstance(found, float):
            kernel.latency = found
        return found

    def assert_allclose(
        self,
        reference_program: Reference,
        input_tensors: Sequence[Any] | None = None,
        atol: float = 1e-2,
        rtol: float = 1e-2,
        max_mismatched_ratio: float = 0.01,
    ) -> None:
        """Compare the kernel with a reference on supplied inputs.

        Raises:
            AssertionError: more than ``max_mismatched_ratio`` of the elements differ.
        """
        inputs = self.inputs() if input_tensors is None else list(input_tensors)
        found, expected = self.kernel(*inputs), reference_program(*inputs)
        tolerance = Tolerance(atol=atol, rtol=rtol, max_mismatched_ratio=max_mismatched_ratio)
        difference = tolerance.difference(listed(found), listed(expected))
        if difference:
            raise AssertionError(difference)

    def assert_consistent(self, repeat: int = 10) -> None:
        """Check that repeated runs on the same inputs give bit-equal outputs.

        Raises:
            AssertionError: two runs differ.
        """
        inputs = self.inputs()
        first = [_as_float(o).copy() for o in listed(self.kernel(*inputs))]
        for _ in range(repeat):
            again = [_as_float(o) for o in listed(self.kernel(*inputs))]
            if not all(
                np.array_equal(a, b, equal_nan=True) for a, b in zip(first, again, strict=True)
            ):
                raise AssertionError("two runs on the same inputs differ")


def _size(symbol: Var, sizes: Mapping[str, int]) -> int:
    if symbol.name not in sizes:
        raise TypeMismatch(
            expected=f"a value of `{symbol.name}`: "
            f"do_bench(dynamic_symbolic_constraints={{'{symbol.name}': 1024}}) or input_tensors=",
            found="a program with dynamic shapes",
        )
    return sizes[symbol.name]


def listed(value: Any) -> list[Any]:
    """Return what a call returned as a list of outputs."""
    return list(value) if isinstance(value, (list, tuple)) else [] if value is None else [value]


def _as_float(value: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    if isinstance(value, np.ndarray):
        return value.astype(np.float64)
    result: np.ndarray[Any, np.dtype[np.float64]] = value.double().cpu().numpy()
    return result


def _as_tensor(values: np.ndarray[Any, Any], buffer: Buffer) -> Any:
    try:
        import torch
    except ImportError:
        is_packed = buffer.dtype.is_packed
        return packed(values, buffer.dtype) if is_packed else values.astype(buffer.dtype.numpy)
    if buffer.dtype.is_packed:
        return torch.from_numpy(packed(values, buffer.dtype)).view(buffer.dtype.as_torch())
    return torch.from_numpy(values).to(buffer.dtype.as_torch())
