"""What CUDA's compiler does not join by itself: halves of a word, and masks.

Two neighbours of 16 bits in registers that are the halves of one word are stored as that word: it
is taken apart and put together again otherwise, by three instructions. ``x & mask | bits`` is one
instruction.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx as tir
from tvm.ir.prim.expr import BitwiseAnd, BitwiseOr, RShift
from tvm.sym.analyzer import Analyzer

from tilecore.lowering.cuda.instructions.convert import pack_halves
from tilecore.lowering.cuda.instructions.math import masked_or
from tilecore.lowering.tir import index

HALF = 16  # bits
WORDS = ("int32", "uint32")


def join_halves(func: Any) -> Any:
    """Return a PrimFunc in which they are joined."""
    found = tvm_ffi.structural_map(func, (tir.For, _joined))
    return tvm_ffi.structural_map(found, (BitwiseOr, _masked))


def _masked(value: Any) -> Any:
    """Return ``x & mask | bits`` of 32 bits, both literals, as one instruction."""
    kind, masked = str(value.ty), value.a
    is_known = isinstance(value.b, tir.IntImm) and kind in WORDS
    if not is_known or not isinstance(masked, BitwiseAnd) or not isinstance(masked.b, tir.IntImm):
        return value
    given = [tir.Cast("uint32", masked.a)]
    given += [tir.IntImm("uint32", int(v) % 2**32) for v in (masked.b, value.b)]
    return tir.Cast(kind, masked_or().call(*given))


def _joined(loop: Any) -> Any:
    if not (isinstance(loop.extent, tir.IntImm) and int(loop.extent) == 2):
        return loop
    *binds, store = loop.body.seq if isinstance(loop.body, tir.SeqStmt) else (loop.body,)
    if not isinstance(store, tir.BufferStore) or not all(isinstance(b, tir.Bind) for b in binds):
        return loop
    value = next((b.value for b in binds if b.var.same_as(store.value)), store.value)
    word, buffer = _word_of(value, loop.loop_var), store.buffer
    is_array = str(buffer.dtype) == "uint16" and buffer.scope() == "local"
    if word is None or not is_array or len(store.indices) != 1:
        return loop
    first = _first_of(store.indices[0], loop.loop_var)
    # Names that are different in the two turns: they must not be needed.
    own = {b.var for b in binds if _uses(b.value, {loop.loop_var})}
    kept = [b for b in binds if b.var not in own]
    if first is None or any(_uses(e, own) for e in (word, first, *(b.value for b in kept))):
        return loop
    start = tir.address_of(tir.BufferLoad(buffer, [first]))
    whole = tir.Evaluate(pack_halves().call(start, tir.Cast("uint32", word)))
    return tir.SeqStmt([*kept, whole]) if kept else whole


def _word_of(value: Any, turn: Any) -> Any | None:
    """Return the word of 32 bits of which ``value`` is the half number ``turn``."""
    value = _bare(value)
    if not isinstance(value, BitwiseAnd) or not isinstance(value.a, RShift):
        return None
    if not (isinstance(value.b, tir.IntImm) and int(value.b) == 2**HALF - 1):
        return None
    word, amount = value.a.a, value.a.b
    analyzer = Analyzer()
    rest = analyzer.simplify(_bare(amount) - turn * HALF)
    is_half = isinstance(rest, tir.IntImm) and int(rest) == 0
    is_word = is_half and str(word.ty) in WORDS
    return word if is_word and not _uses(word, {turn}) else None


def _bare(value: Any) -> Any:
    """Return an integer without what only changes its type, or hides it from TVM (``| 0``)."""
    while True:
        if isinstance(value, tir.Cast) and str(value.ty) in ("uint16", "uint32", "int32"):
            value = value.value
        elif isinstance(value, BitwiseOr) and isinstance(value.b, tir.IntImm) and not int(value.b):
            value = value.a
        else:
            return value


def _first_of(place: Any, turn: Any) -> Any | None:
    """Return the even place of the first half where ``place`` is the one of half ``turn``."""
    analyzer = Analyzer()
    first = analyzer.simplify(place - turn)
    if _uses(first, {turn}):
        return None
    found = analyzer.modular_set(first)
    is_even = found.coeff % 2 == 0 and found.base % 2 == 0
    return index(first) if is_even else None


def _uses(value: Any, names: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(value, (tir.Var, found.append))
    return any(v.same_as(name) for v in found for name in names)
