"""CUDA text whose instructions have their CPU meaning, as C++ for the emulator's runtime."""

from __future__ import annotations

import re

from tilecore.codegen.cuda import HEADER, CudaSource
from tilecore.errors import EmulationError

_INCLUDE = re.compile(r"^#include <cuda_\w+\.h>\n", re.MULTILINE)
_DYNAMIC = re.compile(
    r"extern __shared__ (?:__align__\(\d+\) |alignas\(\d+\) )*([\w ]+?) (\w+)\[\];"
)
_STATIC = re.compile(
    r"(?<!extern )__shared__ (?:__align__\((\d+)\) |alignas\((\d+)\) )*([\w ]+?) (\w+)\[(\d+)\];"
)
_ASM = re.compile(r"\basm\b")
_HELPER = re.compile(r"^__forceinline__ __device__ [\w *]+? (tc_\w+)\(", re.MULTILINE)
_KERNEL = 'extern "C" __global__'
_ENTRY_HEAD = re.compile(r"__global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(")
STATIC_ALIGNMENT = 16
CALLER = """
#include <utility>
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
    text = source.emulated.removeprefix(HEADER)
    text = _INCLUDE.sub("", text)
    head, first, kernels = text.partition(_KERNEL)
    if _ASM.search(text):
        line = next(t for t in text.splitlines() if _ASM.search(t))
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
    names = dict.fromkeys(_ENTRY_HEAD.findall(first + kernels))
    entries = "".join(
        f'extern "C" EMU_UNSEEN void emu_{n}(void** arguments) {{ emu_call({n}, arguments); }}\n'
        for n in names
    )
    kernels = _with_lines(kernels)
    begin = source.text[: source.text.find(_KERNEL)].count("\n") + 1
    return (
        f'#include "emu.h"\n{CALLER}{head}{_traced(head)}#line {begin} "kernel.cu"\n'
        f"{first}{kernels}\n{entries}"
    )


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
