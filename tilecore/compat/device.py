"""Programs that say ``device="cuda"`` run on this CPU while :func:`cuda_on_cpu` is active.

torch functions get "cpu" where they were given "cuda"; what programs ask ``torch.cuda`` about is
answered for one device with the compute capability that was asked for. Tensors stay CPU tensors,
but programs that ask are told that they are on "cuda:0".
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.library import CustomOpDef
from torch.overrides import TorchFunctionMode

from tilecore.gpu_target import gpu_targets

CAPABILITY = (9, 0)  # programs for Hopper take their Hopper branches, as on the machine they know
DEVICE_NAME = "tilecore on CPU"
DO_NOTHING = (
    "synchronize", "set_device", "init", "empty_cache", "manual_seed", "manual_seed_all",
    "reset_peak_memory_stats",
)  # fmt: skip


DEVICE = torch.device("cuda", 0)


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return bool(value.type == "cuda")
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


def on_cpu(value: Any) -> Any:
    """Return ``value`` with the device "cuda" replaced by "cpu"."""
    return torch.device("cpu") if _is_cuda(value) else value


# A GPU's fresh memory usually reads as 0, and programs multiply by what they never set.
UNINITIALISED = (torch.empty, torch.empty_like, torch.Tensor.new_empty)
RUN_BACKWARD = "_engine_run_backward"  # what Tensor.backward and autograd.grad both call
DIVISIONS = (torch.div, torch.true_divide, torch.Tensor.div, torch.Tensor.__truediv__)


def _is_reciprocal(a: Any, b: Any) -> bool:
    """Return whether torch's CUDA kernels multiply ``a`` by the reciprocal of ``b``."""
    is_number = isinstance(b, (int, float)) and not isinstance(b, bool) and b != 0
    return is_number and isinstance(a, torch.Tensor) and bool(a.is_floating_point())


def _reciprocal(a: Any, b: float) -> float:
    return 1.0 / b if a.dtype == torch.float64 else float(np.float32(1.0) / np.float32(b))


class CudaOnCpu(TorchFunctionMode):  # type: ignore[misc]  # torch has no types here
    """Replaces the device "cuda" in the arguments of torch functions."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run ``func`` with CPU devices."""
        _ = types
        if func is torch.device:
            return DEVICE if args and type(args[0]) is int else func(*args, **(kwargs or {}))
        if func is torch.Tensor.cuda:
            return args[0]
        if func == torch.Tensor.is_cuda.__get__:
            return True
        if func == torch.Tensor.device.__get__ and args[0].is_cpu:
            return DEVICE
        if func is torch.Tensor.get_device:
            return 0
        if func in DIVISIONS and len(args) == 2 and _is_reciprocal(*args):
            return args[0] * _reciprocal(args[0], args[1])
        named = {k: on_cpu(v) for k, v in (kwargs or {}).items()}
        if type(named.get("device")) is int:  # the number of a GPU
            named["device"] = "cpu"
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], "cpu", *args[2:])
        if named.get("pin_memory"):
            named.pop("pin_memory")
        made = func(*[on_cpu(a) for a in args], **named)
        if func in UNINITIALISED and made.device.type == "cpu":
            made.untyped_storage().fill_(0)  # the bytes: not every type has a fill
        return made


def _in_mode(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` with "cuda" meaning the CPU, for torch calls it while the mode is off."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with CudaOnCpu():
            return function(*args, **kwargs)

    return run


def _register_kernel(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return CustomOpDef.register_kernel for implementations that run in the mode."""

    def register(self: Any, device_types: Any, fn: Any = None, /) -> Any:
        if fn is None:
            return lambda f: register(self, device_types, f)
        wanted = [device_types] if isinstance(device_types, str) else device_types
        own = None if wanted is None else [str(on_cpu(d)) for d in wanted]
        real(self, own)(_in_mode(fn))
        return fn

    return register


class Generator(torch.Generator):  # type: ignore[misc]  # torch has no types here
    """torch.Generator, of the CPU for programs that want one of "cuda"."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        """Return a generator of random numbers."""
        made: Generator = super().__new__(cls, on_cpu(device))
        return made


class Event:
    """torch.cuda.Event by the clock of the CPU: work here is done when the call returns."""

    def __init__(self, **_: Any) -> None:
        self.at_s = 0.0

    def record(self, stream: Any = None) -> None:
        """Note the time."""
        _ = stream
        self.at_s = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Return the time between two events in ms."""
        return (end.at_s - self.at_s) * 1e3

    def synchronize(self) -> None:
        """Nothing is under way."""

    wait = query = synchronize


class Stream:
    """torch.cuda.Stream: everything runs in order anyway."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None: ...

    def synchronize(self) -> None:
        """Nothing is under way."""

    wait_stream = wait_event = record_event = lambda self, other=None: other


def _properties(capability: tuple[int, int], total_memory: int) -> SimpleNamespace:
    """Return what torch.cuda.get_device_properties tells about a GPU of this capability.

    Programs launch multiples of its multiprocessors, or leave some of them to others, and choose
    tiles by its memory. Clocks and memory bus are those of an H100 SXM5 (NVIDIA H100 Tensor Core
    GPU Architecture whitepaper, table 2) on every one.
    """
    major, minor = capability
    known = gpu_targets()
    gpu = known.get(f"sm_{major}{minor}") or known.get(f"sm_{major}{minor}a") or known["sm_90a"]
    return SimpleNamespace(
        name=DEVICE_NAME, major=major, minor=minor, multi_processor_count=gpu.multiprocessors,
        total_memory=total_memory, warp_size=gpu.threads_per_warp,
        shared_memory_per_block=gpu.shared_static_limit,
        shared_memory_per_block_optin=gpu.shared_per_block,
        shared_memory_per_multiprocessor=gpu.shared_per_multiprocessor,
        max_threads_per_block=gpu.threads_per_block,
        max_threads_per_multi_processor=gpu.threads_per_multiprocessor,
        regs_per_multiprocessor=gpu.registers_per_multiprocessor,
        L2_cache_size=50 << 20, clock_rate=1_980_000, memory_clock_rate=2_619_000,
        memory_bus_width=5120, is_integrated=0, is_multi_gpu_board=0, pci_bus_id=0,
        pci_device_id=0, pci_domain_id=0, uuid="", gcnArchName="",
    )  # fmt: skip


def _replacements(capability: tuple[int, int]) -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    properties = _properties(capability, memory)
    stream = Stream()

    def always(value: Any) -> Callable[..., Any]:
        return lambda *_, **__: value

    return {
        "is_available": always(True), "device_count": always(1), "current_device": always(0),
        "get_device_capability": always(capability), "get_device_name": always(DEVICE_NAME),
        "get_device_properties": always(properties), "current_stream": always(stream),
        "default_stream": always(stream), "stream": always(stream), "Stream": Stream,
        "Event": Event,
        "device": always(contextlib.nullcontext()), "mem_get_info": always((memory, memory)),
        "memory_allocated": always(0), "max_memory_allocated": always(0),
        "is_bf16_supported": always(True), "is_current_stream_capturing": always(False),
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
        # One function each: torch's compiler refuses one that has two names.
        **{name: always(None) for name in DO_NOTHING},
    }  # fmt: skip


@contextlib.contextmanager
def cuda_on_cpu(capability: tuple[int, int] = CAPABILITY) -> Iterator[None]:
    """Let code written for a CUDA device run on the CPU inside the block.

    Args:
        capability: the compute capability that ``torch.cuda`` tells programs.
    """
    fork_rng, set_default_device = torch.random.fork_rng, torch.set_default_device
    new: list[tuple[Any, str, Any]] = [
        *((torch.cuda, name, value) for name, value in _replacements(capability).items()),
        (torch.Tensor, "record_stream", lambda self, stream: None),
        (torch.nn.Module, "cuda", lambda self, device=None: self),
        (CustomOpDef, "register_kernel", _register_kernel(CustomOpDef.register_kernel)),
        (torch.autograd, RUN_BACKWARD, _in_mode(getattr(torch.autograd, RUN_BACKWARD))),
        (torch, "Generator", Generator),
        (torch, "set_default_device", lambda device: set_default_device(on_cpu(device))),
        (torch.random, "fork_rng", lambda *_, **__: fork_rng(devices=())),
    ]
    old = [(owner, name, getattr(owner, name)) for owner, name, _ in new]
    _assign(new)
    try:
        with CudaOnCpu():
            yield
    finally:
        _assign(old)


def _assign(attributes: list[tuple[Any, str, Any]]) -> None:
    for owner, name, value in attributes:
        setattr(owner, name, value)
