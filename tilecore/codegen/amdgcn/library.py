"""Device functions in LLVM IR, found by the names that the lowering calls.

They take the place of ROCm's device library, which is not needed: memory and threads are LLVM's
intrinsics of AMD GPUs, functions of the C library those that LLVM can expand itself (errors of one
or two units in the last place, as LLVM's AMDGPU guide has them) or polynomials. Pointers come in
any address space; a function is made for those of its call.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilecore.codegen.amdgcn import functions, narrow_floats
from tilecore.codegen.amdgcn.values import LLVM_TYPES, Value, bits_of
from tilecore.errors import UnsupportedOnTarget
from tilecore.lowering import rounding

# Convergent: shuffles and barriers stay where all lanes come by, before they are inlined too.
ATTRIBUTES = "alwaysinline convergent nounwind"
HEAD = f"define internal {{returns}} @{{name}}({{parameters}}) {ATTRIBUTES} {{{{\n{{body}}\n}}}}\n"
AGENT = 'syncscope("agent")'  # all threads of the device
DOMAINS = {
    "cp_async": "asynchronous copies", "bulk": "bulk copies", "tma": "tensor memory accelerators",
    "barrier": "barriers in shared memory", "wgmma": "warpgroups", "ldmatrix": "ldmatrix",
    "stmatrix": "stmatrix", "mma": "mma.sync", "bar": "named barriers", "cluster": "clusters",
    "elect": "elect.sync",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """A call: its function, the operands and the type of the result."""

    name: str
    args: tuple[Value, ...]
    returns: str
    arch: str

    def pointer(self, number: int) -> str:
        """Return the type of an operand that is a pointer."""
        return self.args[number].type


def resolve(call: Call) -> tuple[str, str]:
    """Return (symbol, LLVM text of its definition) of a function.

    Raises:
        UnsupportedOnTarget: AMD GPUs, or this library, do not have it (TC302).
    """
    for pattern, make in _FUNCTIONS:
        found = pattern.fullmatch(call.name)
        if found is not None:
            body = make(call, *found.groups())
            if body is not None:
                return _define(call, body)
    body = functions.body(call.name, call.returns, len(call.args))
    if body is not None:
        return _define(call, body)
    family = call.name.removeprefix("tc_")
    known = next((what for key, what in DOMAINS.items() if family.startswith(key)), None)
    raise UnsupportedOnTarget(
        what=f"`{family}`", target=call.arch,
        reason=f"there are no {known}" if known
        else "it needs ROCm's device library, which this code generator does without",
    )  # fmt: skip


def _define(call: Call, body: str) -> tuple[str, str]:
    spaces = "".join(f".p{a.space}" for a in call.args if a.dtype == "ptr")
    # A name of the C library would mean the library's own function to LLVM.
    prefix = "" if call.name.startswith("tc_") else "tc_"
    symbol = f"{prefix}{call.name}{spaces}"
    parameters = ", ".join(f"{a.type} %a{i}" for i, a in enumerate(call.args))
    return symbol, HEAD.format(
        returns=LLVM_TYPES[call.returns], name=symbol, parameters=parameters, body=body.rstrip()
    )


# --- memory and threads --------------------------------------------------------------------------


def _copy(call: Call, size: str) -> str:
    words = {"1": "i8", "2": "i16", "4": "i32", "8": "<2 x i32>", "16": "<4 x i32>"}
    word = words[size]
    return f"""  %v = load {word}, {call.pointer(1)} %a1, align {size}
  store {word} %v, {call.pointer(0)} %a0, align {size}
  ret void"""


def _sync_threads(call: Call) -> str:
    _ = call
    return """  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  ret void"""


def _sync_warp(call: Call) -> str:
    _ = call
    return """  fence syncscope("wavefront") release
  call void @llvm.amdgcn.wave.barrier()
  fence syncscope("wavefront") acquire
  ret void"""


def _thread_fence(call: Call, scope: str) -> str:
    _ = call
    name = {"cta": 'syncscope("workgroup") ', "gpu": AGENT + " ", "sys": ""}[scope]
    return f"  fence {name}acq_rel\n  ret void"


def _schedule_fence(call: Call) -> str:
    _ = call
    return "  call void @llvm.amdgcn.sched.barrier(i32 0)\n  ret void"


_LANE = """  %low = call i32 @llvm.amdgcn.mbcnt.lo(i32 -1, i32 0)
  %lane = call i32 @llvm.amdgcn.mbcnt.hi(i32 -1, i32 %low)
"""
_SOURCES = {
    "xor": "  %there = xor i32 %lane, %a1\n",
    "up": "  %there = sub i32 %lane, %a1\n",
    "down": "  %there = add i32 %lane, %a1\n",
    "idx": "  %in = and i32 %a1, {last}\n  %base = and i32 %lane, {first}\n"
           "  %there = or i32 %base, %in\n",
}  # fmt: skip


def _shuffle(call: Call, kind: str, dtype: str, width: str) -> str:
    """Return a shuffle: lanes that would read outside of their group read themselves."""
    first = {"first": -int(width), "last": int(width) - 1}
    text = _LANE + _SOURCES[kind].format(**first)
    text += f"""  %other = xor i32 %there, %lane
  %outside = and i32 %other, {first["first"]}
  %stays = icmp ne i32 %outside, 0
  %from = select i1 %stays, i32 %lane, i32 %there
  %address = shl i32 %from, 2
"""
    ctype, bits = LLVM_TYPES[dtype], bits_of(dtype)
    word = f"i{bits}"
    text += f"  %bits = bitcast {ctype} %a0 to {word}\n"
    if bits == 64:
        text += """  %low32 = trunc i64 %bits to i32
  %shifted = lshr i64 %bits, 32
  %high32 = trunc i64 %shifted to i32
  %l = call i32 @llvm.amdgcn.ds.bpermute(i32 %address, i32 %low32)
  %h = call i32 @llvm.amdgcn.ds.bpermute(i32 %address, i32 %high32)
  %l64 = zext i32 %l to i64
  %h64 = zext i32 %h to i64
  %hs = shl i64 %h64, 32
  %made = or i64 %hs, %l64
"""
    elif bits == 32:
        text += "  %made = call i32 @llvm.amdgcn.ds.bpermute(i32 %address, i32 %bits)\n"
    else:
        text += f"""  %wide = zext {word} %bits to i32
  %w = call i32 @llvm.amdgcn.ds.bpermute(i32 %address, i32 %wide)
  %made = trunc i32 %w to {word}
"""
    return text + f"  %r = bitcast {word} %made to {ctype}\n  ret {ctype} %r"


def _shuffle_masked(call: Call, kind: str, dtype: str, width: str) -> str:
    """Return a shuffle behind a mask, which the device does without."""
    return _shuffle(call, kind, dtype, width).replace("%a1", "%a2").replace("%a0", "%a1")


def _vote(call: Call, kind: str, mask: str | None) -> str:
    """Return a vote of the lanes of a half of the wave that are there and in the mask."""
    _ = call
    condition, lanes = ("%a1", "%a0") if mask else ("%a0", "-1")
    text = f"""{_LANE}  %c = icmp {"eq" if kind == "all" else "ne"} i32 {condition}, 0
  %b = call i64 @llvm.amdgcn.ballot.i64(i1 %c)
  %first = and i32 %lane, 32
  %first64 = zext i32 %first to i64
  %half = lshr i64 %b, %first64
  %own = trunc i64 %half to i32
  %votes = and i32 %own, {lanes}
"""
    if kind == "ballot":
        return f"{text}  ret i32 %votes"
    return f"""{text}  %r = icmp {"eq" if kind == "all" else "ne"} i32 %votes, 0
  %z = zext i1 %r to i32
  ret i32 %z"""


# --- atomic updates ------------------------------------------------------------------------------

_UPDATES = {"add": "add", "and": "and", "or": "or", "xor": "xor", "exchange": "xchg"}


def _atomic(call: Call, op: str, dtype: str) -> str | None:
    ctype = LLVM_TYPES.get(dtype)
    if ctype is None:
        return None
    name = _UPDATES.get(op)
    if op in ("min", "max"):
        name = f"f{op}" if "float" in dtype else op if dtype.startswith("int") else f"u{op}"
    elif op == "add" and "float" in dtype:
        name = "fadd"
    if name is None:
        return None
    where = call.pointer(0)
    return f"  %r = atomicrmw {name} {where} %a0, {ctype} %a1 {AGENT} monotonic\n  ret {ctype} %r"


def _update_bfloat16(call: Call, op: str) -> str | None:
    names = {"add": "fadd", "max": "fmax", "min": "fmin", "exchange": "xchg"}
    where = call.pointer(0)
    if op not in names:
        return None
    return f"""  %v = fptrunc float %a1 to bfloat
  %o = atomicrmw {names[op]} {where} %a0, bfloat %v {AGENT} monotonic
  %r = fpext bfloat %o to float
  ret float %r"""


def _load_ordered(call: Call, order: str, scope: str, dtype: str) -> str:
    ctype, size = LLVM_TYPES[dtype], bits_of(dtype) // 8
    ordering = "acquire" if order == "acquire" else "monotonic"
    where, wide = call.pointer(0), "" if scope == "sys" else f"{AGENT} "
    return (
        f"  %r = load atomic {ctype}, {where} %a0 {wide}{ordering}, align {size}\n  ret {ctype} %r"
    )


# --- conversions and comparisons -----------------------------------------------------------------


def _widen(call: Call) -> str:
    _ = call
    return """  %s = shl i32 %a0, 16
  %r = bitcast i32 %s to float
  ret float %r"""


def _narrow(call: Call) -> str:
    """Return the rounding to bfloat16: to nearest even, NaN stays NaN."""
    _ = call
    return """  %bits = bitcast float %a0 to i32
  %high = lshr i32 %bits, 16
  %odd = and i32 %high, 1
  %bias = add i32 %odd, 32767
  %sum = add i32 %bits, %bias
  %rounded = lshr i32 %sum, 16
  %nan = fcmp uno float %a0, 0.0
  %r = select i1 %nan, i32 32767, i32 %rounded
  ret i32 %r"""


def _upper_half(call: Call) -> str:
    _ = call
    return """  %bits = bitcast float %a0 to i32
  %r = lshr i32 %bits, 16
  ret i32 %r"""


def _narrow_float(call: Call, way: str, dtype: str) -> str | None:
    _ = call
    return (narrow_floats.widen if way == "widen" else narrow_floats.narrow)(dtype)


def _compare(call: Call, op: str, dtype: str) -> str:
    _ = call
    condition = "une" if op == "ne" else f"o{op}"
    return f"""  %c = fcmp {condition} {LLVM_TYPES[dtype]} %a0, %a1
  %r = zext i1 %c to i32
  ret i32 %r"""


def _extend_int16(call: Call) -> str:
    _ = call
    return """  %low = trunc i32 %a0 to i16
  %r = sext i16 %low to i32
  ret i32 %r"""


def _rounded(call: Call, name: str, dtype: str) -> str:
    _ = call
    return rounding.body(name, dtype)


# --- matrix products -----------------------------------------------------------------------------

_FLOAT8 = {"float8_e4m3": "fp8", "float8_e5m2": "bf8"}
# (K, element types) -> intrinsic, type of an operand, of the sums.
_PRODUCTS = {
    ("16", "float16"): ("f32.16x16x16f16", "<4 x half>", "<4 x float>"),
    ("16", "bfloat16"): ("f32.16x16x16bf16.1k", "<4 x i16>", "<4 x float>"),
    ("4", "float32"): ("f32.16x16x4f32", "float", "<4 x float>"),
    ("16", "int8"): ("i32.16x16x16i8", "i32", "<4 x i32>"),
    ("32", "int8"): ("i32.16x16x32.i8", "i64", "<4 x i32>"),
    ("4", "float64"): ("f64.16x16x4f64", "double", "<4 x double>"),
    ("32", "float16"): ("f32.16x16x32.f16", "<8 x half>", "<4 x float>"),
    ("32", "bfloat16"): ("f32.16x16x32.bf16", "<8 x bfloat>", "<4 x float>"),
    ("64", "int8"): ("i32.16x16x64.i8", "<4 x i32>", "<4 x i32>"),
    # gfx942 reads the same bits by the biases of fnuz, gfx950 by those of OCP.
    **{
        ("32", one if one == other else f"{one}_{other}"): (
            f"f32.16x16x32.{_FLOAT8[one[:11]]}.{_FLOAT8[other[:11]]}",
            "i64",
            "<4 x float>",
        )
        for kinds in (("float8_e4m3fnuz", "float8_e5m2fnuz"), ("float8_e4m3fn", "float8_e5m2"))
        for one, other in itertools.product(kinds, repeat=2)
    },
}


def _mfma(call: Call, k: str, dtypes: str) -> str:
    name, given, sums = _PRODUCTS[k, dtypes]
    intrinsic = f"@llvm.amdgcn.mfma.{name}"
    d, a, b = (call.pointer(i) for i in range(3))
    return f"""  %x = load {given}, {a} %a1, align 4
  %y = load {given}, {b} %a2, align 4
  %c = load {sums}, {d} %a0, align 16
  %r = call {sums} {intrinsic}({given} %x, {given} %y, {sums} %c, i32 0, i32 0, i32 0)
  store {sums} %r, {d} %a0, align 16
  ret void"""


def declarations(text: str) -> str:
    """Return the declarations of the intrinsics that a text calls."""
    found: dict[str, str] = {}
    for returns, name, given in re.findall(
        r"call (.+?) @(llvm\.[\w.]+)\(((?:[^()]|\([^()]*\))*)\)", text
    ):
        kinds = [re.sub(r"\s+(%\S+|-?\d+|true|false|0x\S+|-?[\d.]+)$", "", a.strip())
                 for a in _split(given)]  # fmt: skip
        found[name] = f"declare {returns} @{name}({', '.join(kinds)})"
    return "\n".join(found.values())


def _split(text: str) -> Sequence[str]:
    return [p for p in text.split(",") if p.strip()]


_FUNCTIONS: tuple[tuple[re.Pattern[str], Callable[..., str | None]], ...] = tuple(
    (re.compile(pattern), make)
    for pattern, make in (
        (r"tc_copy_(\d+)", _copy),
        (r"tc_sync_threads", _sync_threads),
        (r"tc_sync_warp", _sync_warp),
        (r"tc_schedule_fence", _schedule_fence),
        (r"tc_thread_fence_(\w+)", _thread_fence),
        (r"tc_wave_shuffle_(\w+?)_(\w+)_(\d+)", _shuffle),
        (r"tc_wave_masked_(\w+?)_(\w+)_(\d+)", _shuffle_masked),
        (r"tc_wave_(any|all|ballot)(_masked)?", _vote),
        (r"tc_atomic_([a-z]+)_(\w+)", _atomic),
        (r"tc_update_bf16_(\w+)", _update_bfloat16),
        (r"tc_load_(relaxed|acquire)_(\w+?)_(\w+)", _load_ordered),
        (r"tc_widen_bfloat16", _widen),
        (r"tc_narrow_bfloat16", _narrow),
        (r"tc_(widen|narrow)_(\w+)", _narrow_float),
        (r"tc_upper_half", _upper_half),
        (r"tc_extend_int16", _extend_int16),
        (r"tc_compare_([a-z]+)_(\w+)", _compare),
        (r"tc_rounded_([a-z]+_r[nzud])_(\w+)", _rounded),
        (r"tc_mfma_16x16x(\d+)_(\w+)", _mfma),
    )
)
