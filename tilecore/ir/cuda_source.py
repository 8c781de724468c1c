"""CUDA C++ that a program gives itself: its kernels, their parameters, what a launch passes.

The text is not parsed in full: comments and strings are blanked, then ``__global__`` functions are
found by their form. What macros make is not seen.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tilecore.errors import ShapeMismatch, TileError, TypeMismatch
from tilecore.ir.dims import extents_of
from tilecore.ir.expr import Var
from tilecore.ir.nodes import Buffer, PrimFunc, SourceLaunch, Stmt
from tilecore.ir.visitor import Rewriter, walk, with_body

Argument = Buffer | Var
_NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_WORDS_WITH_ARGUMENTS = (
    "__launch_bounds__", "__cluster_dims__", "__maxnreg__", "__block_size__", "__attribute__",
)  # fmt: skip
_ATTRIBUTES = "|".join(_WORDS_WITH_ARGUMENTS)
_KERNEL = re.compile(
    r"\b__global__\s+"
    rf"(?:(?:{_ATTRIBUTES})\s*\((?:[^()]|\([^()]*\))*\)\s*|(?!(?:{_ATTRIBUTES})\b)\w+\s+)*?"
    rf"(?!(?:{_ATTRIBUTES})\b)(\w+)\s*\("
)
_LINKAGE = re.compile(r'extern\s*"C"\s*(\{)?')
_DYNAMIC = re.compile(r"\bextern\s+__shared__\b")
_INT32 = ("int", "int32_t", "signed", "signed int", "unsigned", "unsigned int", "uint32_t", "uint")
_INT64 = (
    "long", "long int", "long long", "long long int", "int64_t", "unsigned long",
    "unsigned long long", "uint64_t", "size_t", "ssize_t", "ptrdiff_t",
)  # fmt: skip
_OTHER = (
    "bool", "char", "signed char", "unsigned char", "int8_t", "uint8_t", "short", "unsigned short",
    "int16_t", "uint16_t", "float", "double", "half", "__half", "half2", "nv_bfloat16",
    "__nv_bfloat16", "CUtensorMap",
)  # fmt: skip
_SCALARS = {**dict.fromkeys(_INT32, 32), **dict.fromkeys(_INT64, 64), **dict.fromkeys(_OTHER, 0)}
_QUALIFIERS = re.compile(r"\b(?:const|volatile|__restrict__|__grid_constant__)\b")


@dataclass(frozen=True, slots=True)
class CParameter:
    """A parameter of a kernel: its text, and what it says of what it takes.

    Attributes:
        text: as the source has it.
        is_pointer: whether it is one, by its form.
        is_const: whether it is a pointer through which nothing is written.
        bits: of an integer of known width; 0: another type that is no pointer; None: unknown.
    """

    text: str
    is_pointer: bool
    is_const: bool
    bits: int | None


@dataclass(frozen=True, slots=True)
class CKernel:
    """A ``__global__`` function of a source.

    Attributes:
        name: of the function.
        parameters: in order.
        is_extern_c: whether its symbol is its name.
        body: places in the source from its opening brace up to behind the closing one.
    """

    name: str
    parameters: tuple[CParameter, ...]
    is_extern_c: bool
    body: tuple[int, int]


@functools.lru_cache(maxsize=64)
def kernels_of(source: str) -> tuple[CKernel, ...]:
    """Return the kernels that a CUDA source defines, in order."""
    text = blanked(source)
    blocks = [
        (m.start(1), closing(text, m.start(1))) for m in _LINKAGE.finditer(text) if m.group(1)
    ]
    found = []
    for match in _KERNEL.finditer(text):
        opened = match.end() - 1
        closed = closing(text, opened)
        begin = re.compile(r"\s*\{").match(text, closed)
        if begin is None:
            continue  # a declaration, or no function
        head = re.split(r"[;{}]", text[: match.start()])[-1]
        is_extern_c = bool(_LINKAGE.search(head)) or any(
            first < opened < last for first, last in blocks
        )
        parameters = tuple(_parameters(source[opened + 1 : closed - 1]))
        body = begin.end() - 1
        found.append(CKernel(match.group(1), parameters, is_extern_c, (body, closing(text, body))))
    return tuple(found)


def blanked(source: str) -> str:
    """Return the source with spaces for comments and strings (but for the "C" of linkage)."""

    def blank(match: re.Match[str]) -> str:
        text = match.group()
        return text if text == '"C"' else re.sub(r"[^\n]", " ", text)

    return _NOISE.sub(blank, source)


def closing(text: str, start: int) -> int:
    """Return the place behind what closes the bracket at ``start``."""
    pairs = {"(": ")", "[": "]", "{": "}"}
    opened, closed = text[start], pairs[text[start]]
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == opened) - (text[place] == closed)
        if depth == 0:
            return place + 1
    return len(text)


def parts(text: str) -> list[str]:
    """Return what the commas outside of brackets separate."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter in "(<[{") - (letter in ")>]}")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return [part.strip() for part in found]


def _parameters(text: str) -> Iterator[CParameter]:
    listed = [" ".join(part.split()) for part in parts(blanked(text))]
    if listed in ([""], ["void"]):
        return
    for part in listed:
        declared = part.partition("=")[0].strip()
        is_pointer = "*" in declared or declared.endswith("]")
        target = declared.split("*")[0]
        kind = " ".join(_QUALIFIERS.sub(" ", declared).split())
        bits = _SCALARS.get(kind, _SCALARS.get(kind.rpartition(" ")[0]))
        is_const = is_pointer and bool(re.search(r"\bconst\b", target))
        yield CParameter(part, is_pointer, is_const, None if is_pointer else bits)


# --- launches ------------------------------------------------------------------------------------


def arguments_of(func: PrimFunc) -> tuple[Argument, ...]:
    """Return what a kernel of a program's own source is passed, as TileLang orders it.

    All tensors of the program by name, then the symbols that are an extent or a stride of one, by
    name. Source: TileLang a35008a, src/transform/split_host_device.cc,
    CollectSourceKernelSignature.
    """
    symbols: dict[int, Var] = {}
    for buffer in func.buffers:
        symbols |= {id(e): e for e in extents_of(buffer) if isinstance(e, Var)}
    tensors = sorted(func.buffers, key=lambda b: b.name)
    return (*tensors, *sorted(symbols.values(), key=lambda v: v.name))


def with_arguments(func: PrimFunc) -> PrimFunc:
    """Return a traced program whose source launches know their arguments; itself without any."""
    if not any(isinstance(s, SourceLaunch) for s in walk(func.body)):
        return func
    return with_body(func, _WithArguments(arguments_of(func)).visit(func.body))


class _WithArguments(Rewriter):
    def __init__(self, arguments: tuple[Argument, ...]) -> None:
        self.arguments = arguments

    def visit_sourcelaunch(self, stmt: SourceLaunch) -> Stmt:
        """Return the launch with its arguments."""
        return dataclasses.replace(stmt, arguments=self.arguments)


def kernel_of(launch: SourceLaunch) -> CKernel | None:
    """Return the kernel that a launch runs, if its source defines it."""
    return next((k for k in kernels_of(launch.source) if k.name == launch.entry), None)


def written_by(launch: SourceLaunch) -> list[Buffer]:
    """Return the tensors that a launch may write: those it does not take as pointers to const."""
    kernel = kernel_of(launch)
    known = () if kernel is None else kernel.parameters
    if len(known) != len(launch.arguments):
        return [a for a in launch.arguments if isinstance(a, Buffer)]
    pairs = zip(launch.arguments, known, strict=True)
    return [a for a, p in pairs if isinstance(a, Buffer) and not p.is_const]


def launch_faults(launch: SourceLaunch) -> Iterator[TileError]:
    """Yield what keeps a launch from running the kernel that it names."""
    names = [k.name for k in kernels_of(launch.source)]
    kernel = kernel_of(launch)
    if kernel is None:
        listed = ", ".join(names) or "none (a `__global__` function with a body)"
        yield TypeMismatch(
            expected=f"a kernel named `{launch.entry}` in the CUDA source",
            found=f"others. Available entries: {listed}",
            hint="name one of them as entry_name",
        )
        return
    if not kernel.is_extern_c:
        yield TypeMismatch(
            expected=f'`extern "C" __global__ void {kernel.name}(...)`, which a launch finds by '
            "its name",
            found='no extern "C" before it',
        )
    first, last = kernel.body
    if _DYNAMIC.search(blanked(launch.source)[first:last]):
        yield TypeMismatch(
            expected=f"`{kernel.name}` to have shared arrays of known size (`__shared__ T x[n]`): "
            "T.CUDASourceCodeKernel launches it without dynamic shared memory",
            found="an `extern __shared__` array",
        )
    if len(kernel.parameters) != len(launch.arguments):
        given = ", ".join(p.text for p in kernel.parameters)
        yield ShapeMismatch(
            what=f"parameters of `{kernel.name}`",
            expected=f"{len(launch.arguments)} (all tensors by name, then the dimensions of their "
            f"shapes by name: {described(launch.arguments)})",
            found=f"{len(kernel.parameters)} ({given})",
        )
        return
    for argument, parameter in zip(launch.arguments, kernel.parameters, strict=True):
        expected = _mismatch(argument, parameter)
        if expected:
            yield TypeMismatch(
                expected=f"{expected} for `{argument.name}` in `{kernel.name}`, whose parameters "
                f"are, in this order, {described(launch.arguments)}",
                found=f"`{parameter.text}`",
            )


def described(arguments: tuple[Argument, ...]) -> str:
    """Return the arguments of a launch with their types, in words."""
    return ", ".join(
        f"{a.name} ({a.dtype}{' tensor' if isinstance(a, Buffer) else ''})" for a in arguments
    )


def _mismatch(argument: Argument, parameter: CParameter) -> str:
    """Return what a parameter should be where it surely is something else, or ""."""
    if isinstance(argument, Buffer):
        return "" if parameter.is_pointer or parameter.bits is None else "a pointer"
    if parameter.is_pointer:
        return f"an integer of {argument.dtype.bits} bits"
    is_same = parameter.bits in (None, argument.dtype.bits)
    return "" if is_same else f"an integer of {argument.dtype.bits} bits"
