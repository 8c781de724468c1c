"""JSON to tile IR: strict and bounded; what it returns has the form that the passes rely on.

The reader builds nodes and checks their form: known names, right arity, operands of fitting types,
references to what was declared, bounded sizes. Whether the program is well formed (scopes, shapes,
places of statements) is the verifier's to say, which ``read`` asks before it returns anything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tilecore.errors import InvalidDocument, SourceSpan
from tilecore.ir.document import expressions
from tilecore.ir.document.checks import FILE, NAME, Limits
from tilecore.ir.document.grammar import REDUCERS, SCHEMA, STATEMENTS, Form, usual
from tilecore.ir.document.part_reader import PartReader
from tilecore.ir.expr import Expr, Pointer, Var, int_value
from tilecore.ir.nodes import SCOPES, Buffer, Copy, PrimFunc, Stmt
from tilecore.ir.vector import MOST
from tilecore.ir.verifier import verify

MEMBERS = {"schema", "name", "at", "files", "vars", "buffers", "params", "attrs", "body"}
BUFFER_MEMBERS = {
    "name", "shape", "dtype", "scope", "is_output", "is_var", "reducer", "strides", "base",
    "address", "arrive_counts", "in_tensor_memory", "lanes", "of_cluster",
    "at",
}  # fmt: skip


def read(
    document: Any, limits: Limits | None = None, *, symbols: Collection[str] = ()
) -> tuple[PrimFunc, dict[str, Var]]:
    """Return the program of a document, verified, and its open symbols by name.

    Args:
        document: what JSON gave.
        limits: what it may hold.
        symbols: names of the knobs and sizes that may stay open: the first of ``vars``.

    Raises:
        InvalidDocument: it is malformed; the error names the place in the JSON (TC205).
        TileError: the program is not well formed, by class, with its place in the source.
    """
    found, opened = _Reader(document, limits or Limits()).program(list(symbols))
    try:
        return verify(found, list(opened.values())), opened
    except RecursionError:
        raise InvalidDocument(
            path="/body", expected="less deep nesting", found="too much of it"
        ) from None


class _Reader(PartReader):
    def __init__(self, document: Any, limits: Limits) -> None:
        super().__init__(limits)
        self.document = document
        self.files: list[str] = []

    def program(self, symbols: list[str]) -> tuple[PrimFunc, dict[str, Var]]:
        doc = self.members(self.document, MEMBERS, "")
        if doc.get("schema") != SCHEMA or isinstance(doc["schema"], bool):
            self.fail("/schema", f"{SCHEMA}", doc.get("schema"))
        self.files = [
            self.matching(name, FILE, f"/files/{i}", "the name of a file")
            for i, name in enumerate(self.items(doc.get("files", []), "/files", self.limits.files))
        ]
        listed = self.items(doc.get("vars"), "/vars", self.limits.names)
        self.vars = [self.declared(v, f"/vars/{i}") for i, v in enumerate(listed)]
        opened = dict(zip(symbols, self.vars, strict=False))
        for i, (name, var) in enumerate(opened.items()):
            if var.name != name or isinstance(var, Pointer) or not var.dtype.is_integer:
                self.fail(f"/vars/{i}", f"the integer `{name}`", f"`{var.name}` ({var.dtype})")
        if len(opened) != len(symbols):
            self.fail("/vars", f"{', '.join(symbols)} first", f"{len(self.vars)} vars")
        listed = self.items(doc.get("buffers"), "/buffers", self.limits.names)
        for i, described in enumerate(listed):
            self.buffers.append(self.tensor(described, f"/buffers/{i}"))
        params = tuple(
            self.param(p, f"/params/{i}")
            for i, p in enumerate(self.items(doc.get("params"), "/params", 256))
        )
        if len({id(p) for p in params}) != len(params):
            self.fail("/params", "each parameter once", "one of them twice")
        attrs = self.notes(doc.get("attrs", {}), "/attrs", 0)
        self.check_outputs(attrs, len(params))
        name = self.matching(doc.get("name"), NAME, "/name", "a name")
        body = self.stmt(doc.get("body"), "/body", 0)
        return PrimFunc(name, params, body, attrs, self.span(doc, "")), opened

    # --- declarations ---------------------------------------------------------------------

    def declared(self, value: Any, path: str) -> Var:
        parts = self.items(value, path, 3)
        if len(parts) < 2:
            self.fail(path, "a name and a type", value)
        name = self.matching(parts[0], NAME, f"{path}/0", "a name")
        dtype = self.dtype(parts[1], f"{path}/1")
        if len(parts) == 2:
            return Var(name, dtype)
        if dtype.bits != 64 or not dtype.is_integer:
            self.fail(f"{path}/1", "a 64-bit integer of an address", dtype)
        target = None if parts[2] == "" else self.dtype(parts[2], f"{path}/2")
        return Pointer(name, dtype, target)

    def tensor(self, value: Any, path: str) -> Buffer:
        given = self.members(value, BUFFER_MEMBERS, path)
        scope = self.text(given.get("scope", "global"), f"{path}/scope", SCOPES)
        shape = self.extents(given.get("shape"), f"{path}/shape")
        optional: dict[str, Any] = {
            name: self.flag(given[name], f"{path}/{name}")
            for name in ("is_output", "is_var", "in_tensor_memory", "of_cluster")
            if name in given
        }
        if "reducer" in given:
            optional["reducer"] = self.text(given["reducer"], f"{path}/reducer", REDUCERS)
        if "strides" in given:
            optional["strides"] = self.extents(given["strides"], f"{path}/strides")
            if len(optional["strides"]) != len(shape):
                self.fail(f"{path}/strides", f"{len(shape)} strides", len(optional["strides"]))
        if "base" in given:
            base = self.buffer(given["base"], f"{path}/base")
            if base.base is not None:
                self.fail(f"{path}/base", "a buffer that is no view itself", f"`{base.name}`")
            optional["base"] = base
        if "address" in given:
            optional["address"] = self.expr(given["address"], f"{path}/address", 0)
        if "arrive_counts" in given:
            counts = self.items(given["arrive_counts"], f"{path}/arrive_counts", 4096)
            optional["arrive_counts"] = tuple(
                self.integer(c, f"{path}/arrive_counts/{i}", 0, self.limits.threads)
                for i, c in enumerate(counts)
            )
        if "lanes" in given:
            lanes = self.integer(given["lanes"], f"{path}/lanes", 1, MOST)
            if lanes > 1 and (not shape or int_value(shape[-1]) != lanes):
                self.fail(f"{path}/lanes", "as many as the last axis has elements", lanes)
            optional["lanes"] = lanes
        return Buffer(
            self.matching(given.get("name"), NAME, f"{path}/name", "a name"),
            shape, self.dtype(given.get("dtype"), f"{path}/dtype"), scope,
            span=self.span(given, path), **optional,
        )  # fmt: skip

    def extents(self, value: Any, path: str) -> tuple[Expr, ...]:
        found = self.exprs(value, path, 0, self.limits.axes)
        for i, extent in enumerate(found):
            if not extent.dtype.is_integer:
                self.fail(f"{path}/{i}", "an integer", f"a {extent.dtype}")
        return found

    def param(self, value: Any, path: str) -> Buffer | Var:
        given = self.members(value, ("buffer", "var"), path)
        if len(given) != 1:
            self.fail(path, "a buffer or a var", given)
        if "var" in given:
            return self.var(given["var"], f"{path}/var")
        found = self.buffer(given["buffer"], f"{path}/buffer")
        if found.scope != "global" or found.base is not None or found.address is not None:
            self.fail(f"{path}/buffer", "a tensor", f"the tile or view `{found.name}`")
        return found

    def check_outputs(self, attrs: Mapping[str, Any], params: int) -> None:
        """Check the one attribute that says how a program is called."""
        positions = attrs.get("out_idx", ())
        if not isinstance(positions, tuple) or not all(
            isinstance(p, int) and not isinstance(p, bool) and -params <= p < params
            for p in positions
        ):
            self.fail("/attrs/out_idx", f"positions among {params} parameters", positions)

    def span(self, given: Mapping[str, Any], path: str) -> SourceSpan:
        if "at" not in given:
            return SourceSpan.unknown()
        at = self.items(given["at"], f"{path}/at", 4)
        if len(at) < 3:
            self.fail(f"{path}/at", "file, line and column", at)
        file = self.reference(at[0], f"{path}/at/0", len(self.files), "files")
        numbers = [self.integer(n, f"{path}/at/{i}", 0, 1 << 24) for i, n in enumerate(at[1:], 1)]
        # In brackets: whoever shows the error must not look for a file of that name here.
        return SourceSpan(f"<{self.files[file]}>", *numbers)

    # --- statements -----------------------------------------------------------------------

    def stmt(self, value: Any, path: str, depth: int) -> Stmt:
        self.count(path, depth)
        if not isinstance(value, dict) or not isinstance(value.get("node"), str):
            self.fail(path, "a statement with its `node`", value)
        form = STATEMENTS.get(value["node"])
        if form is None:
            self.fail(f"{path}/node", f"one of {', '.join(STATEMENTS)}", value["node"][:40])
        self.members(value, {"node", "at", *form.fields}, path)
        usually = usual(form.kind)
        fields: dict[str, Any] = {}
        for name, kind in form.fields.items():
            if name in value:
                fields[name] = self.field(form, name, kind, value[name], f"{path}/{name}", depth)
            elif name not in usually:
                self.fail(path, f"a member `{name}` of {value['node']}", "none")
        for problem in expressions.form_faults(form.kind, fields):
            self.fail(path, *problem)
        fields["span"] = self.span(value, path)
        return form.kind(**fields)

    def field(  # noqa: C901 - one case per kind of value
        self, form: Form, name: str, kind: str, value: Any, path: str, depth: int
    ) -> Any:  # fmt: skip
        match kind:
            case "expr":
                return self.expr(value, path, depth + 1)
            case "exprs":
                return self.exprs(value, path, depth + 1, 64)
            case "var":
                return self.bound(value, path)
            case "vars":
                listed = self.items(value, path, self.limits.axes)
                return tuple(self.bound(v, f"{path}/{i}") for i, v in enumerate(listed))
            case "buffer":
                return self.buffer(value, path)
            case "region":
                return self.region(value, path, depth + 1)
            case "regions":
                listed = self.items(value, path, 2)
                return tuple(self.region(r, f"{path}/{i}", depth) for i, r in enumerate(listed))
            case "load":
                return self.load(value, path, depth + 1)
            case "stmt":
                return self.stmt(value, path, depth + 1)
            case "copy":
                found = self.stmt(value, path, depth + 1)
                return found if isinstance(found, Copy) else self.fail(path, "a copy", value)
            case "stmts":
                listed = self.items(value, path, self.limits.nodes)
                return tuple(self.stmt(s, f"{path}/{i}", depth + 1) for i, s in enumerate(listed))
            case "notes":
                return self.notes(value, path, depth + 1)
            case "value":
                return self.value(value, path, depth + 1)
            case "ints":
                listed = self.items(value, path, self.limits.axes)
                return tuple(self.integer(n, f"{path}/{i}", -16, 1 << 16)
                             for i, n in enumerate(listed))  # fmt: skip
            case "int":
                return self.integer(value, path, -(1 << 31), 1 << 32)
            case "flag":
                return self.flag(value, path)
            case _:
                return self.text(value, path, form.choices.get(name, ()))
