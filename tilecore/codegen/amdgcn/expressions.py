"""TIR expressions as instructions of LLVM IR."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi

from tilecore.codegen.amdgcn.library import Call, resolve
from tilecore.codegen.amdgcn.values import (
    GLOBAL,
    LLVM_TYPES,
    SPACES,
    Value,
    bits_of,
    floating,
    integer,
    is_float,
    is_unsigned,
    llvm_type,
    memory_type,
)
from tilecore.errors import UnsupportedOnTarget

INTEGER_OPS = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "sdiv", "Mod": "srem",
               "BitwiseAnd": "and", "BitwiseOr": "or", "BitwiseXor": "xor", "And": "and",
               "Or": "or", "LShift": "shl", "RShift": "ashr"}  # fmt: skip
UNSIGNED_OPS = {"sdiv": "udiv", "srem": "urem", "ashr": "lshr"}
FLOAT_OPS = {"Add": "fadd", "Sub": "fsub", "Mul": "fmul", "Div": "fdiv"}
COMPARISONS = {"EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge"}
CALL_OPS = {"bitwise_and": "BitwiseAnd", "bitwise_or": "BitwiseOr", "bitwise_xor": "BitwiseXor",
            "shift_left": "LShift", "shift_right": "RShift"}  # fmt: skip


class Expressions:
    """Collects the instructions of a kernel; ``value`` lowers an expression."""

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.lines: list[str] = []
        self.entry: list[str] = []  # allocations, which stand first
        self.functions: dict[str, str] = {}
        self.names: dict[Any, Value] = {}
        self.block = "entry"
        self._count = 0

    # --- text ---------------------------------------------------------------------------------

    def fresh(self, prefix: str) -> str:
        """Return a new name."""
        self._count += 1
        return f"{prefix}{self._count}"

    def emit(self, text: str) -> None:
        """Append an instruction."""
        self.lines.append(f"  {text}")

    def make(self, text: str, dtype: str, space: int = 0) -> Value:
        """Append an instruction and return its result."""
        name = "%" + self.fresh("v")
        self.emit(f"{name} = {text}")
        return Value(dtype, name, None, space)

    def label(self, name: str) -> None:
        """Begin a block."""
        self.lines.append(f"{name}:")
        self.block = name

    def jump(self, name: str) -> None:
        """End the block."""
        self.emit(f"br label %{name}")

    # --- expressions --------------------------------------------------------------------------

    def value(self, node: Any) -> Value:
        """Return an expression's value."""
        kind = type(node).__name__
        if kind == "IntImm":
            return integer(int(node.value), str(node.ty))
        if kind == "FloatImm":
            return floating(float(node.value), str(node.ty))
        if kind == "Var":
            return self.names[node]
        if kind == "Cast":
            return self.cast(self.value(node.value), str(node.ty))
        if kind == "TensorLoad":
            return self.load(node.source, self.value(node.indices[0]))
        if kind == "Call":
            return self._call(node)
        if kind in ("Not", "BitwiseNot"):
            value = self.value(node.a)
            return self.make(f"xor {value.typed}, {'true' if kind == 'Not' else -1}", value.dtype)
        if kind == "Select":
            return self._choose(node.condition, node.true_value, node.false_value)
        if kind == "Let":
            self.names[node.var] = self.value(node.value)
            return self.value(node.body)
        if kind in ("And", "Or") and _loads(node.b):
            return self._shortcut(kind, node)
        if kind in ("Min", "Max"):
            return self._extremum(kind, self.value(node.a), self.value(node.b))
        return self.binary(kind, self.value(node.a), self.value(node.b))

    def binary(self, kind: str, a: Value, b: Value) -> Value:
        """Return the result of an operator, computed here where both operands are known."""
        if kind in COMPARISONS:
            return self._compare(COMPARISONS[kind], a, b)
        if is_float(a.dtype):
            return self.make(f"{FLOAT_OPS[kind]} contract {a.typed}, {b.text}", a.dtype)
        op = INTEGER_OPS[kind]
        folded = _fold(op, a, b)
        if folded is not None:
            return folded
        if is_unsigned(a.dtype):
            op = UNSIGNED_OPS.get(op, op)
        elif op in ("add", "sub", "mul"):
            op += " nsw"
        return self.make(f"{op} {a.typed}, {b.text}", a.dtype)

    def _compare(self, op: str, a: Value, b: Value) -> Value:
        if is_float(a.dtype):
            ordered = "une" if op == "ne" else f"o{op}"
            return self.make(f"fcmp {ordered} {a.typed}, {b.text}", "bool")
        if a.number is not None and b.number is not None:
            results = {"eq": a.number == b.number, "ne": a.number != b.number,
                       "lt": a.number < b.number, "le": a.number <= b.number,
                       "gt": a.number > b.number, "ge": a.number >= b.number}  # fmt: skip
            return integer(results[op], "bool")
        sign = "" if op in ("eq", "ne") else "u" if is_unsigned(a.dtype) else "s"
        return self.make(f"icmp {sign}{op} {a.typed}, {b.text}", "bool")

    def _extremum(self, kind: str, a: Value, b: Value) -> Value:
        chosen = self._compare("lt" if kind == "Min" else "gt", a, b)
        if chosen.number is not None:
            return a if chosen.number else b
        return self.make(f"select i1 {chosen.text}, {a.typed}, {b.typed}", a.dtype)

    def _shortcut(self, kind: str, node: Any) -> Value:
        """Return ``a and b`` or ``a or b`` where b is only read if a does not decide."""
        known = tvm.tirx.IntImm("bool", int(kind == "Or"))
        return (
            self._choose(node.a, node.b, known)
            if kind == "And"
            else self._choose(node.a, known, node.b)
        )

    def _choose(self, cond: Any, then: Any, other: Any) -> Value:
        """Return one of two values; only that one is computed."""
        chosen = self.value(cond)
        if chosen.number is not None:
            return self.value(then if chosen.number else other)
        yes, no, end = (self.fresh(p) for p in ("then", "else", "end"))
        self.emit(f"br i1 {chosen.text}, label %{yes}, label %{no}")
        self.label(yes)
        first, after_first = self.value(then), self.block
        self.jump(end)
        self.label(no)
        second, after_second = self.value(other), self.block
        self.jump(end)
        self.label(end)
        ends = f"[ {first.text}, %{after_first} ], [ {second.text}, %{after_second} ]"
        return self.make(f"phi {first.type} {ends}", first.dtype, first.space)

    # --- conversions --------------------------------------------------------------------------

    def cast(self, value: Value, dtype: str) -> Value:
        """Return a value converted to another type; floats become integers by truncation."""
        source = value.dtype
        if source == dtype:
            return value
        if value.number is not None:
            return _constant(value.number, dtype)
        if dtype == "bool":
            zero = floating(0.0, source) if is_float(source) else integer(0, source)
            return self._compare("ne", value, zero)
        return self.make(f"{_conversion(source, dtype)} {value.typed} to {llvm_type(dtype)}", dtype)

    def _reinterpret(self, value: Value, dtype: str) -> Value:
        if "handle" in dtype:
            return self.make(f"inttoptr {value.typed} to ptr addrspace({GLOBAL})", "ptr", GLOBAL)
        if value.dtype == "ptr":
            return self.make(f"ptrtoint {value.typed} to {llvm_type(dtype)}", dtype)
        return self.make(f"bitcast {value.typed} to {llvm_type(dtype)}", dtype)

    # --- memory -------------------------------------------------------------------------------

    def element(self, buffer: Any, offset: Value) -> Value:
        """Return a pointer to an element."""
        base = self.names[buffer]
        if offset.number == 0:
            return base
        kind = memory_type(str(buffer.dtype))
        return self.make(
            f"getelementptr inbounds {kind}, {base.typed}, {offset.typed}", "ptr", base.space
        )

    def load(self, buffer: Any, offset: Value) -> Value:
        """Return an element."""
        dtype = str(buffer.dtype)
        where = self.element(buffer, offset)
        align = max(1, bits_of(dtype) // 8)
        if dtype == "bool":
            byte = self.make(f"load i8, {where.typed}, align 1", "uint8")
            return self.make(f"icmp ne i8 {byte.text}, 0", "bool")
        return self.make(f"load {llvm_type(dtype)}, {where.typed}, align {align}", dtype)

    def store(self, buffer: Any, offset: Value, value: Value) -> None:
        """Store an element."""
        dtype = str(buffer.dtype)
        where = self.element(buffer, offset)
        if dtype == "bool":
            value = self.cast(value, "uint8")
        align = max(1, bits_of(dtype) // 8)
        self.emit(f"store {value.typed}, {where.typed}, align {align}")

    # --- calls --------------------------------------------------------------------------------

    def _call(self, node: Any) -> Value:
        name = str(node.op.name).rpartition(".")[2]
        if name == "if_then_else":
            return self._choose(*node.args)
        if name == "address_of":
            (target,) = node.args
            if type(target).__name__ != "TensorLoad":
                raise UnsupportedOnTarget(
                    what="a tensor map", target=self.arch,
                    reason="there are no tensor memory accelerators",
                )  # fmt: skip
            return self.element(target.source, self.value(target.indices[0]))
        if name == "reinterpret":
            return self._reinterpret(self.value(node.args[0]), str(node.ty))
        if name == "buffer_data":
            return self.names[node.args[0]]
        if name in CALL_OPS:
            return self.binary(CALL_OPS[name], *(self.value(a) for a in node.args))
        if name == "bitwise_not":
            value = self.value(node.args[0])
            return self.make(f"xor {value.typed}, -1", value.dtype)
        if name in ("call_pure_extern", "call_extern"):
            return self.function(str(node.args[0].value), node.args[1:], str(node.ty))
        if name == "func_call":
            return self.function(str(node.args[0].value), node.args[1:-1], str(node.ty))
        raise UnsupportedOnTarget(
            what=f"`{node.op.name}`", target=self.arch, reason="no code for it yet"
        )

    def function(self, name: str, given: Any, returns: str) -> Value:
        """Return the result of a device function."""
        kind = returns if returns in LLVM_TYPES else "void"
        args = tuple(self.value(a) for a in given)
        symbol, text = resolve(Call(name, args, kind, self.arch))
        self.functions[symbol] = text
        operands = ", ".join(a.typed for a in args)
        if kind == "void":
            self.emit(f"call void @{symbol}({operands})")
            return Value("void", "")
        return self.make(f"call {llvm_type(kind)} @{symbol}({operands})", kind)

    def space(self, buffer: Any) -> int:
        """Return the address space of a buffer."""
        return SPACES[str(buffer.scope())]


def _loads(node: Any) -> bool:
    """Return whether an expression reads memory."""
    found: list[Any] = []
    tvm_ffi.structural_walk(node, (tvm.ir.TensorLoad, found.append))
    return bool(found)


def _constant(number: int, dtype: str) -> Value:
    if is_float(dtype):
        return floating(float(number), dtype)
    if dtype == "bool":
        return integer(int(number != 0), dtype)
    bits = bits_of(dtype)
    wrapped = number & ((1 << bits) - 1)
    if not is_unsigned(dtype) and wrapped >> (bits - 1):
        wrapped -= 1 << bits
    return integer(wrapped, dtype)


def _conversion(source: str, dtype: str) -> str:
    """Return the instruction that converts between two types."""
    if is_float(source) and is_float(dtype):
        return "fptrunc" if bits_of(dtype) < bits_of(source) else "fpext"
    if is_float(source):
        return "fptoui" if is_unsigned(dtype) else "fptosi"
    if is_float(dtype):
        return "uitofp" if is_unsigned(source) else "sitofp"
    if bits_of(dtype) == bits_of(source):
        return "bitcast"
    if bits_of(dtype) < bits_of(source):
        return "trunc"
    return "zext" if is_unsigned(source) else "sext"


def _fold(op: str, a: Value, b: Value) -> Value | None:
    """Return the value of an integer operator that is known here."""
    if b.number == 0 and op in ("add", "sub", "shl", "ashr", "or", "xor") and a.dtype != "bool":
        return a
    if a.number == 0 and op == "add":
        return b
    if 1 in (a.number, b.number) and op == "mul":
        return a if b.number == 1 else b
    if b.number == 1 and op == "sdiv":
        return a
    if a.number is None or b.number is None or a.dtype == "bool":
        return None
    x, y = a.number, b.number
    if op in ("sdiv", "srem"):
        if y == 0:
            return None
        quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        return _constant(quotient if op == "sdiv" else x - quotient * y, a.dtype)
    results = {"add": x + y, "sub": x - y, "mul": x * y, "and": x & y, "or": x | y, "xor": x ^ y}
    return _constant(results[op], a.dtype) if op in results else None
