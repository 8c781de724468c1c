"""The canonical text of a tile program: what people read, snapshots store and digests hash.

Deterministic: names are made unique in order of appearance, mappings print sorted by name, and no
source place, address or hash order enters. Regions print as ``A[offset +: extent]``, whole buffers
by name alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tilecore.ir import nodes
from tilecore.ir.expr import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Pointer,
    Select,
    Unary,
    Var,
    int_value,
)
from tilecore.ir.indexing import is_whole
from tilecore.ir.nodes import Buffer, PrimFunc, Region, Stmt

_SYMBOLS = {
    "add": ("+", 7), "sub": ("-", 7), "mul": ("*", 8), "div": ("/", 8), "floordiv": ("//", 8),
    "mod": ("%", 8), "pow": ("**", 9), "eq": ("==", 3), "ne": ("!=", 3), "lt": ("<", 3),
    "le": ("<=", 3), "gt": (">", 3), "ge": (">=", 3), "and": ("and", 1), "or": ("or", 0),
    "bitand": ("&", 5), "bitor": ("|", 4), "bitxor": ("^", 4), "shl": ("<<", 6), "shr": (">>", 6),
}  # fmt: skip
_UNARY = {"neg": "-", "not": "not ", "bitnot": "~"}
_ATOM = 10
_DEFAULT_DTYPES = ("int32", "float32", "bool")
WITH_BODY = (nodes.KernelLaunch, nodes.Parallel, nodes.For, nodes.While)


class Namer:
    """Gives every Var and Buffer one name: the author's, with a number where it is taken."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._keep: list[Var | Buffer] = []
        self._taken: set[str] = set()

    def name(self, item: Var | Buffer) -> str:
        """Return the unique name of ``item``."""
        if id(item) not in self._names:
            name, count = item.name, 0
            while name in self._taken:
                count += 1
                name = f"{item.name}_{count}"
            self._taken.add(name)
            self._names[id(item)] = name
            self._keep.append(item)
        return self._names[id(item)]

    @property
    def named(self) -> Sequence[Var | Buffer]:
        """What was named so far, in this order."""
        return self._keep


def format_expr(expr: Expr, namer: Namer | None = None) -> str:
    """Return ``expr`` as text with as few parentheses as precedence allows."""
    return _expr(expr, namer or Namer(), 0)


def _expr(expr: Expr, namer: Namer, level: int) -> str:
    match expr:
        case Var():
            return namer.name(expr)
        case Const():
            return _const(expr)
        case Binary():
            return _binary(expr, namer, level)
        case Unary():
            text = _UNARY[expr.op] + _expr(expr.a, namer, _ATOM)
            return f"({text})" if level >= _ATOM else text
        case Select():
            parts = ", ".join(_expr(e, namer, 0) for e in (expr.cond, expr.a, expr.b))
            return f"select({parts})"
        case Cast():
            return f"{expr.dtype}({_expr(expr.a, namer, 0)})"
        case Load():
            indices = ", ".join(_expr(i, namer, 0) for i in expr.indices)
            return f"{namer.name(expr.buffer)}[{indices}]"
        case Call():
            return f"{expr.name}({', '.join(_expr(a, namer, 0) for a in expr.args)})"
        case _:
            return repr(expr)


def _const(expr: Const) -> str:
    text = repr(expr.value) if expr.dtype.is_float else str(expr.value)
    return text if str(expr.dtype) in _DEFAULT_DTYPES else f"{expr.dtype}({text})"


def _binary(expr: Binary, namer: Namer, level: int) -> str:
    if expr.op in ("min", "max"):
        return f"{expr.op}({_expr(expr.a, namer, 0)}, {_expr(expr.b, namer, 0)})"
    symbol, own = _SYMBOLS[expr.op]
    text = f"{_expr(expr.a, namer, own)} {symbol} {_expr(expr.b, namer, own + 1)}"
    return f"({text})" if own < level else text


def _region(region: Region, namer: Namer) -> str:
    name = namer.name(region.buffer)
    if is_whole(region):
        return name
    pairs = zip(region.offsets, region.extents, strict=True)
    axes = (f"{_expr(o, namer, 0)} +: {_expr(e, namer, 0)}" for o, e in pairs)
    return f"{name}[{', '.join(axes)}]"


def _type(buffer: Buffer, namer: Namer) -> str:
    shape = ", ".join(_expr(e, namer, 0) for e in buffer.shape)
    marks = " output" if buffer.is_output else " var" if buffer.is_var else ""
    marks += "" if buffer.reducer is None else f" reducer({buffer.reducer})"
    marks += "" if buffer.arrive_counts is None else f" barrier{buffer.arrive_counts}"
    marks += " of cluster" if buffer.of_cluster else ""
    marks += " in tensor memory" if buffer.in_tensor_memory else ""
    scope = "" if buffer.scope == "global" else f"{buffer.scope} "
    if buffer.strides is not None:
        marks = f" strides({', '.join(_expr(e, namer, 0) for e in buffer.strides)}){marks}"
    if buffer.base is not None:
        marks += f" view of {namer.name(buffer.base)}"
    if buffer.address is not None:
        marks += f" at {_expr(buffer.address, namer, 0)}"
    return f"{scope}{buffer.dtype}[{shape}]{marks}"


def _scalar_type(param: Var) -> str:
    return f"pointer({param.target or ''})" if isinstance(param, Pointer) else str(param.dtype)


def _value(value: Any, namer: Namer) -> str:
    """Return an attribute or annotation as text that depends on its contents alone."""
    if isinstance(value, Expr):
        return _expr(value, namer, 0)
    if isinstance(value, Buffer):
        return namer.name(value)
    if isinstance(value, Mapping):
        items = sorted((_value(k, namer), _value(v, namer)) for k, v in value.items())
        return "{" + ", ".join(f"{k}: {v}" for k, v in items) + "}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(_value(v, namer) for v in value) + ")"
    describe = getattr(value, "describe", None)
    return describe() if callable(describe) else repr(value)


def _notes(annotations: Mapping[str, Any], namer: Namer) -> str:
    shown = ", ".join(f"{k}={_value(annotations[k], namer)}" for k in sorted(annotations))
    return f" ({shown})" if shown else ""


def _loop(stmt: nodes.For, namer: Namer) -> str:
    bounds = [_expr(e, namer, 0) for e in (stmt.start, stmt.stop, stmt.step)]
    shown = ", ".join(bounds if bounds[2] != "1" else bounds[:2])
    notes = _notes(stmt.annotations, namer)
    return f"for {namer.name(stmt.loop_var)} in {stmt.kind}({shown}){notes}:"


def _gemm(stmt: nodes.Gemm, namer: Namer) -> str:
    a = _region(stmt.a, namer) + (".T" if stmt.transpose_a else "")
    b = _region(stmt.b, namer) + (".T" if stmt.transpose_b else "")
    clear = _expr(stmt.clear_accum, namer, 0)
    options = "" if clear == "False" else f" clear_accum={clear}"
    options += "" if stmt.policy == "square" else f" policy={stmt.policy}"
    options += " async" if stmt.is_async else ""
    options += " in_group" if stmt.in_group else ""
    options += " by two blocks" if stmt.in_pair else ""
    for factors, count in zip(stmt.factors, stmt.sharing, strict=True):
        options += f" factors={_region(factors, namer)} of {count}"
    options += f" ({stmt.factor_type})" if stmt.factor_type == "float8_e8m0fnu" else ""
    options += " in chunks" if stmt.in_chunks else ""
    options += f" pairs of {stmt.pairs_of}" if stmt.pairs_of else ""
    options += " in lanes" if stmt.in_lanes else ""
    options += "" if stmt.start is None else f" from {_expr(stmt.start, namer, 0)}"
    return f"gemm {_region(stmt.c, namer)} += {a} @ {b}{options}"


def _cluster_copy(stmt: nodes.ClusterCopy, namer: Namer) -> str:
    where = f"mask {stmt.mask}" if stmt.block is None else f"block {_expr(stmt.block, namer, 0)}"
    notes = "" if stmt.barrier is None else f" on {_expr(stmt.barrier, namer, 0)}"
    source, target = _region(stmt.copy.src, namer), _region(stmt.copy.dst, namer)
    return f"copy {source} -> {target} of {where}{notes}"


def _reduce(stmt: nodes.Reduce, namer: Namer) -> str:
    axes = ", ".join(str(a) for a in stmt.axes)
    options = "" if stmt.clear else " clear=False"
    options += " nan_propagate=True" if stmt.nan_propagate else ""
    src, dst = _region(stmt.src, namer), _region(stmt.dst, namer)
    return f"reduce {stmt.op} {src} along ({axes}) -> {dst}{options}"


def _scan(stmt: nodes.Scan, namer: Namer) -> str:
    options = " reverse=True" if stmt.reverse else ""
    src, dst = _region(stmt.src, namer), _region(stmt.dst, namer)
    return f"scan {stmt.op} {src} along {stmt.axis} -> {dst}{options}"


def _atomic(stmt: nodes.Atomic, namer: Namer) -> str:
    element = f"{namer.name(stmt.buffer)}[{', '.join(_expr(i, namer, 0) for i in stmt.indices)}]"
    prev = "" if stmt.prev is None else f"{namer.name(stmt.prev)} = "
    value = "" if stmt.op == "load" else f", {_expr(stmt.value, namer, 0)}"
    order = "" if stmt.order == "relaxed" else f" {stmt.order}"
    return f"{prev}atomic {stmt.op}{order} {element}{value}"


def _launch(stmt: nodes.KernelLaunch, namer: Namer) -> str:
    pairs = zip(stmt.block_vars, stmt.grid, strict=True)
    grid = ", ".join(f"{namer.name(v)} < {_expr(e, namer, 4)}" for v, e in pairs)
    names = [f"{namer.name(v)} < " for v in stmt.thread_vars] or [""] * len(stmt.threads)
    extents = (_expr(t, namer, 4) for t in stmt.threads)
    threads = ", ".join(n + e for n, e in zip(names, extents, strict=True))
    cluster = f" cluster{stmt.cluster}" if stmt.cluster else ""
    return f"launch {grid} threads({threads}){cluster}:"


def _source_launch(stmt: nodes.SourceLaunch, namer: Namer) -> str:
    """Return the launch with the digest of its source: another source, another program."""
    grid, threads = (", ".join(_expr(e, namer, 4) for e in x) for x in (stmt.grid, stmt.threads))
    names = ", ".join(namer.name(a) for a in stmt.arguments)
    cluster = f" cluster{stmt.cluster}" if stmt.cluster else ""
    launch = f"launch {grid} threads({threads}){cluster} of {stmt.entry}({names})"
    return f"{launch} in CUDA source {text_digest(stmt.source)}"


def _head(stmt: Stmt, namer: Namer) -> str:  # noqa: C901 - one case per node of the grammar
    """Return the first line of ``stmt``; bodies follow indented."""
    match stmt:
        case nodes.KernelLaunch():
            return _launch(stmt, namer)
        case nodes.SourceLaunch():
            return _source_launch(stmt, namer)
        case nodes.Alloc(buffer=b):
            return f"alloc {namer.name(b)}: {_type(b, namer)}"
        case nodes.Copy():
            notes = _notes(stmt.annotations, namer)
            notes += "" if stmt.barrier is None else f" on {_expr(stmt.barrier, namer, 0)}"
            return f"copy {_region(stmt.src, namer)} -> {_region(stmt.dst, namer)}{notes}"
        case nodes.ClusterCopy():
            return _cluster_copy(stmt, namer)
        case nodes.ChunkCopy():
            both = " by two blocks" if stmt.in_pair else ""
            return f"copy chunks {_region(stmt.src, namer)} -> {_region(stmt.dst, namer)}{both}"
        case nodes.Fill():
            return f"fill {_region(stmt.dst, namer)} = {_expr(stmt.value, namer, 0)}"
        case nodes.Gemm():
            return _gemm(stmt, namer)
        case nodes.Reduce():
            return _reduce(stmt, namer)
        case nodes.Scan():
            return _scan(stmt, namer)
        case nodes.Atomic():
            return _atomic(stmt, namer)
        case nodes.Parallel():
            names = ", ".join(namer.name(v) for v in stmt.loop_vars)
            extents = ", ".join(_expr(e, namer, 0) for e in stmt.extents)
            return f"for {names} in parallel({extents}){_notes(stmt.annotations, namer)}:"
        case nodes.For():
            return _loop(stmt, namer)
        case nodes.While(cond=c):
            return f"while {_expr(c, namer, 0)}:"
        case nodes.Jump(word=word):
            return word
        case nodes.If(cond=c):
            return f"if {_expr(c, namer, 0)}:"
        case nodes.Store():
            indices = ", ".join(_expr(i, namer, 0) for i in stmt.indices)
            return f"{namer.name(stmt.buffer)}[{indices}] = {_expr(stmt.value, namer, 0)}"
        case nodes.Let(var=v):
            value = _expr(stmt.value, namer, 0)
            return f"let {namer.name(v)}: {v.dtype} = {value}"
        case nodes.Annotate():
            return f"annotate {stmt.key} {_value(stmt.value, namer)}"
        case nodes.Print():
            args = "".join(f", {_expr(a, namer, 0)}" for a in stmt.args)
            return f"print {stmt.text!r}{args}"
        case nodes.Pad(buffer=b):
            return f"pad {namer.name(b)} = {_expr(stmt.value, namer, 0)}"
        case nodes.Assert(cond=c):
            return f"assert {_expr(c, namer, 0)}, {stmt.message!r}"
        case nodes.Sync(scope="named" | "named_arrive" as scope):
            word = "sync" if scope == "named" else "arrive at"
            return f"{word} barrier {stmt.barrier} of {stmt.count} threads"
        case nodes.Sync(scope=scope):
            return f"sync {scope}"
        case nodes.Arrive(buffer=b):
            word = "arrive once at" if stmt.once else "arrive at"
            when = " after products" if stmt.after_products else ""
            when += f" of block {_expr(stmt.rank, namer, 0)}" if stmt.rank is not None else ""
            when += " of two blocks" if stmt.in_pair else ""
            return f"{word} {namer.name(b)}[{_expr(stmt.index, namer, 0)}]{when}"
        case nodes.Wait(buffer=b):
            place = f"{namer.name(b)}[{_expr(stmt.index, namer, 0)}]"
            return f"wait for {place} parity {_expr(stmt.parity, namer, 0)}"
        case nodes.Exchange():
            args = ", ".join(_expr(a, namer, 0) for a in stmt.args)
            group = f"{stmt.width} threads" if stmt.width else "block"
            return f"{namer.name(stmt.dst)}[0] = {stmt.op}({args}) over {group}"
        case nodes.LaneGemm(a=a, b=b, c=c, shape=shape):
            parts = [_region(r, namer) for r in (c, a, b)]
            size = "x".join(map(str, shape))
            return f"{parts[0]} += {parts[1]} @ {parts[2]} by the lanes of a warp ({size})"
        case _:
            return repr(stmt)


Line = tuple[str, Stmt | None]  # a line, and the statement that it is the head of


def _lines(stmt: Stmt, namer: Namer, indent: str) -> Iterator[Line]:
    if isinstance(stmt, nodes.Seq):
        for child in stmt.stmts:
            yield from _lines(child, namer, indent)
        return
    yield indent + _head(stmt, namer), stmt
    if isinstance(stmt, nodes.If):
        yield from _body(stmt.then_body, namer, indent)
        if stmt.else_body is not None:
            yield indent + "else:", None
            yield from _body(stmt.else_body, namer, indent)
    elif isinstance(stmt, WITH_BODY):
        yield from _body(stmt.body, namer, indent)


def _body(stmt: Stmt, namer: Namer, indent: str) -> Iterator[Line]:
    lines = list(_lines(stmt, namer, indent + "  "))
    yield from lines or [(indent + "  pass", None)]


def format_head(stmt: Stmt, namer: Namer) -> str:
    """Return the line of a statement as text, without what it holds and without indentation."""
    return _head(stmt, namer)


def format_signature(func: PrimFunc, namer: Namer) -> str:
    """Return the first line of ``func``."""
    params = []
    for p in func.params:
        kind = _type(p, namer) if isinstance(p, Buffer) else _scalar_type(p)
        params.append(f"{namer.name(p)}: {kind}")
    return f"func {func.name}({', '.join(params)}){_notes(func.attrs, namer)}:"


def func_lines(func: PrimFunc, namer: Namer) -> list[Line]:
    """Return the lines of ``func``, each with the statement that it is the head of."""
    return [(format_signature(func, namer), None), *_body(func.body, namer, "")]


def format_extent(value: Expr, namer: Namer) -> int | str:
    """Return an extent as artifacts have it: a number, or an expression of dimensions as text."""
    size = int_value(value)
    return format_expr(value, namer) if size is None else size


def format_func(func: PrimFunc) -> str:
    """Return the canonical text of ``func``, ending in a newline."""
    return text_of(text for text, _ in func_lines(func, Namer()))


def text_of(lines: Iterable[str]) -> str:
    """Return the text of a program's lines."""
    return "\n".join(lines) + "\n"


def program_digest(func: PrimFunc) -> str:
    """Return 32 hex digits that identify the program: equal text, equal digest."""
    return text_digest(format_func(func))


def text_digest(text: str) -> str:
    """Return the ``program_digest`` of the program with this text."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]
