"""CUDA text whose instructions have their CPU meaning, as C++ for the emulator's runtime."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tilecore.codegen.cuda import HEADER, CudaSource
from tilecore.codegen.cuda_source import BEGIN
from tilecore.errors import EmulationError
from tilecore.ir.cuda_source import kernels_of, parts

_INCLUDE = re.compile(r"^#include <cuda_\w+\.h>\n", re.MULTILINE)
_DYNAMIC = re.compile(
    r"extern __shared__ (?:__align__\(\d+\) |alignas\(\d+\) )*([\w ]+?) (\w+)\[\];"
)
_STATIC = re.compile(
    r"(?<!extern )__shared__ (?:__align__\((\d+)\) |alignas\((\d+)\) )*([\w ]+?) (\w+)\[(\d+)\];"
)
# Of the program's own: several variables, of any number of axes, sizes as expressions.
_SHARED = re.compile(
    r"(?<!extern )\b__shared__\s+(?:(?:__align__|alignas)\((\d+)\)\s*)?(?:volatile\s+)?"
    r"(?:(?:__align__|alignas)\((\d+)\)\s*)?"
    r"([\w:]+(?:\s+(?:int|long|char|short|double))*(?:<[^;<>]*>)?)\s+"
    r"(\w+\s*(?:\[[^;=]*?\]\s*)*(?:,\s*\w+\s*(?:\[[^;=]*?\]\s*)*)*);"
)
_ASM = re.compile(r"\basm\b")
_HELPER = re.compile(r"^__forceinline__ __device__ [\w *]+? (tc_\w+)\(", re.MULTILINE)
_KERNEL = 'extern "C" __global__'
_ENTRY_HEAD = re.compile(r"__global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(")
STATIC_ALIGNMENT = 16
CALLER = """
#define EMU_UNSEEN __attribute__((no_sanitize("thread")))
template <class... P, size_t... I>
EMU_UNSEEN static void emu_call(void (*kernel)(P...), void** arguments, std::index_sequence<I...>) {
  kernel(*(typename std::remove_cv<P>::type*)arguments[I]...);
}
template <class... P>
EMU_UNSEEN static void emu_call(void (*kernel)(P...), void** arguments) {
  emu_call(kernel, arguments, std::index_sequence_for<P...>());
}
"""


def to_cpp(source: CudaSource) -> str:
    """Return the C++ text of the source's kernels; ``emu_<kernel>`` calls one with its arguments.

    Raises:
        EmulationError: the text holds inline assembly that is no instruction's (TC307).
    """
    text, *given = source.emulated.removeprefix(HEADER).split(BEGIN)
    text = _INCLUDE.sub("", text)
    head, first, kernels = text.partition(_KERNEL)
    for part in (text, *given):
        if _ASM.search(part):
            line = next(t for t in part.splitlines() if _ASM.search(t))
            raise EmulationError(
                kernel=", ".join(e.name for e in source.entries),
                what=f"no emulation of `{line.strip()}`",
            )
    slots = iter(range(1 << 20))

    def static(match: re.Match[str]) -> str:
        alignment = match.group(1) or match.group(2) or STATIC_ALIGNMENT
        ctype, name, count = match.group(3, 4, 5)
        place = f"emu::static_shared({next(slots)}, sizeof({ctype}) * {count}, {alignment})"
        return f"{ctype}* {name} = ({ctype}*){place};"

    kernels = _DYNAMIC.sub(r"\1* \2 = (\1*)emu::dynamic_shared();", kernels)
    kernels = _STATIC.sub(static, kernels)
    names = dict.fromkeys((*_ENTRY_HEAD.findall(first + kernels), *_entries(source, given)))
    entries = "".join(
        f'extern "C" EMU_UNSEEN void emu_{n}(void** arguments) {{ emu_call({n}, arguments); }}\n'
        for n in names
    )
    kernels = _with_lines(kernels)
    begin = source.text.partition(_KERNEL)[0].count("\n") + 1
    own = "".join(_given(part, slots) for part in given)
    return (
        f'#include "emu.h"\n{CALLER}{head}{_traced(head)}#line {begin} "kernel.cu"\n'
        f"{first}{kernels}\n{own}\n{entries}"
    )


def _entries(source: CudaSource, given: Sequence[str]) -> list[str]:
    """Return the launched kernels that texts of the program's own define."""
    defined = {k.name for text in given for k in kernels_of(text)}
    return [e.name for e in source.entries if e.name in defined]


def _given(text: str, slots: Iterator[int]) -> str:
    """Return CUDA that a program gives: its kernels' statements say where they stand, and its
    shared variables lie in the block's shared memory.
    """
    bodies = sorted(k.body for k in kernels_of(text))
    found, end = [], 0
    for first, last in bodies:
        found += [text[end:first], _with_lines(text[first:last])]
        end = last
    whole = _INCLUDE.sub("\n", "".join((*found, text[end:])))
    return _SHARED.sub(lambda match: _shared(match, slots), whole)


def _shared(match: re.Match[str], slots: Iterator[int]) -> str:
    """Return declarations of shared variables as references to the block's memory."""
    alignment = match.group(1) or match.group(2) or STATIC_ALIGNMENT
    ctype, first = match.group(3, 4)
    made = []
    for declared in parts(first):
        name = re.split(r"[\s\[]", declared, maxsplit=1)[0]
        sizes = declared.removeprefix(name)
        number = next(slots)
        kind = f"emu_shared_{number}"
        place = f"emu::static_shared({number}, sizeof({kind}), {alignment})"
        made.append(f"typedef {ctype} {kind}{sizes}; {kind}& {name} = *({kind}*){place};")
    return " ".join(made)


def _with_lines(text: str) -> str:
    """Return kernels whose statements say where they stand, for messages and counts.

    A line is a statement's first where the one before ends another one or opens a block.
    """
    lines, is_start = [], False
    for line in text.split("\n"):
        word = line.strip()
        is_whole = word.endswith(";") or (
            word.endswith("{") and word.startswith(("if", "for", "w"))
        )
        is_other = word.startswith(("}", "#", "//", "else", "case", "extern", "__shared__"))
        if is_start and is_whole and not is_other:
            line = f"emu::at(__LINE__); {line}"
        lines.append(line)
        is_start = word.endswith((";", "{", "}")) or (is_start and not word)
    return "\n".join(lines)


def _traced(head: str) -> str:
    """Return macros by which calls of instructions note where they are."""
    return "".join(
        f"#define {name}(...) (emu::line = __LINE__, {name}(__VA_ARGS__))\n"
        for name in dict.fromkeys(_HELPER.findall(head))
    )
