"""Single instructions beyond AVX2 as C functions: emulated, or the machine's own."""

import ctypes
import re

import numpy as np

from tilecore.codegen.llvm import assemble, link
from tilecore.emulator import x86
from tilecore.lowering.cpu.gemm.amx_text import DECLARATIONS

V = FLOATS = "<16 x float>"
W, B, H, D = "<16 x i32>", "<64 x i8>", "<32 x i16>", "<32 x bfloat>"
ALL, NEAREST = "i16 -1", "i32 4"
# Name of the probe: intrinsic, type of the result, arguments (%x, %y, %z: vectors in memory).
VECTORS = {
    "scalef": ("avx512.mask.scalef.ps.512", V, f"{V} %x, {V} %y, {V} %x, {ALL}, {NEAREST}"),
    "getexp": ("avx512.mask.getexp.ps.512", V, f"{V} %x, {V} %x, {ALL}, {NEAREST}"),
    "mantissa": ("avx512.mask.getmant.ps.512", V, f"{V} %x, i32 15, {V} %x, {ALL}, {NEAREST}"),
    "fraction": ("avx512.mask.reduce.ps.512", V, f"{V} %x, i32 9, {V} %x, {ALL}, {NEAREST}"),
    "every_second": (
        "avx512.mask.reduce.ps.512", V, f"{V} %x, i32 9, {V} %y, i16 21845, {NEAREST}"
    ),
    "widen": (
        "avx512.mask.vcvtph2ps.512", V, f"<16 x i16> %x, {V} %y, {ALL}, {NEAREST}"
    ),
    "rcp14": ("avx512.rcp14.ps.512", V, f"{V} %x, {V} %x, {ALL}"),
    "rsqrt14": ("avx512.rsqrt14.ps.512", V, f"{V} %x, {V} %x, {ALL}"),
    "permute": ("avx512.permvar.sf.512", V, f"{V} %x, {W} %y"),
    "permute_halves": ("avx512.permvar.hi.512", H, f"{H} %x, {H} %y"),
    "look_up": ("avx512.vpermi2var.ps.512", V, f"{V} %x, {W} %y, {V} %z"),
    "bytes": ("avx512.vpdpbusd.512", W, f"{W} %x, {B} %y, {B} %z"),
    "bytes_256": ("avx512.vpdpbusd.256", "<8 x i32>", "<8 x i32> %x, <32 x i8> %y, <32 x i8> %z"),
    "halves": ("avx512.pmaddw.d.512", W, f"{H} %x, {H} %y"),
    "round": ("avx512bf16.cvtneps2bf16.512", "<16 x bfloat>", f"{V} %x"),
    "round_two": ("avx512bf16.cvtne2ps2bf16.512", D, f"{V} %x, {V} %y"),
    "pairs": ("avx512bf16.dpbf16ps.512", V, f"{V} %x, {D} %y, {D} %z"),
}  # fmt: skip
PRODUCTS = ("tdpbf16ps", "tdpbssd", "tdpbuud")
FEATURES = "+avx512bf16,+avx512vnni,+amx-tile,+amx-bf16,+amx-int8"
_ATTRIBUTES = f'"target-cpu"="skylake-avx512" "target-features"="{FEATURES}"'
_MATTR = ",".join(f"\\22{f}\\22" for f in FEATURES.split(","))
_HEAD = f"""target triple = "x86_64-unknown-linux-gnu"
!llvm.module.flags = !{{!0}}
!0 = !{{i32 2, !"tvm_target", !"{{\\22kind\\22:\\22llvm\\22,\\22mtriple\\22:\\22\
x86_64-unknown-linux-gnu\\22,\\22mcpu\\22:\\22skylake-avx512\\22,\\22mattr\\22:[{_MATTR}]}}"}}
"""


def text():
    """Return the module of all probes."""
    lines, declared = [_HEAD, DECLARATIONS], set()
    for name, (intrinsic, result, given) in VECTORS.items():
        kinds = [re.match(r"<.*?>|\w+", part).group() for part in given.split(", ")]
        declared.add(f"declare {result} @llvm.x86.{intrinsic}({', '.join(kinds)})")
        lines.append(f"define void @{name}(ptr %to, ptr %px, ptr %py, ptr %pz) {_ATTRIBUTES} {{")
        for kind, operand in dict.fromkeys(re.findall(r"(<[^>]*>) %(\w)", given)):
            lines.append(f"  %{operand} = load {kind}, ptr %p{operand}, align 1")
        lines += [f"  %r = call {result} @llvm.x86.{intrinsic}({given})",
                  f"  store {result} %r, ptr %to, align 1", "  ret void", "}"]  # fmt: skip
    for name in PRODUCTS:
        lines += [
            f"define void @{name}(ptr %c, ptr %a, ptr %b, ptr %layout) {_ATTRIBUTES} {{",
            "  call void @llvm.x86.ldtilecfg(ptr %layout)",
            *[f"  call void @llvm.x86.tileloadd64(i8 {tile}, ptr %{operand}, i64 64)"
              for tile, operand in ((0, "c"), (4, "a"), (6, "b"))],
            f"  call void @llvm.x86.{name}(i8 0, i8 4, i8 6)",
            "  call void @llvm.x86.tilestored64(i8 0, ptr %c, i64 64)",
            "  call void @llvm.x86.tilerelease()", "  ret void", "}",
        ]  # fmt: skip
    return "\n".join([*lines, *sorted(declared), ""])


class Probes:
    """The probes in this process; vectors are NumPy arrays of 64 bytes."""

    def __init__(self, folder, *, is_emulated):
        path = folder / f"probes-{is_emulated}.so"
        whole = x86.with_stand_ins(text(), "probes") if is_emulated else text()
        link(assemble(whole), path, x86.objects() if is_emulated else ())
        self._library = ctypes.CDLL(str(path))

    def __call__(self, name, *operands, dtype=np.float32, count=16):
        """Return a vector of ``count`` elements."""
        made = np.zeros(count, dtype)
        given = [np.ascontiguousarray(o) for o in operands]
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (made, *given)]
        getattr(self._library, name)(*pointers, *[None] * (4 - len(pointers)))
        return made

    def multiply(self, name, c, a, b, shape):
        """Return 16 rows of 64 bytes: c + a @ b of tiles of (m, n, k) rows and words."""
        m, n, k = shape
        layout = np.zeros(64, np.uint8)
        layout[0] = 1
        for tile, rows, words in ((0, m, n), (4, m, k), (6, k, n)):
            layout[48 + tile], layout[16 + 2 * tile] = rows, 4 * words
        out = c.copy()
        pointers = [ctypes.c_void_p(x.ctypes.data) for x in (out, a, b, layout)]
        getattr(self._library, name)(*pointers)
        return out
