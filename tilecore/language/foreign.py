"""Functions of CUDA that programs call by name: T.call_extern, T.import_source.

The C text that a program imports is not compiled for a CPU. What it calls must be one of CUDA's
functions, or one of the decoders of TileLang's `quantize` package, which have a meaning here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from tilecore.errors import TypeMismatch, UnknownPrimitive
from tilecore.frontend.builder import current
from tilecore.ir.dtype import DType
from tilecore.ir.expr import (
    Expr,
    ExprLike,
    as_expr,
    binary,
    cast,
    const,
    int_value,
    reinterpret,
    select,
)
from tilecore.language import ieee, math, numeric, thread
from tilecore.language.pointer import Pointer
from tilecore.language.sync import sync_threads, sync_warp
from tilecore.language.unavailable import FOREIGN
from tilecore.language.warp import fns, match_any_sync

FENCE = "here the atomic access that other blocks wait for orders what lies before it"
FENCE_HINT = (
    'T.atomic_store(flag, value, memory_order="release"), and T.atomic_load(flag, '
    'memory_order="acquire") where it is waited for'
)
__all__ = [
    "call_extern", "call_intrin", "call_pure_extern", "call_pure_intrin", "ffs", "import_source",
    "ldg",
]  # fmt: skip


def import_source(source: str | None = None) -> None:
    """Accept C text; see the head of this module for what T.call_extern knows without it.

    Raises:
        TypeMismatch: not text (TC202).
    """
    if source is not None and not isinstance(source, str):
        raise TypeMismatch(expected="C text", found=type(source).__name__)


def call_extern(*args: Any, dtype: Any = None) -> Any:
    """Call a function by name: ``T.call_extern("float32", "__expf", x)``.

    Args:
        args: result type, name and arguments; with ``dtype`` name and arguments.
        dtype: the result type.

    Returns:
        The value, converted to the result type; nothing for a function that stores its results.

    Raises:
        UnknownPrimitive: a function without a meaning here (TC102).
        TypeMismatch: arguments that it does not take (TC202).
    """
    kind, name, given = (dtype, args[0], args[1:]) if dtype else (args[0], args[1], args[2:])
    plain = str(name).split("::")[-1].split(".")[-1]
    if plain == "__nanosleep":
        return None  # it changes no result
    decode = _DECODER.fullmatch(plain)
    if decode is not None:
        _decode_integers(*_pair(plain, given), *decode.groups())
        return None
    if plain == TWIDDLED:
        source, target = _pair(plain, given)
        _decode_twiddled(source, target, int_value(given[2]) if len(given) > 2 else 8)
        return None
    if plain in _WAITS:
        _WAITS[plain]()
        return None
    known = _FUNCTIONS.get(plain)
    if known is None:
        fences = plain.startswith("__threadfence")
        raise UnknownPrimitive(
            name=f'call_extern("{name}", ...)', reason=FENCE if fences else FOREIGN,
            hint=FENCE_HINT if fences else "",
        )  # fmt: skip
    count, function = known
    counts = (count,) if isinstance(count, int) else count
    if len(given) not in counts:
        expected = " or ".join(map(str, counts))
        raise TypeMismatch(expected=f"{expected} arguments of {plain}", found=len(given))
    return math.cast(function(*given), _result(kind))


call_intrin = call_pure_extern = call_pure_intrin = call_extern


def _result(kind: Any) -> DType:
    if kind == "handle":
        raise TypeMismatch(expected="the type of a value", found="handle")
    return DType(kind)


def ldg(element: Any) -> Expr:
    """Return the element (or what lies at an address), which a GPU reads through its cache."""
    return element.load() if isinstance(element, Pointer) else as_expr(element)


def ffs(value: ExprLike) -> Expr:
    """Return the position of the lowest bit that is set, counted from 1; 0 where none is."""
    bits = as_expr(value)
    if not bits.dtype.is_integer:
        raise TypeMismatch(expected="an integer for __ffs", found=bits.dtype)
    lowest = cast(binary("bitand", bits, binary("sub", 0, bits)), f"uint{bits.dtype.bits}")
    position: Expr = const(1)
    for power in range(bits.dtype.bits.bit_length() - 1):
        chosen = sum(1 << i for i in range(bits.dtype.bits) if i >> power & 1)
        is_in = binary("ne", binary("bitand", lowest, const(chosen, lowest.dtype)), 0)
        position = binary("add", position, select(is_in, 1 << power, 0))
    return select(binary("eq", bits, 0), 0, position)


def _fma(a: ExprLike, b: ExprLike, c: ExprLike) -> Expr:
    return binary("add", binary("mul", a, b), c)


def _operator(op: str) -> Callable[..., Expr]:
    return lambda a, b: binary(op, a, b)


def _mask_first(function: Callable[..., Expr]) -> Callable[..., Expr]:
    """Return a function of a warp that takes the mask of its lanes first, as CUDA has it."""
    return lambda mask, *rest: function(*rest, mask=mask)


def _reduction(function: Callable[[ExprLike], Expr]) -> Callable[..., Expr]:
    """Return a reduction over a warp, of all its lanes, that takes their mask first."""

    def reduced(mask: ExprLike, value: ExprLike) -> Expr:
        if int_value(as_expr(mask)) not in thread.ALL_LANES:
            raise TypeMismatch(expected="a mask of all lanes of the warp (0xFFFFFFFF)", found=mask)
        return function(value)

    return reduced


def _of_a_warp() -> dict[str, tuple[int | tuple[int, ...], Callable[..., Any]]]:
    """Return the same of the functions by which the lanes of a warp tell each other values."""
    shuffles = {"": thread.shfl_sync, "_xor": thread.shfl_xor, "_up": thread.shfl_up,
                "_down": thread.shfl_down}  # fmt: skip
    votes = {"any": thread.any_sync, "all": thread.all_sync, "ballot": thread.ballot_sync,
             "match_any": match_any_sync}  # fmt: skip
    folds = {"add": thread.warp_reduce_sum, "max": thread.warp_reduce_max,
             "min": thread.warp_reduce_min, "and": thread.warp_reduce_bitand,
             "or": thread.warp_reduce_bitor}  # fmt: skip
    return {
        **{f"__shfl{name}_sync": ((3, 4), _mask_first(f)) for name, f in shuffles.items()},
        **{f"__{name}_sync": (2, _mask_first(f)) for name, f in votes.items()},
        **{f"__reduce_{name}_sync": (2, _reduction(f)) for name, f in folds.items()},
        "__activemask": (0, thread.activemask),
    }


def _to_float32(value: ExprLike) -> Expr:
    return cast(value, "float32")


def _nearest(dtype: str) -> Callable[[ExprLike], Expr]:
    return lambda value: cast(_to_float32(value), dtype)


def _towards_zero(dtype: str) -> Callable[[ExprLike], Expr]:
    """Return the conversion of a float32 to 16 bits that drops what does not fit."""

    def converted(value: ExprLike) -> Expr:
        given = current().let("given", _to_float32(value))
        near = current().let("near", cast(given, dtype))
        is_beyond = binary("gt", math.abs(cast(near, "float32")), math.abs(given))
        below = binary("sub", reinterpret(near, "uint16"), const(1, "uint16"))
        return select(is_beyond, reinterpret(below, dtype), near)

    return converted


def _conversions() -> dict[str, tuple[int | tuple[int, ...], Callable[..., Any]]]:
    """Return the same of the functions that convert values, or read their bits as another type."""
    found: dict[str, tuple[int | tuple[int, ...], Callable[..., Any]]] = {
        "__half2float": (1, _to_float32), "__bfloat162float": (1, _to_float32)
    }  # fmt: skip
    for name, dtype in (("half", "float16"), ("bfloat16", "bfloat16")):
        found |= {f"__float2{name}{mode}": (1, _nearest(dtype)) for mode in ("", "_rn")}
        found[f"__float2{name}_rz"] = (1, _towards_zero(dtype))
    for name, dtype in (("int", "int32"), ("uint", "uint32")):
        found[f"__float_as_{name}"] = (1, lambda x, to=dtype: reinterpret(_to_float32(x), to))
        found[f"__{name}_as_float"] = (
            1, lambda x, own=dtype: reinterpret(cast(x, own), "float32")
        )  # fmt: skip
    return found


def _rounded(function: Callable[..., Expr], dtype: str, mode: str) -> Callable[..., Expr]:
    """Return a function of numbers of a type that rounds its result in one direction."""
    return lambda *given: function(*(cast(v, dtype) for v in given), rounding_mode=mode)


def _of_one_rounding() -> dict[str, tuple[int | tuple[int, ...], Callable[..., Any]]]:
    """Return the same of the functions that say how they round: ``__fadd_rn``, ``__drcp_ru``."""
    functions: dict[str, tuple[int, Callable[..., Expr]]] = {
        "add": (2, ieee.ieee_add), "sub": (2, ieee.ieee_sub), "mul": (2, ieee.ieee_mul),
        "div": (2, ieee.ieee_fdiv), "rcp": (1, ieee.ieee_frcp), "sqrt": (1, ieee.ieee_fsqrt),
    }  # fmt: skip
    found: dict[str, tuple[int | tuple[int, ...], Callable[..., Any]]] = {
        "__frsqrt_rn": (1, lambda x: ieee.ieee_frsqrt(_to_float32(x)))
    }
    for mode in ieee.MODES:
        for letter, dtype in (("f", "float32"), ("d", "float64")):
            found |= {
                f"__{letter}{name}_{mode}": (count, _rounded(function, dtype, mode))
                for name, (count, function) in functions.items()
            }
        found[f"__fmaf_{mode}"] = (3, _rounded(ieee.ieee_fmaf, "float32", mode))
        found[f"__fma_{mode}"] = (3, _rounded(ieee.ieee_fmaf, "float64", mode))
    return found


def _table() -> dict[str, tuple[int | tuple[int, ...], Callable[..., Any]]]:
    """Return the number of arguments and the meaning of CUDA's functions."""
    one: dict[str, Callable[..., Any]] = {
        name: getattr(math, name)
        for name in ("exp", "exp2", "exp10", "log", "log2", "log10", "log1p", "sqrt", "rsqrt",
                     "tanh", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "erf",
                     "floor", "ceil", "trunc", "round")
    }  # fmt: skip
    one |= {"fabs": math.abs, "rint": math.nearbyint, "nearbyint": math.nearbyint}
    one |= {name: getattr(numeric, name) for name in ("asinh", "acosh", "atanh")}
    two = {
        "fmax": _operator("max"), "fmin": _operator("min"), "pow": math.pow, "fmod": math.fmod,
        "atan2": math.atan2, "fdivide": _operator("div"),
        **{name: getattr(numeric, name) for name in ("copysign", "hypot", "ldexp", "nextafter")},
    }  # fmt: skip
    found = _of_a_warp() | _conversions() | _of_one_rounding()
    for count, functions in ((1, one), (2, two), (3, {"fma": _fma})):
        for name, function in functions.items():
            for spelling in (name, f"{name}f", f"__{name}", f"__{name}f", f"h{name}"):
                found[spelling] = (count, function)
    return found | {
        "fast_exp2f": (1, math.exp2), "fast_expf": (1, math.exp), "__ldg": (1, ldg),
        "__ffs": (1, ffs), "__ffsll": (1, ffs), "__fns": (3, fns), "max": (2, math.max),
        "__popc": (1, numeric.popcount), "__popcll": (1, numeric.popcount),
        "__clz": (1, numeric.clz), "__clzll": (1, numeric.clz),
        "min": (2, math.min), "abs": (1, math.abs),
    }  # fmt: skip


_FUNCTIONS = _table()
_WAITS: dict[str, Callable[[], None]] = {"__syncthreads": sync_threads, "__syncwarp": sync_warp}


# --- decoders of packed weights ----------------------------------------------------------------

_DECODER = re.compile(r"decode_i([124])([us])_to_(f16|i8s)")
TWIDDLED = "decode_fp4_to_bf16_twiddling"


def _pair(name: str, args: Sequence[Any]) -> tuple[Pointer, Pointer]:
    if len(args) < 2 or not all(isinstance(a, Pointer) for a in args[:2]):
        raise TypeMismatch(expected=f"two addresses (T.access_ptr) for {name}", found=f"{args}")
    return args[0], args[1]


def _place(bits: int, to: str, e: int) -> tuple[int, int]:
    """Return the byte and the shift at which element ``e`` lies in an interleaved word."""
    if to == "f16":  # pairs (2i, 2i + 1) lie half of the input apart
        half, pair = e % 2, e // 2
        position = {4: 16, 2: 8, 1: 4}[bits] * half + bits * pair
        return position // 8, position % 8
    lane, row = e % 4, e // 4  # one in each byte of a 32-bit word
    if bits == 1:  # the halves of two bytes
        return lane % 2, 4 * (lane // 2) + row
    per_word = 8 // bits
    return 4 * (row // per_word) + lane, bits * (row % per_word)


def _decode_integers(source: Pointer, target: Pointer, bits: str, sign: str, to: str) -> None:
    width = int(bits)
    for e in range(8 if to == "f16" else 16):
        byte, shift = _place(width, to, e)
        code = binary("bitand", binary("shr", source.byte(byte), shift), (1 << width) - 1)
        if sign == "s" and width == 1:
            code = binary("sub", binary("mul", code, 2), 1)
        elif sign == "s":
            zero = 7 if (width, to) == (4, "i8s") else 1 << (width - 1)
            code = binary("sub", code, zero)
        target.store(e, code)


# In the 16 bits of two bytes, high one first: the places of sign, exponent and fraction.
_TWIDDLE = ((15, 7, 6), (12, 4, 3), (9, 1, 0), (14, 10, 13))


def _decode_twiddled(source: Pointer, target: Pointer, groups: int | None) -> None:
    """Decode 8 numbers of float4_e2m1fn from each 4 bytes."""
    if groups is None:
        raise TypeMismatch(expected="a known number of groups", found="an expression")
    for group in range(groups):
        for half in range(2):
            high, low = (source.byte(4 * group + 2 * half + i) for i in (0, 1))
            word = binary("bitor", binary("shl", high, 8), low)
            for number, (sign, exponent, fraction) in enumerate(_TWIDDLE):
                code: Expr = const(0)
                for place, width, to in ((sign, 1, 3), (exponent, 2, 1), (fraction, 1, 0)):
                    field = binary("bitand", binary("shr", word, place), (1 << width) - 1)
                    code = binary("bitor", code, binary("shl", field, to))
                value = reinterpret(cast(code, "uint4"), "float4_e2m1fn")
                target.store(8 * group + 4 * half + number, value)
