"""Instruction: a device function of CUDA C++ that holds PTX, beside what it means on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm.backend.cuda.op import cuda_func_call

C_TYPES = {
    "void": "void", "int32": "int", "uint32": "unsigned", "int64": "long long",
    "uint64": "unsigned long long", "float32": "float", "float64": "double",
    "float16": "half", "bfloat16": "nv_bfloat16", "handle": "void*",
    "float8_e4m3fn": "__nv_fp8_e4m3", "float8_e5m2": "__nv_fp8_e5m2",
}  # fmt: skip
# The text of an instruction holds both meanings; the emulator defines the macro, and what is shown
# and compiled for a GPU is the other branch alone (tilecore/codegen/cuda.py).
EMULATED, OTHERWISE, END = "#ifdef TILECORE_EMULATED\n", "#else\n", "#endif\n"


@dataclass(frozen=True, slots=True)
class Instruction:
    """A device function.

    Attributes:
        name: of the function; begins with ``tc_``.
        parameters: C text of the parameters.
        body: CUDA C++ text that stands between its braces.
        emulated: C++ text of the same meaning by the emulator's runtime (tilecore/emulator); None:
            the CUDA text itself, which then holds nothing but functions that the runtime has.
        returns: dtype of the result.
        arch: the oldest architecture that has it.
        headers: of CUDA that the text needs.
    """

    name: str
    parameters: str
    body: str
    emulated: str | None = None
    returns: str = "void"
    arch: str = "sm_70"
    headers: tuple[str, ...] = ()

    @property
    def cuda(self) -> str:
        """The CUDA C++ text of the function."""
        return self._function(self.body)

    @property
    def emulation(self) -> str:
        """The C++ text of the function for the emulator."""
        return self._function(self.body if self.emulated is None else self.emulated)

    @property
    def source(self) -> str:
        """Both texts, chosen by the preprocessor."""
        includes = "".join(f"#include <{header}>\n" for header in self.headers)
        if self.emulated is None:
            return includes + self.cuda
        return f"{EMULATED}{self.emulation}{OTHERWISE}{includes}{self.cuda}{END}"

    def _function(self, body: str) -> str:
        head = f"__forceinline__ __device__ {C_TYPES[self.returns]} {self.name}({self.parameters})"
        lines = body.strip().splitlines()
        return head + " {\n" + "".join(f"  {line}\n" for line in lines) + "}\n"

    def call(self, *args: Any) -> Any:
        """Return the TIR expression of a call; pointers are ``address_of`` expressions."""
        # TVM pastes the texts one behind the other.
        return cuda_func_call(
            self.name, *args, source_code="\n" + self.source, return_type=self.returns
        )


def asm(
    text: str,
    outputs: Sequence[str] = (),
    inputs: Sequence[str] = (),
    *,
    is_volatile: bool = True,
    touches_memory: bool = True,
) -> str:
    """Return an inline assembly statement; operands are written ``"r"(x)``, ``"+f"(y)``."""
    keyword = "asm volatile" if is_volatile else "asm"
    clobbers = ' : "memory"' if touches_memory else ""
    operands = ""
    if outputs or inputs or clobbers:
        operands = f" : {', '.join(outputs)} : {', '.join(inputs)}{clobbers}"
    return f'{keyword}("{text}"{operands});'


def shared(pointer: str) -> str:
    """Return the C expression of the address within shared memory that ``pointer`` has."""
    return f"(unsigned)__cvta_generic_to_shared({pointer})"


def registers(first: int, count: int) -> str:
    """Return PTX's list of ``count`` operands: ``{%4, %5}``."""
    return "{" + ", ".join(f"%{i}" for i in range(first, first + count)) + "}"


def elements(constraint: str, array: str, count: int) -> list[str]:
    """Return the operands of the first ``count`` elements of a C array."""
    return [f'"{constraint}"({array}[{i}])' for i in range(count)]
