"""Functions of the C library in LLVM IR.

What LLVM expands for AMD GPUs in float32 is taken as it is; tanh and erf are polynomials and
exponentials (errors below two units in the last place, see tests/tilecore/rocm), wide_functions.py
has those with angles, powers and hyperbolas. Of float64 there are roots, remainders and roundings;
others need a library.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilecore.codegen.amdgcn.values import floating
from tilecore.codegen.amdgcn.wide_functions import wide_body

EXACT = {
    "floor": "floor", "ceil": "ceil", "rint": "rint", "trunc": "trunc", "fabs": "fabs",
    "fmax": "maxnum", "fmin": "minnum", "sqrt": "sqrt",
}  # fmt: skip
# In float32 only: expanded to the unit for exponentials and logarithms and what corrects it.
EXPANDED = {
    "exp": "exp", "exp2": "exp2", "exp10": "exp10", "log": "log", "log2": "log2", "log10": "log10"
}  # fmt: skip
TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1,
        -3.33332819422e-1)  # fmt: skip
ERF_NEAR = (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1,
            1.28379166e-1)  # fmt: skip
ERF_FAR = (-1.06777877e-1, -6.34846687e-1, -1.28717512e-1)


def body(name: str, dtype: str, arguments: int) -> str | None:
    """Return the LLVM text of a function's body ("expf" of float32, "exp" of float64), or None."""
    plain = name.removesuffix("f") if dtype == "float32" else name
    kind, suffix = {"float32": ("float", "f32"), "float64": ("double", "f64")}.get(dtype, ("", ""))
    if plain in EXACT and kind:
        return _intrinsic(EXACT[plain], kind, suffix, arguments)
    if plain == "fmod" and kind:
        return f"  %r = frem {kind} %a0, %a1\n  ret {kind} %r"
    if plain == "rsqrt" and kind:
        return _rsqrt(kind, suffix)
    if dtype != "float32":
        return None
    if plain in EXPANDED:
        return _intrinsic(EXPANDED[plain], kind, suffix, arguments)
    made = {"tanh": _tanh, "erf": _erf}.get(plain)
    return wide_body(plain) if made is None else made()


def _intrinsic(name: str, kind: str, suffix: str, arguments: int) -> str:
    given = ", ".join(f"{kind} %a{i}" for i in range(arguments))
    return f"  %r = call {kind} @llvm.{name}.{suffix}({given})\n  ret {kind} %r"


def _rsqrt(kind: str, suffix: str) -> str:
    return f"""  %s = call {kind} @llvm.sqrt.{suffix}({kind} %a0)
  %r = fdiv {kind} 1.0, %s
  ret {kind} %r"""


def _number(value: float) -> str:
    return floating(value, "float32").text


def _horner(name: str, at: str, coefficients: Sequence[float], start: str | None = None) -> str:
    """Return the steps of a polynomial, the result in ``%name``."""
    text, last = "", start or _number(coefficients[0])
    rest = coefficients if start else coefficients[1:]
    for number, value in enumerate(rest):
        made = f"%{name}" if number == len(rest) - 1 else f"%{name}{number}"
        text += f"  {made} = call float @llvm.fma.f32(float {last}, float {at}, float {_number(value)})\n"  # noqa: E501
        last = made
    return text


def _tanh() -> str:
    """Return x + x z P(z) for |x| < 0.625 (Cephes), else 1 - 2 / (exp(2 |x|) + 1)."""
    return (
        "  %z = fmul float %a0, %a0\n" + _horner("p", "%z", TANH)
        + f"""  %xz = fmul float %a0, %z
  %near = call float @llvm.fma.f32(float %xz, float %p, float %a0)
  %t = call float @llvm.fabs.f32(float %a0)
  %t2 = fadd float %t, %t
  %e = call float @llvm.exp.f32(float %t2)
  %e1 = fadd float %e, 1.0
  %q = fdiv float 2.0, %e1
  %m = fsub float 1.0, %q
  %far = call float @llvm.copysign.f32(float %m, float %a0)
  %isnear = fcmp olt float %t, {_number(0.625)}
  %r = select i1 %isnear, float %near, float %far
  ret float %r"""
    )  # fmt: skip


def _erf() -> str:
    """Return x + x P(x^2) for |x| <= 0.921875, else 1 - exp(Q(|x|))."""
    return (
        "  %s = fmul float %a0, %a0\n  %t = call float @llvm.fabs.f32(float %a0)\n"
        + _horner("p", "%s", ERF_NEAR)
        + f"""  %near = call float @llvm.fma.f32(float %p, float %a0, float %a0)
  %r0 = call float @llvm.fma.f32(float {_number(-1.72853470e-5)}, float %t, float {_number(3.83197126e-4)})
  %u0 = call float @llvm.fma.f32(float {_number(-3.88396438e-3)}, float %t, float {_number(2.42546219e-2)})
  %r1 = call float @llvm.fma.f32(float %r0, float %s, float %u0)
"""  # noqa: E501
        + _horner("f", "%t", ERF_FAR, "%r1")
        + f"""  %minus = fneg float %t
  %g = call float @llvm.fma.f32(float %f, float %t, float %minus)
  %e = call float @llvm.exp.f32(float %g)
  %m = fsub float 1.0, %e
  %far = call float @llvm.copysign.f32(float %m, float %a0)
  %isfar = fcmp ogt float %t, {_number(0.921875)}
  %r = select i1 %isfar, float %far, float %near
  ret float %r"""
    )
