"""The statements of a document: what they are called, and which kind of value each field holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilecore.ir import nodes
from tilecore.ir.fold import REDUCE_OPS, REDUCER_OPS, SCAN_OPS
from tilecore.ir.nodes import Stmt
from tilecore.ir.plain.scaled_gemm import FACTORS

SCHEMA = 1
MOST_NODES = 100_000
SYNC_SCOPES = (
    "warp", "block", "cluster", "grid", "group", "cluster_arrive", "cluster_wait",
    "named", "named_arrive",
)  # fmt: skip
REDUCERS = REDUCER_OPS


@dataclass(frozen=True, slots=True)
class Form:
    """One statement: its class, and per field the kind of value.

    Kinds: expr, exprs, var, vars, buffer, region, regions, load, stmt, stmts, copy (a nested copy),
    text, flag, int, ints, notes (a mapping of hints), value (one hint). A field that its class has
    a default for may be left out.
    """

    kind: type[Stmt]
    fields: Mapping[str, str]
    choices: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


def usual(kind: type[Any]) -> Mapping[str, Any]:
    """Return the defaults of the fields of a node that have one."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
    return found


_COPY = {"src": "region", "dst": "region", "annotations": "notes", "barrier": "load"}

STATEMENTS: Mapping[str, Form] = {
    "seq": Form(nodes.Seq, {"stmts": "stmts"}),
    "launch": Form(
        nodes.KernelLaunch,
        {"block_vars": "vars", "grid": "exprs", "threads": "exprs", "body": "stmt",
         "thread_vars": "vars", "cluster": "ints"},
    ),
    "alloc": Form(nodes.Alloc, {"buffer": "buffer"}),
    "copy": Form(nodes.Copy, _COPY),
    "cluster_copy": Form(
        nodes.ClusterCopy, {"copy": "copy", "block": "expr", "mask": "int", "barrier": "load"}
    ),
    "chunk_copy": Form(nodes.ChunkCopy, {"src": "region", "dst": "region", "in_pair": "flag"}),
    "fill": Form(nodes.Fill, {"dst": "region", "value": "expr"}),
    "gemm": Form(
        nodes.Gemm,
        {"a": "region", "b": "region", "c": "region", "transpose_a": "flag", "transpose_b": "flag",
         "clear_accum": "expr", "policy": "text", "is_async": "flag", "in_group": "flag",
         "in_pair": "flag", "factors": "regions", "sharing": "ints",
         "factor_type": "text", "in_chunks": "flag", "pairs_of": "text", "in_lanes": "flag",
         "start": "expr"},
        {"factor_type": FACTORS, "pairs_of": ("",)},  # pairs: passes make them alone
    ),
    "reduce": Form(
        nodes.Reduce,
        {"op": "text", "src": "region", "dst": "region", "axes": "ints", "clear": "flag",
         "nan_propagate": "flag"},
        {"op": REDUCE_OPS},
    ),
    "scan": Form(
        nodes.Scan,
        {"op": "text", "src": "region", "dst": "region", "axis": "int", "reverse": "flag"},
        {"op": SCAN_OPS},
    ),
    "parallel": Form(
        nodes.Parallel,
        {"loop_vars": "vars", "extents": "exprs", "body": "stmt", "annotations": "notes"},
    ),
    "for": Form(
        nodes.For,
        {"loop_var": "var", "start": "expr", "stop": "expr", "step": "expr", "kind": "text",
         "body": "stmt", "annotations": "notes"},
        {"kind": nodes.LOOP_KINDS},
    ),
    "while": Form(nodes.While, {"cond": "expr", "body": "stmt"}),
    "jump": Form(nodes.Jump, {"word": "text"}, {"word": ("break", "continue")}),
    "if": Form(nodes.If, {"cond": "expr", "then_body": "stmt", "else_body": "stmt"}),
    "store": Form(nodes.Store, {"buffer": "buffer", "indices": "exprs", "value": "expr"}),
    "atomic": Form(
        nodes.Atomic,
        {"op": "text", "buffer": "buffer", "indices": "exprs", "value": "expr", "prev": "buffer",
         "order": "text"},
        {"op": nodes.ATOMIC_OPS, "order": nodes.ATOMIC_ORDERS},
    ),
    "let": Form(nodes.Let, {"var": "var", "value": "expr"}),
    "annotate": Form(nodes.Annotate, {"key": "text", "value": "value"}),
    "assert": Form(nodes.Assert, {"cond": "expr", "message": "text"}),
    "sync": Form(
        nodes.Sync, {"scope": "text", "barrier": "int", "count": "int"}, {"scope": SYNC_SCOPES}
    ),
    "exchange": Form(
        nodes.Exchange,
        {"op": "text", "dst": "buffer", "args": "exprs", "width": "int"},
        {"op": (*nodes.SHUFFLES, *nodes.COMBINERS)},
    ),
    "lane_gemm": Form(
        nodes.LaneGemm, {"a": "region", "b": "region", "c": "region", "shape": "ints"}
    ),
    "arrive": Form(
        nodes.Arrive,
        {"buffer": "buffer", "index": "expr", "once": "flag", "after_products": "flag",
         "rank": "expr", "in_pair": "flag"},
    ),
    "wait": Form(nodes.Wait, {"buffer": "buffer", "index": "expr", "parity": "expr"}),
    "print": Form(nodes.Print, {"text": "text", "args": "exprs"}),
    "pad": Form(nodes.Pad, {"buffer": "buffer", "value": "expr"}),
}  # fmt: skip
NAMES: Mapping[type[Stmt], str] = {form.kind: name for name, form in STATEMENTS.items()}
