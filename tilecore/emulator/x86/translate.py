"""LLVM IR for any x86-64 as IR that AVX2 runs: other attributes, stand-ins for intrinsics."""

from __future__ import annotations

import re

from tilecore.assertion import EMULATION_MARK
from tilecore.emulator.x86.stand_ins import NAME, NATIVE, calling_text, find_stand_in, types_of
from tilecore.errors import EmulationError
from tilecore.target import AVX2

_ENTRY = re.compile(r"^define dllexport (?P<kind>[^@\n]*)@__tvm_ffi_main\(", re.MULTILINE)
_DECLARED = re.compile(
    r"^declare (?P<result>[^@\n]+?) @(?P<name>llvm\.x86\.[\w.]+)\((?P<given>.*)\)[^)\n]*\n",
    re.MULTILINE,
)
_ASSEMBLY = re.compile(r'\bcall [^\n]*\basm (?!sideeffect "",)[^\n]*')  # with a text
_OWN_ENTRY = "tilecore_emulated_main"
# Around what TVM calls: faults are raised as errors of the kernel that has returned without one.
_CALLER = f"""
@tilecore_kind = private constant [13 x i8] c"RuntimeError\\00"
@tilecore_mark = private constant [{len(EMULATION_MARK) + 1} x i8] c"{EMULATION_MARK}\\00"
declare void @x86_begin()
declare ptr @x86_found()
declare void @x86_end()
define dllexport i32 @__tvm_ffi_main(ptr %self, ptr %args, i32 %count, ptr %result) {{
  %parts = alloca [2 x ptr]
  call void @x86_begin()
  %status = call i32 @{_OWN_ENTRY}(ptr %self, ptr %args, i32 %count, ptr %result)
  %found = call ptr @x86_found()
  %is_there = icmp ne ptr %found, null
  %is_done = icmp eq i32 %status, 0
  %is_fault = and i1 %is_there, %is_done
  br i1 %is_fault, label %fault, label %done
fault:
  %second = getelementptr ptr, ptr %parts, i64 1
  store ptr @tilecore_mark, ptr %parts
  store ptr %found, ptr %second
  call void @TVMFFIErrorSetRaisedFromCStrParts(ptr @tilecore_kind, ptr %parts, i32 2)
  br label %done
done:
  %code = phi i32 [ %status, %0 ], [ -1, %fault ]
  call void @x86_end()
  ret i32 %code
}}
"""
_RAISE = "declare void @TVMFFIErrorSetRaisedFromCStrParts(ptr, ptr, i32)"


def to_avx2(text: str, kernel: str) -> str:
    """Return the IR of TVM's module of a kernel as IR that raises the faults of its emulation.

    Raises:
        EmulationError: it has an intrinsic that nothing stands in for, or assembly (TC307).
    """
    text, found = _ENTRY.subn(rf"define internal \g<kind>@{_OWN_ENTRY}(", text)
    assert found == 1, "one entry per module"
    declared = "" if "@TVMFFIErrorSetRaisedFromCStrParts(" in text else _RAISE
    return with_stand_ins(text, kernel) + declared + _CALLER


def with_stand_ins(text: str, kernel: str) -> str:
    """Return the IR of a module whose functions may use AVX2 alone.

    Args:
        text: IR for any x86-64.
        kernel: a name for errors.

    Raises:
        EmulationError: it has an intrinsic that nothing stands in for, or assembly (TC307).
    """
    assembly = _ASSEMBLY.search(text)
    if assembly is not None:
        raise EmulationError(kernel=kernel, what=f"no stand-in for `{assembly.group().strip()}`")
    text = re.sub(r'"target-cpu"="[^"]*"', f'"target-cpu"="{AVX2.mcpu}"', text)
    text = re.sub(r'"target-features"="[^"]*"', "", text)
    text = re.sub(r"(\\22mcpu\\22:\\22)[\w-]+", rf"\g<1>{AVX2.mcpu}", text)
    text = re.sub(r"(\\22mattr\\22:)\[[^]]*\]", r"\g<1>[]", text)
    # Only those instructions know the type; AVX2 would round it through a library's function.
    text = text.replace(" x bfloat>", " x i16>")
    added: list[str] = []
    for declared in _DECLARED.finditer(text):
        name = declared["name"]
        if NATIVE.match(name):
            continue
        stand_in, given = find_stand_in(name), types_of(declared["given"])
        if stand_in is None or not 0 <= stand_in.count - len(given) <= 1:
            raise EmulationError(
                kernel=kernel, what=f"no stand-in for `{declared.group().strip()}`",
                hint="add one to tilecore/emulator/x86/stand_ins.py",
            )  # fmt: skip
        own = name.replace("llvm.x86.", NAME)
        text = text.replace(declared.group(), "").replace(f"@{name}(", f"@{own}(")
        added += calling_text(own, stand_in, declared["result"], given)
    return "\n".join([text, *dict.fromkeys(added), ""])
