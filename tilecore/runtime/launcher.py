"""The calls of a GPU kernel with arguments of one signature, written out as a function.

To read type, shape, strides and address of a tensor takes Python 0.3 us; a loop over arguments and
launches takes as much again. So the function that compares a call with what was accepted before,
exchanges addresses and launches has no loops. For ``C = A @ B`` with a tensor map of A it reads

    def call(a0, a1, a2):
        try:
            if (a0.dtype is not dtype0 or a0.shape != shape0 or a0.get_device() != 0
                    or not a0.is_contiguous() or ...):
                return False
            p0 = a0.data_ptr()
            ...
        except NOT_A_TENSOR:
            return False
        if (p0 | p1 | p2) & 15 or p2 < p0 + bytes0 and p0 < p2 + bytes2 or ...:
            return False
        elsewhere = on(0)
        if elsewhere is not None:
            with elsewhere:
                return call(a0, a1, a2)
        acquire()
        try:
            words[1] = p1
            words[2] = p2
            if encoded[0] != p0:
                encode_map(at0, p0, map0)
                encoded[0] = p0
            launch0(stream(0))
        finally:
            release()
        return True
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from tilecore.artifact import ParameterSpec
from tilecore.ir.dtype import DType
from tilecore.runtime.driver import Driver, MapShape
from tilecore.runtime.tensor import view

SCALARS = {
    "bool": ctypes.c_bool, "int8": ctypes.c_int8, "int16": ctypes.c_int16,
    "int32": ctypes.c_int32, "int64": ctypes.c_int64, "uint8": ctypes.c_uint8,
    "uint16": ctypes.c_uint16, "uint32": ctypes.c_uint32, "uint64": ctypes.c_uint64,
    "float32": ctypes.c_float, "float64": ctypes.c_double,
}  # fmt: skip
MOST_EXACT = 1 << 53  # integers up to it are float64
# What reading a tensor raises of things that are none, or that have no memory.
NOT_A_TENSOR = (AttributeError, TypeError, RuntimeError)

Call = Callable[..., bool]  # returns whether it has run the kernel: False is no such call


@dataclass(slots=True)
class TensorMap:
    """A tensor map of a call.

    Attributes:
        at: where it lies.
        tensor: the number of the tensor that it is of.
        shape: what it says.
    """

    at: int
    tensor: int
    shape: MapShape

    @property
    def is_of_nothing(self) -> bool:
        """Whether no element is there, which no map can say."""
        return 0 in self.shape.extents


@dataclass(slots=True)
class Bound:
    """A kernel's launches for arguments of one signature, and what a call changes in them.

    Tensors go by number: those of the call in order, then workspaces.

    Attributes:
        device: where it runs.
        words: the address of each tensor, which launches point to.
        numbers: by position, the memory of scalars that launches take as the call has them.
        maps: tensor maps.
        workspaces: make one each.
        launches: run on a stream each, in order.
        kept: what they are the addresses of.
    """

    device: int
    words: Any
    numbers: dict[int, list[Any]] = field(default_factory=dict)
    maps: list[TensorMap] = field(default_factory=list)
    workspaces: list[Callable[[], Any]] = field(default_factory=list)
    launches: list[Callable[[int], None]] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)


def call_of(
    bound: Bound,
    parameters: Sequence[ParameterSpec],
    arguments: Sequence[Any],
    driver: Driver,
    alignment: int,
) -> Call:
    """Return the function that runs a kernel for arguments like these, which ``check`` accepted."""
    written = _Written(bound, driver, alignment)
    for position, (spec, argument) in enumerate(zip(parameters, arguments, strict=True)):
        if spec.kind == "tensor":
            written.tensor(position, spec, argument)
        else:
            written.number(position, spec, argument)
    return written.made(len(parameters))


def _range(dtype: str) -> tuple[int, int]:
    """Return the least and the largest integer that a number of a type may be given as."""
    return DType(dtype).ends if "int" in dtype else (-MOST_EXACT, MOST_EXACT)


def _span(tensor: Any, spec: ParameterSpec) -> int:
    """Return the bytes from the first element of a tensor to behind its last one."""
    if tensor.is_contiguous():
        return int(tensor.nbytes)
    found = view(tensor, spec.dtype)
    assert found is not None
    return found.end - found.address


@functools.lru_cache(maxsize=256)
def _code(text: str) -> CodeType:
    """Return the code of a text; calls of other sizes have the same, their sizes by name."""
    return compile(text, "<tilecore call>", "exec")


class _Written:
    """The text of a call, and what its names mean: its globals, which keep what it uses."""

    def __init__(self, bound: Bound, driver: Driver, alignment: int) -> None:
        self._bound, self._alignment = bound, alignment
        lock = threading.Lock()  # by its methods: half the time of a with statement
        self._names: dict[str, Any] = {
            "NOT_A_TENSOR": NOT_A_TENSOR, "words": bound.words, "kept": bound, "on": driver.on,
            "acquire": lock.acquire, "release": lock.release, "stream": driver.stream,
            "encode_map": driver.encode_map, "encoded": [None] * len(bound.maps),
        }  # fmt: skip
        self._refused: list[str] = []  # conditions under which it is no such call
        self._addresses: list[str] = []
        self._overlaps: list[str] = []
        self._changes: list[str] = []  # what a launch is told
        self._spans: list[tuple[str, str, bool]] = []  # names of address and bytes, is written
        self._numbered: list[str] = []  # the address of each tensor

    def tensor(self, position: int, spec: ParameterSpec, tensor: Any) -> None:
        """Write what is compared with a tensor, and where its address goes."""
        argument = f"a{position}"
        if tensor is None:  # its word stays 0
            self._refused.append(f"{argument} is not None")
            self._numbered.append("0")
            return
        address = f"p{position}"
        self._names |= {f"dtype{position}": tensor.dtype, f"shape{position}": tensor.shape}
        checks = [
            f"{argument}.dtype is not dtype{position}", f"{argument}.shape != shape{position}"
        ]  # fmt: skip
        if tensor.is_cuda:
            checks.append(f"{argument}.get_device() != {tensor.get_device()}")
        else:
            checks.append(f"not {argument}.is_cpu")
        if spec.strides is None:
            checks.append(f"not {argument}.is_contiguous()")
        else:
            self._names[f"strides{position}"] = tensor.stride()
            checks.append(f"{argument}.stride() != strides{position}")
        self._refused += checks
        self._addresses.append(f"{address} = {argument}.data_ptr()")
        self._overlap(address, _span(tensor, spec), is_written=spec.is_written)
        self._numbered.append(address)

    def _overlap(self, address: str, size: int, *, is_written: bool) -> None:
        """Write that a tensor shares no memory with an earlier one, if either is written."""
        if not size:
            return
        own = f"bytes{len(self._spans)}"
        self._names[own] = size
        for other, other_size, other_is_written in self._spans:
            if is_written or other_is_written:
                self._overlaps.append(
                    f"{other} < {address} + {own} and {address} < {other} + {other_size}"
                )
        self._spans.append((address, own, is_written))

    def number(self, position: int, spec: ParameterSpec, number: Any) -> None:
        """Write what is compared with a number, or where it goes."""
        argument = f"a{position}"
        self._names[f"type{position}"] = type(number)
        self._refused.append(f"type({argument}) is not type{position}")
        slots = self._bound.numbers.get(position)
        if slots is None:  # launches depend on it
            self._names[f"number{position}"] = number
            self._refused.append(f"{argument} != number{position}")
            return
        if type(number) is int and spec.dtype != "bool":
            low, high = _range(spec.dtype)
            self._refused.append(f"not {low} <= {argument} <= {high}")
        for n, slot in enumerate(slots):
            self._names[f"slot{position}_{n}"] = slot
            self._changes.append(f"slot{position}_{n}.value = {argument}")

    def made(self, count: int) -> Call:
        """Return the function."""
        arguments = ", ".join(f"a{position}" for position in range(count))
        fetched = "\n        ".join(self._addresses) or "pass"
        refused = " or ".join(self._refused) or "False"
        misfits = [f"({' | '.join(p for p, _, _ in self._spans)}) & {self._alignment - 1}"]
        misfits = (misfits if self._spans else []) + self._overlaps
        body = "\n        ".join([*self._workspaces(), *self._written(), *self._launched()])
        text = f"""
def call({arguments}):
    try:
        if {refused}:
            return False
        {fetched}
    except NOT_A_TENSOR:
        return False
    if {" or ".join(misfits) or "False"}:
        return False
    elsewhere = on({self._bound.device})
    if elsewhere is not None:
        with elsewhere:
            return call({arguments})
    acquire()
    try:
        {body}
    finally:
        release()
    return True
"""
        exec(_code(text), self._names)  # names are ours
        found: Call = self._names["call"]
        return found

    def _workspaces(self) -> list[str]:
        """Return how workspaces are made. Each is kept until all launches are under way.

        Then torch's allocator keeps the order of the stream.
        """
        lines = []
        for n, make in enumerate(self._bound.workspaces):
            self._names[f"make{n}"] = make
            lines += [f"w{n} = make{n}()", f"q{n} = w{n}.data_ptr()"]
            self._numbered.append(f"q{n}")
        return lines

    def _written(self) -> list[str]:
        """Return how addresses, numbers and tensor maps reach the launches."""
        lines = [
            f"words[{n}] = {address}" for n, address in enumerate(self._numbered) if address != "0"
        ]
        lines += self._changes
        for n, found in enumerate(self._bound.maps):
            address = self._numbered[found.tensor]
            if found.is_of_nothing or address == "0":
                continue
            self._names |= {f"map{n}": found.shape, f"at{n}": found.at}
            lines += [
                f"if encoded[{n}] != {address}:",
                f"    encode_map(at{n}, {address}, map{n})",
                f"    encoded[{n}] = {address}",
            ]
        return lines

    def _launched(self) -> list[str]:
        """Return how the kernels are launched."""
        launches = self._bound.launches
        self._names |= {f"launch{n}": launch for n, launch in enumerate(launches)}
        lines = [f"launch{n}(now)" for n in range(len(launches))]
        return [f"now = stream({self._bound.device})", *lines] if lines else ["pass"]
