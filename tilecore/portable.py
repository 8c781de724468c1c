"""A program of which sizes and knobs are open, as data: what a client sends and a service keeps.

**Decision.** Knobs and sizes travel as symbols of one program wherever tracing lets them (trace
once, evaluate many): the receiver puts values in and gets the very program that Python would have
traced, which the sender has checked by digest (``recommender.portable_tracing``). A knob that the
program's Python asks for the value of (a branch, a list index, a float made of it) cannot be a
symbol: then there is one *variant* of the program per combination of values of such knobs, at most
MOST_VARIANTS, and nothing else can be asked of them. A size that cannot be a symbol stays as the
sender gave it and is no part of the question any more.

As JSON::

    {"schema": 1, "name": "matmul", "sizes": ["M", "N", "K"],
     "knobs": [{"name": "block_M", "default": 128}, {"name": "num_stages", "values": [2, 3]}],
     "lowering": {"fixed": {"pack_a": "none"}, "space": {"micro_n": [1, 2]}},
     "variants": [{"values": {"num_stages": 2}, "program": DOCUMENT}, ...]}

``tilecore.ir.document`` describes DOCUMENT; its first ``vars`` are the sizes, then the knobs that
have no value in the variant. Knobs without ``values`` leave these to the receiver, who knows the
device. The digest leaves out where the source stands.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tilecore.errors import InvalidConfig, InvalidDocument, InvalidProblem
from tilecore.ir.dims import dimensions
from tilecore.ir.document import Limits, canonical_bytes, read, write
from tilecore.ir.document.checks import NAME, Checks
from tilecore.ir.expr import Expr, Pointer, Var
from tilecore.ir.nodes import Alloc, Buffer, PrimFunc
from tilecore.ir.substitute import substitute
from tilecore.ir.visitor import walk
from tilecore.recommending import LOWERING
from tilecore.tile_config import KnobValue, in_words
from tilecore.utils.json_once import once

SCHEMA = 1
MOST_BYTES = 1 << 20
MOST_VARIANTS = 64
MOST_KNOBS = 16
MOST_VALUES = 256
LARGEST_SIZE = (1 << 31) - 1
Values = Mapping[str, KnobValue]


@dataclass(frozen=True, slots=True)
class OpenKnob:
    """An open knob: the author's default, and the values to choose from where they are named."""

    name: str
    default: KnobValue | None = None
    values: tuple[KnobValue, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """The program for some values of knobs that cannot be symbols; ``symbols`` are open in it."""

    values: Values
    func: PrimFunc
    symbols: Mapping[str, Var]


@dataclass(frozen=True, eq=False, kw_only=True)
class PortableProgram:
    """A program with open sizes and knobs (see the module).

    Attributes:
        name: of the function that makes it.
        sizes: integers that a problem gives; parts of the program become known with them.
        knobs: what a config gives.
        fixed: knobs of the lowering that are settled.
        space: values of other knobs of the lowering, where somebody named them.
        variants: one, or one per combination of values of the knobs that cannot be symbols.
        notes: what whoever traced it found out for people to know; they do not travel.
    """

    name: str
    sizes: tuple[str, ...]
    knobs: tuple[OpenKnob, ...]
    variants: tuple[Variant, ...]
    fixed: Values = field(default_factory=dict)
    space: Mapping[str, tuple[KnobValue, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    # --- what it is asked ---------------------------------------------------------------------

    @cached_property
    def chosen(self) -> tuple[str, ...]:
        """The knobs that each variant has a value of."""
        return tuple(self.variants[0].values)

    @cached_property
    def call_sizes(self) -> tuple[str, ...]:
        """Integers that a problem gives and a call finds out: dynamic axes, integer parameters."""
        return tuple(v.name for v in _call_symbols(self.variants[0]))

    def parse_problem(self, given: Mapping[str, Any]) -> dict[str, int | str | bool]:
        """Return a value for each size; raises InvalidProblem (TC502)."""
        return parse_sizes((*self.sizes, *self.call_sizes), given)

    def program(self, values: Mapping[str, Any]) -> PrimFunc:
        """Return the program for values of all sizes and knobs (some may be symbols).

        Raises:
            InvalidConfig: there is no variant for the values of knobs that need one (TC303).
            TileError: the values make no program.
        """
        variant = self.variant(values)
        known = {var: values[name] for name, var in variant.symbols.items() if name in values}
        made = substitute(variant.func, known)
        return dataclasses.replace(made, attrs=variant.func.attrs)

    def variant(self, values: Mapping[str, Any]) -> Variant:
        """Return the variant for values of knobs; raises InvalidConfig (TC303)."""
        wanted = {k: values.get(k) for k in self.chosen}
        for variant in self.variants:
            if all(_same(variant.values[k], wanted[k]) for k in self.chosen):
                return variant
        knob = next(iter(self.chosen))
        known = sorted({in_words(v.values) for v in self.variants})
        raise InvalidConfig(
            knob=knob, value=wanted[knob], expected=f"one of the variants sent: {'; '.join(known)}"
        )

    # --- JSON -----------------------------------------------------------------------------------

    def to_json(self, *, with_places: bool = True) -> dict[str, Any]:
        """Return the program as JSON; raises InvalidDocument (TC205) for a hint without a form."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "sizes": list(self.sizes),
            "knobs": [_knob_json(k) for k in self.knobs],
            "lowering": {
                "fixed": dict(self.fixed),
                "space": {k: list(v) for k, v in self.space.items()},
            },
            "variants": [
                {
                    "values": dict(v.values),
                    "program": write(v.func, list(v.symbols.values()), with_places=with_places),
                }
                for v in self.variants
            ],
        }

    @cached_property
    def digest(self) -> str:
        """32 hex digits that identify the program wherever its source stands."""
        return hashlib.sha256(canonical_bytes(self.to_json(with_places=False))).hexdigest()[:32]

    def to_bytes(self) -> bytes:
        """Return the canonical text."""
        return canonical_bytes(self.to_json())


def parse_sizes(wanted: Sequence[str], given: Mapping[str, Any]) -> dict[str, int | str | bool]:
    """Return a value for each of the sizes of a program.

    Raises:
        InvalidProblem: one is unknown, missing or out of range (TC502).
    """
    listed = ", ".join(wanted) or "no fields: the sizes of this program are settled"
    for name in given:
        if name not in wanted:
            raise InvalidProblem(field=name[:64], expected=listed, found="unknown field")
    for name in wanted:
        value = given.get(name)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not 1 <= int(value or 0) <= LARGEST_SIZE:
            expected = f"an integer from 1 to {LARGEST_SIZE}"
            found = "nothing" if value is None else repr(value)[:60]
            raise InvalidProblem(field=name, expected=expected, found=found)
    return {name: int(given[name]) for name in wanted}


def parse(text: bytes | str, limits: Limits | None = None) -> PortableProgram:
    """Return the program of a JSON text; see ``read_portable``.

    Raises:
        InvalidDocument: it is no JSON, or not of this form (TC205).
        TileError: a variant is no well-formed program, by class.
    """
    if len(text) > MOST_BYTES:
        raise InvalidDocument(path="/", expected=f"at most {MOST_BYTES} bytes", found=len(text))
    try:
        document = json.loads(text, object_pairs_hook=once, parse_constant=_no_constant)
    except RecursionError:
        raise InvalidDocument(path="/", expected="less deep nesting", found="more") from None
    except ValueError as error:
        raise InvalidDocument(path="/", expected="JSON in UTF-8", found=str(error)[:80]) from None
    return read_portable(document, limits)


def read_portable(document: Any, limits: Limits | None = None) -> PortableProgram:
    """Return the program of a JSON value.

    Raises:
        InvalidDocument: it is not of this form; the error names the place in the JSON (TC205).
        TileError: a variant is no well-formed program, by class.
    """
    return _Reader(limits or Limits()).portable(document)


class _Reader(Checks):
    def portable(self, document: Any) -> PortableProgram:
        given = self.members(
            document, ("schema", "name", "sizes", "knobs", "lowering", "variants"), ""
        )
        if given.get("schema") != SCHEMA or isinstance(given["schema"], bool):
            self.fail("/schema", str(SCHEMA), given.get("schema"))
        name = self.matching(given.get("name"), NAME, "/name", "a name")
        sizes = tuple(
            self.matching(size, NAME, f"/sizes/{i}", "a name")
            for i, size in enumerate(self.items(given.get("sizes"), "/sizes", MOST_KNOBS))
        )
        knobs = tuple(
            self.knob(knob, f"/knobs/{i}")
            for i, knob in enumerate(self.items(given.get("knobs"), "/knobs", MOST_KNOBS))
        )
        names = [*sizes, *(k.name for k in knobs)]
        if len(set(names)) != len(names) or set(names) & set(LOWERING):
            self.fail("/knobs", "different names for sizes, knobs and the lowering", names)
        lowering = self.members(given.get("lowering", {}), ("fixed", "space"), "/lowering")
        found = PortableProgram(
            name=name, sizes=sizes, knobs=knobs,
            fixed=self.settled(lowering.get("fixed", {})),
            space=self.choices(lowering.get("space", {})),
            variants=self.variants(given.get("variants"), sizes, knobs),
        )  # fmt: skip
        clash = sorted(set(found.call_sizes) & set(names))
        if clash or len(set(found.call_sizes)) != len(found.call_sizes):
            self.fail("/sizes", "names that no axis or parameter has", ", ".join(clash))
        return found

    def knob(self, value: Any, path: str) -> OpenKnob:
        given = self.members(value, ("name", "default", "values"), path)
        default, values = given.get("default"), None
        if default is not None:
            default = self.knob_value(default, f"{path}/default")
        if "values" in given:
            values = self.knob_values(given["values"], f"{path}/values")
        return OpenKnob(
            self.matching(given.get("name"), NAME, f"{path}/name", "a name"), default, values
        )

    def knob_values(self, value: Any, path: str) -> tuple[KnobValue, ...]:
        listed = self.items(value, path, MOST_VALUES)
        found = tuple(self.knob_value(v, f"{path}/{i}") for i, v in enumerate(listed))
        if not found or len({type(v) for v in found}) != 1 or len(set(found)) != len(found):
            self.fail(path, "different values of one kind", value)
        return found

    def knob_value(self, value: Any, path: str) -> KnobValue:
        if isinstance(value, bool):
            return value
        if isinstance(value, int):
            return self.integer(value, path, -(1 << 31), LARGEST_SIZE)
        return self.matching(value, NAME, path, "an integer, a flag or a name")

    def settled(self, value: Any) -> Values:
        known = ("float32_products", "fast_math", *LOWERING)
        given = self.members(value, known, "/lowering/fixed")
        return {k: self.knob_value(v, f"/lowering/fixed/{k}") for k, v in given.items()}

    def choices(self, value: Any) -> Mapping[str, tuple[KnobValue, ...]]:
        given = self.members(value, LOWERING, "/lowering/space")
        return {k: self.knob_values(v, f"/lowering/space/{k}") for k, v in given.items()}

    def variants(
        self, value: Any, sizes: Sequence[str], knobs: Sequence[OpenKnob]
    ) -> tuple[Variant, ...]:
        listed = self.items(value, "/variants", MOST_VARIANTS)
        found = [
            self.variant(v, f"/variants/{i}", sizes, [k.name for k in knobs])
            for i, v in enumerate(listed)
        ]
        if not found:
            self.fail("/variants", "at least one variant", "none")
        for i, variant in enumerate(found):
            if tuple(variant.values) != tuple(found[0].values):
                self.fail(f"/variants/{i}/values", _names(found[0].values), _names(variant.values))
            if [v.name for v in _call_symbols(variant)] != [
                v.name for v in _call_symbols(found[0])
            ]:
                self.fail(f"/variants/{i}/program/params", "the sizes of the first", "others")
        if len({in_words(v.values) for v in found}) != len(found):
            self.fail("/variants", "different values in each", "two variants for the same")
        return tuple(found)

    def variant(
        self, value: Any, path: str, sizes: Sequence[str], knobs: Sequence[str]
    ) -> Variant:  # fmt: skip
        given = self.members(value, ("values", "program"), path)
        values = self.members(given.get("values"), knobs, f"{path}/values")
        chosen = {k: self.knob_value(values[k], f"{path}/values/{k}") for k in knobs if k in values}
        names = [*sizes, *(k for k in knobs if k not in chosen)]
        try:
            func, symbols = read(given.get("program"), self.limits, symbols=names)
        except InvalidDocument as error:
            raise InvalidDocument(
                path=f"{path}/program{error.fields['path'].rstrip('/')}",
                expected=error.fields["expected"], found=error.fields["found"],
            ) from None  # fmt: skip
        return Variant(chosen, func, symbols)


def _call_symbols(variant: Variant) -> list[Var]:
    """Return the dynamic axes and integer parameters of a variant's program."""
    opened = {id(v) for v in variant.symbols.values()}
    axes = [v for v in dimensions(variant.func) if id(v) not in opened]
    scalars = [
        p
        for p in variant.func.params
        if isinstance(p, Var) and not isinstance(p, Pointer) and p.dtype.is_integer
    ]
    return [*axes, *(s for s in scalars if not any(s is a for a in axes))]


def at_sizes(func: PrimFunc, problem: Mapping[str, Any]) -> PrimFunc:
    """Return a program whose dynamic axes and integer parameters have the values of a problem."""
    wanted: list[Var] = [*dimensions(func), *(p for p in func.params if isinstance(p, Var))]
    return substitute(func, {v: problem[v.name] for v in wanted if v.name in problem})


def unmeasurable(func: PrimFunc) -> list[str]:
    """Return what keeps a program from being run on random inputs.

    Parameters that no problem gives a value to (addresses, fractions), and memory at an address.
    """
    found = [
        p.name
        for p in func.params
        if not isinstance(p, Buffer) and (isinstance(p, Pointer) or not p.dtype.is_integer)
    ]
    return found + [
        s.buffer.name
        for s in walk(func.body)
        if isinstance(s, Alloc) and s.buffer.address is not None
    ]


def _knob_json(knob: OpenKnob) -> dict[str, Any]:
    found: dict[str, Any] = {"name": knob.name}
    if knob.default is not None:
        found["default"] = knob.default
    if knob.values is not None:
        found["values"] = list(knob.values)
    return found


def _same(a: KnobValue, b: Any) -> bool:
    return not isinstance(b, Expr) and type(a) is type(b) and a == b


def _names(values: Values) -> str:
    return ", ".join(values) or "no values"


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name}, which JSON does not have")
