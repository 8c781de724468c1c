"""A small builder of flat TIR: loops, vector loads and stores, scratch memory.

Everything is built as nodes (parsing TVMScript costs 20 ms per function). Buffers are 1-D; vector
operations are explicit; nothing relies on TVM's own vectoriser or simplifier, whose StmtSimplify
is unsafe on vector floats (TVM 0.27).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx as tir
from tvm.ir.expr import TensorLoad
from tvm.tirx.buffer import is_buffer_var

from tilecore.ir.dtype import DType
from tilecore.lowering.llvm_text import LLVM_TYPES

SERIAL, PARALLEL = 0, 1
CPU = 1  # device type of DLPack
MANY_THREADS = 1024  # a launch that is worth so many need not be told: it gets all there are
ASSERTS = "tilecore.asserts"  # attribute of a function: whether it checks conditions
REGISTER_BYTES = 1024  # smaller "global" buffers become stack slots, then registers
# What one buffer and all of a kernel may take of the stack. Memory of TVM's pool costs each task as
# much as the norm of 300 elements (AMD Zen 4, 2026-11-24).
SLOT_BYTES, STACK_BYTES = 16 << 10, 64 << 10
MASKED_BYTES = (4, 8)  # of elements that x86-64 stores under a mask
FROZEN = """define linkonce_odr hidden {kind} @{name}({kind} %x) alwaysinline {{
  %y = freeze {kind} %x
  ret {kind} %y
}}"""
# Memory that LLVM takes for any number.
ZERO = "@tilecore_zero = linkonce_odr hidden global i64 0\n"
HIDDEN = """define linkonce_odr hidden {kind} @{name}({kind} %x) alwaysinline {{
  %zero = load {kind}, ptr @tilecore_zero, !invariant.load !{{}}
  %y = or {kind} %x, %zero
  ret {kind} %y
}}"""
OPAQUE = """define linkonce_odr hidden i32 @tilecore_opaque(i32 %x) alwaysinline {
  %y = call i32 asm sideeffect "", "=r,0"(i32 %x)
  ret i32 %y
}"""
FORGET = """define linkonce_odr hidden i32 @tilecore_forget() alwaysinline {
  call void asm sideeffect "", "~{memory}"()
  ret i32 0
}"""
CUT, BACK = 1, 2
COMPUTED = (tir.Add, tir.Sub, tir.Mul, tir.Div, tir.Min, tir.Max, tir.Select, tir.Cast)
ON_STACK = {"disable_lower_builtin": tir.IntImm("bool", 1)}  # TVM leaves the buffer to LLVM


class TirBuilder:
    """Collects statements of one PrimFunc; ``loop``, ``when`` open nested scopes."""

    def __init__(self) -> None:
        self._scopes: list[list[Any]] = [[]]
        self._owners = [0]  # scopes that hold the memory of what is inside: one per task
        self._count = 0
        self._stack_bytes = 0
        self._llvm: dict[str, str] = {}
        self._is_asserting = False
        # Of conditions: whether one stores integers cut off (CUT), the last one first (BACK).
        self._cuts: list[int] = []

    # --- statements ---------------------------------------------------------------------------

    def emit(self, stmt: Any) -> None:
        """Append a statement to the innermost scope."""
        self._scopes[-1].append(stmt)

    @contextlib.contextmanager
    def loop(self, extent: Any, *, parallel: bool = False, start: Any = 0) -> Iterator[Any]:
        """Open ``for i in range(start, start + extent)`` and yield ``i``."""
        var = tir.Var(self.name("i"), "int32")
        self._scopes.append([])
        if parallel:
            self._owners.append(len(self._scopes) - 1)
        yield var
        if parallel:
            self._owners.pop()
        body = self._close()
        kind = PARALLEL if parallel else SERIAL
        self.emit(tir.For(var, index(start), index(extent), kind, body))

    @contextlib.contextmanager
    def shared_loop(self, tasks: Any, team: Any) -> Iterator[Any]:
        """Open a loop over tasks that up to ``team`` threads share, a serial one for one thread."""
        is_shared = not isinstance(team, int) or team > 1
        if is_shared:
            worth = 0 if isinstance(team, int) and team >= MANY_THREADS else team
            self.evaluate(tir.call_extern("int32", "tilecore_team", index(worth), index(tasks)))
        with self.loop(tasks, parallel=is_shared) as task:
            yield task

    def runs(self, extent: Any, length: int) -> Iterator[tuple[Any, int]]:
        """Open loops over ``range(extent)``, ``length`` steps per iteration while there are enough.

        Yields each step to emit and its place in its iteration.
        """
        whole = quotient(extent, length)
        with self.loop(whole) as run:
            for part in range(length):
                yield add(mul(run, length), part), part
        if length == 1 or (isinstance(extent, int) and extent % length == 0):
            return
        done = self.bind(mul(whole, length))
        with self.loop(index(extent) - index(done), start=done) as step:
            yield step, 0

    @contextlib.contextmanager
    def when(self, cond: Any) -> Iterator[None]:
        """Open ``if cond``."""
        self._scopes.append([])
        self._cuts.append(0)
        yield
        cond = self._uncertain(cond, self._cuts.pop())
        self.emit(tir.IfThenElse(cond, self._close(), None))

    @contextlib.contextmanager
    def otherwise(self) -> Iterator[None]:
        """Open the ``else`` of the ``when`` that was closed last."""
        last = self._scopes[-1].pop()
        self._scopes.append([])
        self._cuts.append(0)
        yield
        cond = self._uncertain(last.condition, self._cuts.pop())
        self.emit(tir.IfThenElse(cond, last.then_case, self._close()))

    @contextlib.contextmanager
    def loop_while(self, cond: Any) -> Iterator[None]:
        """Open ``while cond``."""
        self._scopes.append([])
        yield
        self.emit(tir.While(cond, self._close()))

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Open a block whose allocations end with it."""
        self._scopes.append([])
        yield
        self.emit(self._close())

    def _close(self) -> Any:
        return sequence(self._scopes.pop())

    # --- memory -------------------------------------------------------------------------------

    def alloc(self, size: Any, dtype: str, name: str, *, on_stack: bool = False) -> Any:
        """Allocate ``size`` elements, 64-byte aligned, to the end of the scope.

        Memory from the heap lasts to the end of the task: TVM would free it where a ``break``
        passes by, and outside the ``while`` that it was allocated in. ``on_stack``: rather there,
        if there is room.
        """
        bytes_ = size * DType(dtype).itemsize if isinstance(size, int) else None
        in_place = bytes_ is None or bytes_ < REGISTER_BYTES
        scope = self._scopes[-1 if in_place else self._owners[-1]]
        if on_stack and bytes_ is not None and self._fits_stack(bytes_):
            return self._slot(scope, bytes_, size, dtype, name)
        buffer = tir.decl_buffer((size,), dtype, self.name(name), data_alignment=64)
        scope.append(tir.AllocBuffer(buffer))
        return buffer

    def _slot(self, scope: list[Any], bytes_: int, size: Any, dtype: str, name: str) -> Any:
        """Allocate on the stack: LLVM aligns vectors to their size, but elements to 16 bytes."""
        lines = tir.decl_buffer((-(-bytes_ // 64),), "float32x16", self.name(name))
        scope.append(tir.AllocBuffer(lines, ON_STACK))
        buffer = tir.decl_buffer((size,), dtype, self.name(name), data_alignment=64)
        scope.append(tir.DeclBuffer(buffer, data=tir.buffer_data(lines)))
        return buffer

    def _fits_stack(self, size_bytes: int) -> bool:
        """Return whether a buffer goes on the stack, and take the room there."""
        if size_bytes < REGISTER_BYTES or size_bytes > SLOT_BYTES:
            return False
        if self._stack_bytes + size_bytes > STACK_BYTES:
            return False
        self._stack_bytes += size_bytes
        return True

    def registers(self, count: int, lanes: int, dtype: str) -> list[Any]:
        """Allocate ``count`` vector registers (one small buffer each)."""
        return [self.alloc(lanes, dtype, "r") for _ in range(count)]

    def flat_view(self, owner: Any, size: int, dtype: str, alignment: int) -> Any:
        """Return a 1-D view of the memory of a buffer, or at an address."""
        view = tir.decl_buffer((size,), dtype, self.name("v"), data_alignment=alignment)
        data = tir.buffer_data(owner) if is_buffer_var(owner) else owner
        self.emit(tir.DeclBuffer(view, data=data))
        return view

    def load(self, buffer: Any, offset: Any, lanes: int = 1, stride: int = 1) -> Any:
        """Return ``lanes`` elements from ``offset`` on, ``stride`` apart."""
        return tir.BufferLoad(buffer, [ramp(offset, lanes, stride)])

    def store(self, buffer: Any, value: Any, offset: Any, lanes: int = 1, stride: int = 1) -> None:
        """Store ``lanes`` elements from ``offset`` on."""
        place = ramp(offset, lanes, stride)
        if lanes > 1 and stride == 1 and isinstance(value, tir.Select):
            value = self._blended(buffer, place, value)
        if lanes == 1 and self._cuts and _may_be_cut(value, str(buffer.dtype)):
            kind = BACK if _runs_back(offset) else CUT
            self._cuts = [max(kind, cut) for cut in self._cuts]
        self.emit(tir.BufferStore(buffer, value, [place]))

    def _blended(self, buffer: Any, place: Any, choice: Any) -> Any:
        """Return a choice between something new and what is stored there, to be stored there."""

        def held(arm: Any) -> Any:
            if not isinstance(arm, TensorLoad) or not arm.source.same_as(buffer):
                return arm
            is_there = tvm_ffi.structural_equal(arm.indices[0], place)
            return self.frozen(arm, place.lanes) if is_there else arm

        arms = [held(arm) for arm in (choice.true_value, choice.false_value)]
        return tir.Select(choice.condition, *arms)

    def hidden(self, value: Any, dtype: str) -> Any:
        """Return an integer of which LLVM does not see how it came about.

        LLVM 22 makes vectors of a loop whose index grows by 1 but for where it begins anew, under a
        condition to be tested when the loop runs. That the narrow index does not wrap around it
        takes for implied where a wider one does not (``SCEVWrapPredicate::implies``), and reads on.
        Where a vector of integers is cut off and is known to be stored in one lane, it stores the
        wider element: conditions of such stores depend on one that holds. Stores of neighbours from
        the last one to the first it makes lane by lane, so that no such loop may become vectors at
        all: their condition depends on assembly, which has no text.
        """
        element = LLVM_TYPES[dtype]
        name = f"tilecore_hidden_{element}"
        self.define_llvm("tilecore_zero", ZERO)
        self.define_llvm(name, HIDDEN.format(kind=element, name=name))
        return tir.call_pure_extern(dtype, name, value)

    def _uncertain(self, cond: Any, cuts: int) -> Any:
        """Return a condition that LLVM does not know of single iterations, if it must not."""
        if not cuts:
            return cond
        if cuts == CUT:
            zero = self.hidden(index(0), "int32")
        else:
            self.define_llvm("tilecore_opaque", OPAQUE)
            zero = tir.call_extern("int32", "tilecore_opaque", index(0))
        return tir.And(cond, tir.EQ(zero, index(0)))

    def frozen(self, value: Any, lanes: int) -> Any:
        """Bind a value; if it is loaded, LLVM does not see that it is.

        Of a choice between that and something new, to be stored there, it would make a store under
        a mask, which takes 12 cycles on Zen 2 to 4 (uops.info, VMASKMOVPS (M256, YMM, YMM)), and
        after which every processor waits before it loads the place again. This it blends.
        """
        if lanes == 1 or not isinstance(value, TensorLoad):
            return self.bind(value)
        dtype = DType(str(value.source.dtype))
        if dtype.itemsize not in MASKED_BYTES or dtype not in LLVM_TYPES:
            return self.bind(value)
        element = LLVM_TYPES[dtype]
        kind, name = f"<{lanes} x {element}>", f"tilecore_frozen_{lanes}x{element}"
        return self.call_llvm(str(value.ty), name, FROZEN.format(kind=kind, name=name), value)

    def bind(self, value: Any) -> Any:
        """Name a value so that it is computed once."""
        if isinstance(value, (int, tir.IntImm, tir.FloatImm, tir.Var)):
            return value
        var = tir.Var(self.name("t"), value.ty if hasattr(value, "ty") else value.dtype)
        self.emit(tir.Bind(var, _without_bounds(value)))
        return var

    def kept(self, value: Any, dtype: str, lanes: int = 1) -> Any:
        """Name a value by way of memory, which becomes a register.

        TVM writes values where their names stand, and so on in these, when LLVM IR is made (for
        which it simplifies them): of the rounds of a hash the text grows exponentially. What is
        loaded it leaves alone.
        """
        memory = self.alloc(lanes, dtype, "kept")
        self.store(memory, value, 0, lanes)
        return self.bind(self.load(memory, index(0), lanes))

    def jump(self, word: str) -> None:
        """Leave the innermost loop (``break``) or its iteration (``continue``)."""
        self.evaluate(tir.break_loop() if word == "break" else tir.continue_loop())

    def evaluate(self, call: Any) -> None:
        """Append a call whose value is not used."""
        self.emit(tir.Evaluate(call))

    def check(self, holds: Any, message: str) -> None:
        """Append the check of a condition: where it does not hold the call fails with a message."""
        self._is_asserting = True
        parts = [tvm.ir.StringImm(message)]
        # TVM 0.27's constructor names its first two arguments the wrong way round.
        self.emit(tir.AssertStmt(holds, tvm.ir.StringImm("RuntimeError"), parts))

    def define_llvm(self, name: str, text: str) -> None:
        """Add ``text`` in LLVM IR, which defines ``name``, to the module (once)."""
        self._llvm[name] = text

    def call_llvm(self, dtype: str, name: str, text: str, *args: Any) -> Any:
        """Call the function ``name``, which ``text`` defines in LLVM IR, and return its result."""
        self.define_llvm(name, text)
        return self.bind(tir.call_extern(dtype, name, *args))

    def forget_memory(self) -> None:
        """Keep LLVM from loading earlier what is loaded after this, for all turns of a loop."""
        self.define_llvm("tilecore_forget", FORGET)
        self.evaluate(tir.call_extern("int32", "tilecore_forget"))

    def name(self, prefix: str) -> str:
        """Return a new name."""
        self._count += 1
        return f"{prefix}{self._count}"

    def finish(self, name: str, params: list[Any]) -> Any:
        """Return the PrimFunc."""
        body = sequence(self._scopes[0])
        if self._llvm:
            text = tvm.ir.StringImm("\n".join(self._llvm.values()))
            body = tir.AttrStmt(index(0), "pragma_import_llvm", text, body)
        if not any(is_buffer_var(p) for p in params):
            # Scratch memory belongs to a device, which TVM reads off the first tensor.
            for key, value in (("device_id", 0), ("device_type", CPU)):
                body = tir.AttrStmt("default", key, index(value), body)
        func = tir.PrimFunc(params, body)
        func = func.with_attr("global_symbol", name).with_attr(ASSERTS, self._is_asserting)
        return func.with_attr("tirx.noalias", True).with_attr("s_tir", True)


def sequence(stmts: list[Any]) -> Any:
    """Return the statements as one."""
    if not stmts:
        return tir.Evaluate(tir.IntImm("int32", 0))
    return stmts[0] if len(stmts) == 1 else tir.SeqStmt(stmts)


def _without_bounds(value: Any) -> Any:
    """Return a value, if it is a vector of floats as one of which TVM looks for no bounds.

    TVM takes a choice between two names that it knows nothing of (vectors loaded under a mask) for
    the interval from their minimum to their maximum. Of what is multiplied by such an interval it
    asks for the sign, by comparing it with an integer 0 of the type at hand, which for floats
    fails (TVM 0.27, ``IntSetAnalyzer``). It looks into no shuffle, and LLVM drops this one.
    """
    if not isinstance(value, COMPUTED):
        return value
    dtype = value.ty.dtype
    is_floats = dtype.lanes > 1 and dtype.is_float
    return tir.Shuffle([value], _in_order(dtype.lanes)) if is_floats else value


@functools.lru_cache(maxsize=64)
def _in_order(lanes: int) -> list[Any]:
    return [_number(i) for i in range(lanes)]


def index(value: Any) -> Any:
    """Return an int32 TIR expression for a Python int or expression."""
    return _number(value) if isinstance(value, int) else value


@functools.lru_cache(maxsize=1024)  # nodes do not change: programs share them
def _number(value: int) -> Any:
    return tir.IntImm("int32", value)


def ramp(offset: Any, lanes: int, stride: int = 1) -> Any:
    """Return the index (vector) of ``lanes`` elements."""
    if lanes == 1:
        return index(offset)
    if isinstance(offset, int):
        return _fixed_ramp(offset, lanes, stride)
    return tir.Ramp(offset, typed(stride, str(offset.ty)), lanes)


@functools.lru_cache(maxsize=1024)
def _fixed_ramp(offset: int, lanes: int, stride: int) -> Any:
    return tir.Ramp(_number(offset), _number(stride), lanes)


def typed(value: Any, dtype: str) -> Any:
    """Return an int32 index (Python int or TIR) as a value of an integer type."""
    if str(dtype) == "int32":
        return index(value)
    return tir.IntImm(dtype, value) if isinstance(value, int) else tir.Cast(dtype, value)


def broadcast(value: Any, lanes: int) -> Any:
    """Return ``value`` in every lane."""
    return value if lanes == 1 else tir.Broadcast(value, lanes)


def vector_type(dtype: str, lanes: int) -> str:
    """Return TVM's name of a vector type."""
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def add(a: Any, b: Any) -> Any:
    """Return ``a + b`` for indices, folding zero and constants."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if isinstance(a, int) and a == 0:
        return b
    if isinstance(b, int) and b == 0:
        return a
    return index(a) + index(b)


def mul(a: Any, b: Any) -> Any:
    """Return ``a * b`` for indices, folding zero, one and constants."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    for one, other in ((a, b), (b, a)):
        if isinstance(one, int) and one in (0, 1):
            return other if one else 0
    return index(a) * index(b)


def minimum(a: Any, b: Any) -> Any:
    """Return min(a, b) for indices."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return tir.Min(index(a), index(b))


def maximum(a: Any, b: Any) -> Any:
    """Return max(a, b) for indices."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return tir.Max(index(a), index(b))


def quotient(a: Any, b: Any) -> Any:
    """Return a // b for a >= 0, b > 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    return a if isinstance(b, int) and b == 1 else tir.truncdiv(index(a), index(b))


def remainder(a: Any, b: Any) -> Any:
    """Return a % b for a >= 0, b > 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    return 0 if isinstance(b, int) and b == 1 else tir.truncmod(index(a), index(b))


def _runs_back(offset: Any) -> bool:
    """Return whether a place may go down while what it follows from goes up."""
    if isinstance(offset, tir.Sub):
        return not isinstance(offset.b, tir.IntImm) or _runs_back(offset.a)
    if isinstance(offset, tir.Mul):
        factors = [x for x in (offset.a, offset.b) if isinstance(x, tir.IntImm)]
        if any(int(x) < 0 for x in factors):
            return True
    parts = (getattr(offset, name, None) for name in ("a", "b", "value"))
    return any(part is not None and _runs_back(part) for part in parts)


def _may_be_cut(value: Any, dtype: str) -> bool:
    """Return whether an integer may be what is left of a wider one, also of a float converted."""
    if isinstance(value, (TensorLoad, tir.IntImm)) or "int" not in dtype:
        return False
    bits = DType(dtype).bits
    if bits == 32 and isinstance(value, tir.Cast):
        return str(value.value.ty) in ("int64", "uint64")
    return bits < 32 or (bits == 32 and not isinstance(value, tir.Add | tir.Sub | tir.Mul))


def target_of(mcpu: str, attributes: Sequence[str] = (), opt_level: int = 2) -> Any:
    """Return TVM's target for a processor family, with further instructions by LLVM's names."""
    target = {"kind": "llvm", "mcpu": mcpu, "opt-level": opt_level, "mattr": list(attributes)}
    return tvm.target.Target(target)
