"""Scalar expressions of the tile IR: immutable, typed, foldable, independent of TVM.

Grammar (every node carries ``dtype``)::

    expr = Var(name, dtype)                      loop or block index, dynamic dim, knob, let
         | Pointer(name, dtype)                  address of a tensor, passed by the caller
         | Const(value, dtype)                   int, float or bool literal
         | Binary(op, a, b)                      op in BINARY_OPS
         | Unary(op, a)                          op in UNARY_OPS
         | Select(cond, a, b)                    value of a or b; only the chosen side is meaningful
         | Cast(a, dtype)
         | Load(buffer, indices)                 element of a tile or tensor
         | Call(name, args)                      function in CALLS or PAIRED, "reinterpret", ...

Python operators on an ``Expr`` build expressions: ``a // b`` and ``a % b`` are floor division and
floor remainder, ``a / b`` is true division on floats. Constants fold at once, with the rounding of
the dtype. Comparison operators build expressions too, so ``==`` on two ``Expr`` is a node, never a
truth value; identity (``is``) compares nodes.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from tilecore.errors import TypeMismatch
from tilecore.ir.dtype import DType, promote
from tilecore.ir.values.conversion import nearest

if TYPE_CHECKING:
    from tilecore.ir.nodes import Buffer

ExprLike = Union["Expr", int, float, bool]

ARITHMETIC = ("add", "sub", "mul", "div", "floordiv", "mod", "min", "max", "pow")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
LOGICAL = ("and", "or")
BITWISE = ("bitand", "bitor", "bitxor", "shl", "shr")
SHOWN = 60  # characters of a value in a message
LITERAL_BITS = 32  # of a Python number beside a narrower operand
OF_NUMBERS = (*ARITHMETIC, "lt", "le", "gt", "ge", "shl", "shr")  # truths are 0 and 1 to them
BINARY_OPS = ARITHMETIC + COMPARISONS + LOGICAL + BITWISE
UNARY_OPS = ("neg", "not", "bitnot")
# Arithmetic with a stated rounding (to nearest, to zero, up, down) and its number of arguments.
ROUNDED = {"add_rn": 2, "mul_rn": 2, "fma_rn": 3} | {
    f"{op}_{mode}": count
    for op, count in (("add", 2), ("mul", 2), ("div", 2), ("fma", 3), ("sqrt", 1))
    for mode in ("rz", "ru", "rd")
}
# Arithmetic on two numbers of 16 bits that share a uint32, and its number of arguments.
PAIRED = {"fma2_bfloat16": 3, "fma2_float16": 3}
NUM_THREADS = "num_threads"
CALLS = (
    "exp", "exp2", "exp10", "log", "log2", "log10", "sqrt", "rsqrt", "tanh", "sigmoid", "erf",
    "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "log1p", "fmod", "abs",
    "floor", "ceil", "round", "trunc", *ROUNDED,
)  # fmt: skip
QUICK_CALLS = ("abs", "floor", "ceil", "round", "trunc", "reinterpret")  # an instruction each


INT32 = DType("int32")


class Expr:
    """Base of all scalar expressions; ``dtype`` is the type of the value."""

    __slots__ = ()
    __hash__ = object.__hash__
    dtype: DType

    def __bool__(self) -> bool:
        raise TypeMismatch(
            expected="a value known while the program is traced",
            found=f"`{self}`, known only when the kernel runs",
            hint="use `if` inside the kernel body, T.if_then_else, T.max or T.min (not max, min), "
            "x == a or x == b (not x in (a, b)), or a Python constant",
        )

    def __float__(self) -> float:
        raise TypeMismatch(
            expected="a number known while the program is traced",
            found=f"`{self}`, known only when the kernel runs",
            hint="values of a kernel are computed by functions of T: T.exp(x), not math.exp(x)",
        )

    def __index__(self) -> int:
        raise TypeMismatch(
            expected="an integer known while the program is traced",
            found=f"`{self}`, known only when the kernel runs",
            hint="index a tensor or tile instead of a Python list, loop with T.serial, "
            "or unroll by a loop over the list itself (`for x in items`, enumerate, zip)",
        )

    def __add__(self, other: ExprLike) -> Expr:
        return binary("add", self, other)

    def __radd__(self, other: ExprLike) -> Expr:
        return binary("add", other, self)

    def __sub__(self, other: ExprLike) -> Expr:
        return binary("sub", self, other)

    def __rsub__(self, other: ExprLike) -> Expr:
        return binary("sub", other, self)

    def __mul__(self, other: ExprLike) -> Expr:
        return binary("mul", self, other)

    def __rmul__(self, other: ExprLike) -> Expr:
        return binary("mul", other, self)

    def __truediv__(self, other: ExprLike) -> Expr:
        return binary("div", self, other)

    def __rtruediv__(self, other: ExprLike) -> Expr:
        return binary("div", other, self)

    def __floordiv__(self, other: ExprLike) -> Expr:
        return binary("floordiv", self, other)

    def __rfloordiv__(self, other: ExprLike) -> Expr:
        return binary("floordiv", other, self)

    def __mod__(self, other: ExprLike) -> Expr:
        return binary("mod", self, other)

    def __rmod__(self, other: ExprLike) -> Expr:
        return binary("mod", other, self)

    def __rpow__(self, other: ExprLike) -> Expr:
        return binary("pow", other, self)

    def __pow__(self, other: ExprLike) -> Expr:
        return binary("pow", self, other)

    def __neg__(self) -> Expr:
        return unary("neg", self)

    def __invert__(self) -> Expr:
        return unary("bitnot", self)

    def __and__(self, other: ExprLike) -> Expr:
        return binary("bitand", self, other)

    def __rand__(self, other: ExprLike) -> Expr:
        return binary("bitand", other, self)

    def __or__(self, other: ExprLike) -> Expr:
        return binary("bitor", self, other)

    def __ror__(self, other: ExprLike) -> Expr:
        return binary("bitor", other, self)

    def __xor__(self, other: ExprLike) -> Expr:
        return binary("bitxor", self, other)

    def __rxor__(self, other: ExprLike) -> Expr:
        return binary("bitxor", other, self)

    def __lshift__(self, other: ExprLike) -> Expr:
        return binary("shl", self, other)

    def __rlshift__(self, other: ExprLike) -> Expr:
        return binary("shl", other, self)

    def __rshift__(self, other: ExprLike) -> Expr:
        return binary("shr", self, other)

    def __rrshift__(self, other: ExprLike) -> Expr:
        return binary("shr", other, self)

    def __lt__(self, other: ExprLike) -> Expr:
        return binary("lt", self, other)

    def __le__(self, other: ExprLike) -> Expr:
        return binary("le", self, other)

    def __gt__(self, other: ExprLike) -> Expr:
        return binary("gt", self, other)

    def __ge__(self, other: ExprLike) -> Expr:
        return binary("ge", self, other)

    def __eq__(self, other: object) -> Any:
        return binary("eq", self, other)  # type: ignore[arg-type]

    def __ne__(self, other: object) -> Any:
        return binary("ne", self, other)  # type: ignore[arg-type]

    def astype(self, dtype: str) -> Expr:
        """Return this value converted to ``dtype``."""
        return cast(self, dtype)

    def __str__(self) -> str:
        from tilecore.ir.printer import format_expr

        return format_expr(self)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Var(Expr):
    """A named scalar; two Vars are the same only if they are the same object."""

    name: str
    dtype: DType = INT32


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Pointer(Var):
    """A parameter that holds the address of a tensor of ``target`` elements (None: not said)."""

    target: DType | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Const(Expr):
    """A literal of the given dtype."""

    value: int | float | bool
    dtype: DType

    def __bool__(self) -> bool:
        return bool(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)  # type: ignore[arg-type]  # a float is refused


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Binary(Expr):
    """``a op b``; operands have one dtype (comparisons and logic give bool)."""

    op: str
    a: Expr
    b: Expr
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Unary(Expr):
    """``op a``."""

    op: str
    a: Expr
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Select(Expr):
    """``a`` where ``cond`` holds, else ``b``."""

    cond: Expr
    a: Expr
    b: Expr
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cast(Expr):
    """``a`` converted to ``dtype`` (float to int truncates toward zero)."""

    a: Expr
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Load(Expr):
    """One element of ``buffer``; outside a global tensor the value is 0."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call(Expr):
    """A math function of CALLS; "reinterpret" gives the bits of its argument another type.

    NUM_THREADS has no arguments: how many threads run the blocks of a launch, where versions of it
    are chosen (``ir.versions``).
    """

    name: str
    args: tuple[Expr, ...]
    dtype: DType


def const(value: float | bool, dtype: str | None = None) -> Const:
    """Return a literal; without ``dtype``: bool, int32 (int64 where needed) or float32.

    One of float32, which may become a float64, keeps its digits; of 16 bits and less it is rounded.

    Raises:
        TypeMismatch: an integer without ``dtype`` that int64 does not hold (TC202).
    """
    if dtype is None:
        if isinstance(value, (bool, np.bool_)):
            dtype = "bool"
        elif isinstance(value, (int, np.integer)):
            dtype = "int32" if -(2**31) <= int(value) < 2**31 else "int64"
            if not holds(dtype, int(value)):
                raise TypeMismatch(expected="an integer below 2^63", found=value)
        else:
            dtype = "float32"
    kind = DType(dtype)
    if kind.is_float:
        return Const(float(value) if kind.bits >= 32 else nearest(value, kind), kind)
    if kind == "bool":
        return Const(bool(value), kind)
    return Const(int(value), kind)


def holds(dtype: str, value: int) -> bool:
    """Return whether a type (bool excepted) has this integer."""
    kind = DType(dtype)
    if kind.is_float or kind == "bool":
        return kind.is_float
    low, high = kind.ends
    return low <= value <= high


def _within(value: float | bool, dtype: DType) -> Const:
    """Return what comes of literals: unsigned and narrow integers wrap around."""
    is_narrow = dtype.is_integer and (dtype.bits < LITERAL_BITS or not dtype.is_signed)
    return Const(dtype.wrapped(int(value)), dtype) if is_narrow else const(value, dtype)


def as_expr(value: ExprLike, like: str | None = None) -> Expr:
    """Return ``value`` as an expression; a Python number takes the dtype ``like`` where it fits."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, (bool, np.bool_)):
        return const(bool(value))
    if isinstance(value, (int, np.integer)):
        if like is not None and holds(like, int(value)):
            return const(int(value), like)
        return const(int(value))
    if isinstance(value, (float, np.floating)):
        if like is not None and DType(like).is_float:
            return const(float(value), like)
        return const(float(value))
    raise TypeMismatch(
        expected="a number or a scalar expression",
        found=f"{type(value).__name__}: {_shortened(value)}", hint=_hint_for(value),
    )  # fmt: skip


def _shortened(value: object) -> str:
    """Return what a message says of a value that is none of the language's."""
    if isinstance(value, tuple):
        return f"({', '.join(_shortened(v) for v in value)})"
    lines = (str(value) if isinstance(value, Expr) else repr(value)).splitlines() or [""]
    is_whole = len(lines) == 1 and len(lines[0]) <= SHOWN
    return lines[0] if is_whole else f"{lines[0][:SHOWN]}..."


def _hint_for(value: object) -> str | None:
    """Return what to do with a value that is none of the language's, where that is known."""
    if isinstance(value, tuple) and any(isinstance(v, Var) for v in value):
        for_loops = "`for i, j in T.Parallel(m, n)`"
        return f"a name for each axis: `with T.Kernel(m, n) as (bx, by)`, {for_loops}"
    if hasattr(value, "__dlpack__"):
        return "the function that makes a program takes sizes; its kernel takes the tensors"
    return None


def int_value(value: ExprLike) -> int | None:
    """Return the Python int if ``value`` is a known integer, else None."""
    if isinstance(value, Const) and value.dtype.is_integer:
        return int(value.value)
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    return None


def known_or(value: Expr) -> Expr | int:
    """Return the Python int if ``value`` is a known integer, else ``value``."""
    number = int_value(value)
    return value if number is None else number


def is_zero(value: Expr) -> bool:
    """Return whether ``value`` is known to be 0, of either sign."""
    return isinstance(value, Const) and value.value == 0


def is_plus_zero(value: Expr) -> bool:
    """Return whether ``value`` is known to be 0, and not -0.0."""
    return is_zero(value) and isinstance(value, Const) and math.copysign(1, value.value) > 0


def _floordiv(a: Any, b: Any) -> Any:
    if b == 0:
        raise TypeMismatch(expected="a divisor other than 0", found=f"{a} // 0")
    return a // b


def _mod(a: Any, b: Any) -> Any:
    if b == 0:
        raise TypeMismatch(expected="a divisor other than 0", found=f"{a} % 0")
    return a % b


_FOLD: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": _floordiv,
    "mod": _mod, "min": min, "max": max, "eq": operator.eq, "ne": operator.ne,
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "and": lambda a, b: a and b, "or": lambda a, b: a or b, "bitand": operator.and_,
    "bitor": operator.or_, "bitxor": operator.xor, "shl": operator.lshift, "shr": operator.rshift,
}  # fmt: skip
# Of two literals of one of these types these give a literal of the same type: most of what is
# folded where sizes take the place of symbols.
_WHOLE, _FOLD_WHOLE = ("int32", "int64"), {"add", "sub", "mul", "floordiv", "mod", "min", "max"}


def binary(op: str, left: ExprLike, right: ExprLike) -> Expr:
    """Return ``left op right`` with promoted operands, folded where both are known integers.

    Raises:
        TypeMismatch: operands are not numbers, or the op does not exist for their dtype.
    """
    if type(left) is Const and type(right) is Const and _folds_to_its_type(op, left, right):
        return Const(_FOLD[op](left.value, right.value), left.dtype)
    if not isinstance(left, Expr) and not isinstance(right, Expr):
        left = as_expr(left)
    if isinstance(left, Expr):
        a = _computed(left)
        b = _computed(_beside(a.dtype, right, op))
    else:
        b = _computed(as_expr(right))
        a = _beside(b.dtype, left, op)
    if op in LOGICAL:
        a, b = as_bool(a), as_bool(b)
        dtype = DType("bool")
    else:
        dtype = promote(a.dtype, b.dtype)
        if op == "div" and not dtype.is_float:
            dtype = DType("float32")
        if dtype == "bool" and op in OF_NUMBERS:
            dtype = DType("int32")  # as in C: two truths sum up to 2
        if op in BITWISE and dtype.is_float:
            raise TypeMismatch(expected=f"integers for `{op}`", found=f"{a.dtype} and {b.dtype}")
        a, b = cast(a, dtype), cast(b, dtype)
    result = DType("bool") if op in COMPARISONS or op in LOGICAL else dtype
    return _fold_binary(op, a, b, result)


def _folds_to_its_type(op: str, a: Const, b: Const) -> bool:
    return op in _FOLD_WHOLE and a.dtype == b.dtype and a.dtype in _WHOLE


def _beside(kind: DType, value: ExprLike, op: str = "") -> Expr:
    """Return ``value`` as an operand of ``op`` beside one of type ``kind``.

    A Python number keeps its own type where that is wider, as in TVM: a float beside a float16 is
    a float32, an int beside an int8 an int32. Bit operations keep the type of their operand.
    """
    is_fraction = isinstance(value, (float, np.floating))
    keeps = op in BITWISE or (kind.is_float and not is_fraction) or kind.bits >= LITERAL_BITS
    return as_expr(value, kind if keeps else None)


def _computed(value: Expr) -> Expr:
    """Return a value in the type that arithmetic takes place in."""
    return cast(value, value.dtype.computed)


def _fold_binary(op: str, a: Expr, b: Expr, result: DType) -> Expr:
    integral = isinstance(a, Const) and isinstance(b, Const) and not a.dtype.is_float
    if integral and op in _FOLD:
        assert isinstance(a, Const)
        assert isinstance(b, Const)
        value = _FOLD[op](a.value, b.value)
        if op != "shl" or result.bits >= LITERAL_BITS or holds(result, value):  # see ``cast``
            return _within(value, result)
    if not a.dtype.is_float:
        zero_b, one_b = int_value(b) == 0, int_value(b) == 1
        zero_a, one_a = int_value(a) == 0, int_value(a) == 1
        if (op in ("add", "sub") and zero_b) or (op in ("mul", "floordiv") and one_b):
            return a
        if (op == "add" and zero_a) or (op == "mul" and one_a):
            return b
        if op == "mul" and (zero_a or zero_b):
            return const(0, result)
        if op == "mod" and one_b:
            return const(0, result)
    if op in LOGICAL:
        for known, other in ((a, b), (b, a)):
            if isinstance(known, Const):
                decides = bool(known.value) == (op == "or")
                return known if decides else other
    return Binary(op, a, b, result)


def unary(op: str, value: ExprLike) -> Expr:
    """Return ``op value``, folded where known."""
    a = _computed(as_expr(value))
    if op == "not":
        a = as_bool(a)
        return const(not a.value, "bool") if isinstance(a, Const) else Unary("not", a, a.dtype)
    if op == "neg" and a.dtype == "bool":
        a = cast(a, "int32")
    if isinstance(a, Const) and op == "neg":
        return _within(-a.value, a.dtype)
    if op == "bitnot" and a.dtype.is_float:
        raise TypeMismatch(expected="an integer for `~`", found=a.dtype)
    if op == "bitnot" and isinstance(a, Const):
        return _within(~int(a.value), a.dtype)
    return Unary(op, a, a.dtype)


def as_bool(value: ExprLike) -> Expr:
    """Return ``value`` as a truth value (numbers compare against 0)."""
    a = as_expr(value)
    return a if a.dtype == "bool" else binary("ne", a, 0)


def _shifts_left(expr: Expr) -> bool:
    """Return whether a value is shifted to the left, alone or beside others."""
    if not isinstance(expr, Binary) or expr.op not in ("shl", "add", "bitor", "bitxor"):
        return False
    return expr.op == "shl" or _shifts_left(expr.a) or _shifts_left(expr.b)


def cast(value: ExprLike, dtype: str) -> Expr:
    """Return ``value`` converted to ``dtype``; literals convert at once.

    Bits that a shift moves beyond a narrow integer are kept where its value, or what it is put
    together with (``(high << 16) + low``), is made wider at once: TileLang's CUDA code shifts in C,
    where integers of less than 32 bits are shifted as int.
    """
    kind = DType(dtype)
    a = as_expr(value, kind)
    if a.dtype == kind:
        return a
    if isinstance(a, Binary) and a.dtype.bits < LITERAL_BITS <= kind.bits and _shifts_left(a):
        return cast(binary(a.op, cast(a.a, "int32"), cast(a.b, "int32")), kind)
    if isinstance(a, Const):
        finite = not isinstance(a.value, float) or math.isfinite(a.value)
        if kind.is_float or (finite and (kind == "bool" or holds(kind, int(a.value)))):
            return const(a.value if kind.is_float or kind == "bool" else int(a.value), kind)
        if not a.dtype.is_float:
            return Const(kind.wrapped(int(a.value)), kind)
    return Cast(a, kind)


def select(cond: ExprLike, a: ExprLike, b: ExprLike) -> Expr:
    """Return ``a`` where ``cond`` holds, else ``b``, in their common dtype."""
    test = as_bool(cond)
    left = _beside(b.dtype, a) if isinstance(b, Expr) else as_expr(a)
    right = _beside(left.dtype, b) if isinstance(a, Expr) else as_expr(b, left.dtype)
    dtype = promote(left.dtype, right.dtype)
    left, right = cast(left, dtype), cast(right, dtype)
    if isinstance(test, Const):
        return left if test.value else right
    return Select(test, left, right, dtype)


def call(name: str, *args: ExprLike) -> Expr:
    """Return the math function ``name`` of CALLS applied to ``args``."""
    if name not in CALLS:
        raise TypeMismatch(expected=f"one of {', '.join(CALLS)}", found=name)
    like = next((a.dtype.computed for a in args if isinstance(a, Expr)), None)
    values = tuple(_computed(as_expr(a, like)) for a in args)
    dtype = functools.reduce(promote, (v.dtype for v in values))
    if not dtype.is_float:
        whole = DType("int32") if dtype == "bool" else dtype
        dtype = whole if name == "abs" else DType("float32")
        if dtype.startswith("uint"):
            return values[0]
    return Call(name, tuple(cast(v, dtype) for v in values), dtype)


def reinterpret(value: ExprLike, dtype: str) -> Expr:
    """Return the bits of ``value`` as a value of ``dtype``.

    Raises:
        TypeMismatch: the types differ in width (TC202).
    """
    a, kind = as_expr(value), DType(dtype)
    if a.dtype.bits != kind.bits or "bool" in (a.dtype, kind):
        raise TypeMismatch(expected=f"a value of {kind.bits} bits for {kind}", found=a.dtype)
    return a if a.dtype == kind else Call("reinterpret", (a,), kind)


def num_threads() -> Expr:
    """Return how many threads run the blocks of a launch; the oracle has one."""
    return Call(NUM_THREADS, (), DType("int32"))


def ceildiv(a: ExprLike, b: ExprLike) -> Expr | int:
    """Return ceil(a / b) for integers (a >= 0, b > 0); a Python int if both are."""
    if isinstance(a, int) and isinstance(b, int):
        return int(_floordiv(a + b - 1, b))
    return binary("floordiv", binary("sub", binary("add", a, b), 1), b)
