"""Arguments and results that are more than tensors: lists, dicts, and objects with attributes.

What a function does to lists, dicts and objects that it is given is told from what they hold
before and after it was read, and is done to them at every call: ``cache.keys = torch.cat(...)``.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from tilecore.computing import arrays
from tilecore.computing.calls import TYPES
from tilecore.computing.extents import Extent, at
from tilecore.computing.operands import is_tensor, need_own_class
from tilecore.computing.places import Place
from tilecore.computing.reading.cells import Cells
from tilecore.computing.reading.tables import Table
from tilecore.errors import TypeMismatch

Items = dict[Any, Any]  # of a list by position, of a dict by key, of an object by attribute


class _Plain:
    """An object all of whose state is in its ``__dict__``."""


_objects: dict[type, bool] = {}


def is_object(value: Any) -> bool:
    """Return whether a value is an object that attributes tell from others, and no value.

    Callable ones are functions to whoever reads them: modules of torch among them.
    """
    kind: Any = type(value)
    known = _objects.get(kind)
    if known is None:
        has_state = kind.__basicsize__ == _Plain.__basicsize__ and hasattr(value, "__dict__")
        is_value = kind.__hash__ not in (None, object.__hash__)
        known = _objects[kind] = has_state and not (is_value or callable(value))
    return known


def items_of(container: Any) -> Items:
    """Return what a list, a dict, an object or cells hold."""
    if isinstance(container, list):
        return dict(enumerate(container))
    if isinstance(container, Cells):
        return container.items()
    return dict(container if isinstance(container, dict) else vars(container))


def fill(container: Any, items: Items) -> None:
    """Have a list, a dict, an object or cells hold some items and nothing else."""
    if isinstance(container, list):
        container[:] = items.values()
    elif isinstance(container, Cells):
        container.fill(items)
    elif isinstance(container, dict):
        for key in container.keys() - items.keys():
            del container[key]
        for key, item in items.items():
            container[key] = item
    else:
        vars(container).clear()
        vars(container).update(items)


# --- arguments ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Passed:
    """The arguments of a call, to be passed on as they came: by position or by name, no defaults.

    Attributes:
        parameters: of the function.
        arguments: by the names of parameters.
        named: those that came by name.
    """

    parameters: Mapping[str, inspect.Parameter]
    arguments: dict[str, Any]
    named: frozenset[str]

    @classmethod
    def of(cls, bound: inspect.BoundArguments, kwargs: Mapping[str, Any]) -> Passed:
        """Return those of a call with some keywords."""
        return cls(bound.signature.parameters, bound.arguments, frozenset(kwargs))

    def changed(self, arguments: Mapping[str, Any]) -> Passed:
        """Return others that are passed in the same way."""
        return Passed(self.parameters, dict(arguments), self.named)

    @property
    def args(self) -> tuple[Any, ...]:
        """What is passed by position."""
        found: list[Any] = []
        for name, value in self.arguments.items():
            if self.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
                found += value
            elif not self._is_named(name):
                found.append(value)
        return tuple(found)

    @property
    def kwargs(self) -> dict[str, Any]:
        """What is passed by name."""
        found: dict[str, Any] = {}
        for name, value in self.arguments.items():
            if self.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                found |= value
            elif self._is_named(name):
                found[name] = value
        return found

    def _is_named(self, name: str) -> bool:
        kind = self.parameters[name].kind
        is_either = kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        is_keyword = kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
        return is_keyword or (is_either and name in self.named)


class Varying(int):
    """An integer that is passed, and may vary as sizes do."""


@dataclass(eq=False)
class Arguments:
    """The arguments of a call, taken apart.

    Attributes:
        tensors: by their place, such as ``cache.layers.0.keys``.
        numbers: integers that objects hold or that are told to vary, and floats, by their place;
            they may vary as sizes do.
        containers: lists, dicts and objects, by their place.
        structure: what tells these arguments from others, whatever their tensors and numbers are.
    """

    tensors: dict[str, Any] = field(default_factory=dict)
    numbers: dict[str, int | float] = field(default_factory=dict)
    containers: dict[str, Any] = field(default_factory=dict)
    structure: Any = ()

    @classmethod
    def of(
        cls, arguments: Mapping[str, Any], held: Mapping[str, Any] = MappingProxyType({})
    ) -> Arguments:
        """Return those of a call, by the function's parameters.

        ``held``: containers that are passed beside them, though no parameter has them.

        Raises:
            TypeMismatch: one of them has no value to compare (TC202).
        """
        found = cls()
        known: dict[int, str] = {}
        parts = [
            (name, found._taken(value, name, known, in_object))
            for values, in_object in ((arguments, False), (held, True))
            for name, value in values.items()
        ]
        found.structure = tuple(parts)
        return found

    def _taken(self, value: Any, place: str, known: dict[int, str], in_object: bool) -> Any:
        """Return a value as part of the structure."""
        kind = type(value)
        if is_tensor(value):
            if in_object and str(value.dtype).removeprefix("torch.") not in TYPES:
                return _Same(value)  # the function may not read it
            if in_object and 0 in value.shape:
                return "empty", value.dtype, tuple(value.shape)
            if not in_object and kind is not np.ndarray:
                need_own_class(place, value)
            self.tensors[place] = value
            return "tensor"
        if isinstance(value, tuple):
            parts = enumerate(value)
            return kind, *(self._taken(v, f"{place}.{i}", known, in_object) for i, v in parts)
        is_own = is_object(value)  # as cells are
        if is_own or isinstance(value, list | dict):
            if id(value) in known:
                return "again", known[id(value)]
            known[id(value)] = place
            self.containers[place] = value
            return kind, *(
                (k, self._taken(v, f"{place}.{k}", known, in_object or is_own))
                for k, v in items_of(value).items()
            )
        if (in_object and kind is int) or kind in (float, Varying):
            self.numbers[place] = int(value) if kind is Varying else value
            return "number", kind
        try:
            hash(value)
        except TypeError:
            if in_object:
                return _Same(value)
            expected = "tensors, and values that can be keys of a dict"
            raise TypeMismatch(expected=expected, found=kind.__name__) from None
        return kind, value

    def items(self) -> dict[str, Items]:
        """Return what containers hold, by their place."""
        return {place: items_of(container) for place, container in self.containers.items()}

    @contextmanager
    def replaced(
        self, arguments: dict[str, Any], values: Mapping[str, Any]
    ) -> Iterator[dict[str, Items]]:
        """Have arguments hold other tensors and numbers, by their place; then what they held.

        What containers hold meanwhile is yielded, by their place.
        """
        before = self.items()

        def changed(value: Any, place: str) -> Any:
            if place in values:
                return values[place]
            if isinstance(value, tuple):
                parts = [changed(v, f"{place}.{i}") for i, v in enumerate(value)]
                return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
            return value

        put = {
            place: {k: changed(v, f"{place}.{k}") for k, v in items.items()}
            for place, items in before.items()
        }
        try:
            for place, items in put.items():
                fill(self.containers[place], items)
            for name, value in arguments.items():
                arguments[name] = changed(value, name)
            yield put
        finally:
            for place, items in before.items():
                fill(self.containers[place], items)

    def outcome(
        self, returned: Any, put: Mapping[str, Items], written: Mapping[str, Any],
        is_leaf: Callable[[Any], bool],
    ) -> tuple[Outcome, list[Any]]:  # fmt: skip
        """Return what a function returned and did to containers, and the tensors of both.

        ``written``: tensors of the call that it wrote to, by their place; they come last.
        """
        names = {id(container): place for place, container in self.containers.items()}
        names |= {id(tensor): place for place, tensor in written.items()}
        forming = Forming(is_leaf, names)
        form = forming.form(returned)
        effects = []
        for place, items in put.items():
            now = items_of(self.containers[place])
            gone = tuple(k for k in items if k not in now)
            changed = [k for k, v in now.items() if k not in items or not _is_same(v, items[k])]
            if isinstance(self.containers[place], list) and (changed or gone):
                changed = list(now)
            if changed or gone:
                parts = {k: forming.form(now[k]) for k in changed}
                effects.append(Effect(place, parts, gone))
        first = len(forming.leaves)
        return Outcome(form, tuple(effects), dict(zip(written, itertools.count(first)))), [
            *forming.leaves,
            *written.values(),
        ]


def are_apart(tensors: Mapping[str, Any], names: Collection[str], held: Sequence[Any]) -> bool:
    """Return whether the tensors of a call that have these names share no memory with another one.

    ``held``: more of them.
    """
    counts = Counter(map(arrays.memory, (*tensors.values(), *held)))
    return all(counts[arrays.memory(tensors[name])] == 1 for name in names)


@dataclass(frozen=True, slots=True)
class _Same:
    """Stands for an object that is itself and has no value to compare."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _is_same(value: Any, before: Any) -> bool:
    if isinstance(value, Extent) and isinstance(before, Extent):
        return dict(value.terms) == dict(before.terms)
    if value is before:
        return True
    is_plain = type(value) is type(before) and type(value) in (bool, int, float, str)
    return is_plain and bool(value == before)


# --- results --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leaf:
    """Stands for one of the tensors that are computed."""

    number: int


@dataclass(frozen=True, slots=True)
class Theirs:
    """Stands for a container, or a tensor that is written to, which the call passes."""

    place: str


@dataclass(frozen=True, slots=True)
class Plain:
    """Stands for a value that every call has; an extent is a number at each."""

    value: Any


@dataclass(eq=False)
class Made:
    """Stands for a container that every call makes anew.

    Attributes:
        kind: its type.
        empty: without parts, of a type whose containers are not made by calling it.
        parts: what it holds.
    """

    kind: Any
    empty: Any = None
    parts: dict[Any, Form] = field(default_factory=dict)

    @classmethod
    def like(cls, value: Any) -> Made:
        """Return that of a container, without parts."""
        empty = None
        if isinstance(value, list | dict) and not dataclasses.is_dataclass(value):
            empty = copy.copy(value)
            empty.clear()
        return cls(type(value), empty)

    def made(self, value: Callable[[Form], Any], keep: Callable[[Any], Any]) -> Any:
        """Return one; ``value`` makes parts, ``keep`` gets it before them: they may hold it."""
        if issubclass(self.kind, tuple):
            parts = [value(part) for part in self.parts.values()]
            return keep(self.kind(*parts) if hasattr(self.kind, "_fields") else self.kind(parts))
        if issubclass(self.kind, dict) and self.empty is None:  # results of models of transformers
            return keep(self.kind(**{k: value(part) for k, part in self.parts.items()}))
        found = keep(self.kind.__new__(self.kind) if self.empty is None else copy.copy(self.empty))
        fill(found, {key: value(part) for key, part in self.parts.items()})
        return found


Form = Leaf | Theirs | Plain | Made


@dataclass(eq=False)
class Forming:
    """Takes values apart.

    Attributes:
        is_leaf: what stands for a tensor.
        passed: places of what the call passes and gets back, by its identity.
        leaves: what was found, each once.
    """

    is_leaf: Callable[[Any], bool]
    passed: Mapping[int, str] = field(default_factory=dict)
    leaves: list[Any] = field(default_factory=list)
    _made: dict[int, Made] = field(default_factory=dict)
    _tables: dict[int, Any] = field(default_factory=dict)

    def form(self, value: Any) -> Form:
        """Return the form of a value."""
        if id(value) in self.passed:
            return Theirs(self.passed[id(value)])
        if isinstance(value, Table):  # every call returns one of its own
            value = self._tables.setdefault(id(value), value.traced().copy())
        if self.is_leaf(value):
            number = next((i for i, leaf in enumerate(self.leaves) if leaf is value), None)
            if number is None:
                number = len(self.leaves)
                self.leaves.append(value)
            return Leaf(number)
        if id(value) in self._made:
            return self._made[id(value)]
        is_plain = isinstance(value, tuple | list | dict)
        if not is_plain and not (is_object(value) and self._holds(value, set())):
            return Plain(value)
        found = self._made[id(value)] = Made.like(value)
        items = dict(enumerate(value)) if isinstance(value, tuple) else items_of(value)
        found.parts.update({key: self.form(item) for key, item in items.items()})
        return found

    def _holds(self, value: Any, seen: set[int]) -> bool:
        """Return whether something in a value is for the call to say."""
        if self.is_leaf(value) or isinstance(value, Extent | Table) or id(value) in self.passed:
            return True
        is_container = isinstance(value, tuple | list | dict) or is_object(value)
        if not is_container or id(value) in seen:
            return False
        seen.add(id(value))
        items = value if isinstance(value, tuple) else items_of(value).values()
        return any(self._holds(item, seen) for item in items)


@dataclass(frozen=True, slots=True)
class Effect:
    """What a function does to a container.

    Attributes:
        place: of the container.
        parts: what it holds afterwards; of a list everything, of others what is new.
        gone: what it holds no more.
    """

    place: str
    parts: Mapping[Any, Form]
    gone: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a function returns, and does to what it is given.

    Attributes:
        returned: what it returns.
        effects: on containers.
        writes: to tensors, by their place: which result they are afterwards.
        parts: results that are parts of tensors which are written to: of which, and where in it.
    """

    returned: Form
    effects: tuple[Effect, ...] = ()
    writes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    parts: Mapping[int, tuple[str, Place]] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, values: Mapping[str, int]) -> Outcome:
        """Return it for some sizes."""
        made: dict[int, Made] = {}

        def sized(form: Form) -> Form:
            if isinstance(form, Plain) and isinstance(form.value, Extent):
                return Plain(at(form.value, values))
            if not isinstance(form, Made):
                return form
            if id(form) not in made:
                found = made[id(form)] = Made(form.kind, form.empty)
                found.parts.update({k: sized(part) for k, part in form.parts.items()})
            return made[id(form)]

        effects = (
            Effect(e.place, {k: sized(f) for k, f in e.parts.items()}, e.gone) for e in self.effects
        )
        parts = {n: (name, place.at(values)) for n, (name, place) in self.parts.items()}
        return Outcome(sized(self.returned), tuple(effects), self.writes, parts)

    def build(self, results: Sequence[Any], passed: Mapping[str, Any]) -> Any:
        """Do to what the call passes what the function does; return what it returns.

        ``passed``: containers and tensors by their place.
        """
        for place, number in self.writes.items():
            arrays.write(passed[place], results[number])
        if self.parts:
            own = {n: arrays.part(passed[name], place) for n, (name, place) in self.parts.items()}
            results = [own.get(number, result) for number, result in enumerate(results)]
        if isinstance(self.returned, Leaf) and not self.effects:
            return results[self.returned.number]
        building = _Building(results, passed)
        for effect in self.effects:
            container = passed[effect.place]
            parts = {k: building.value(form) for k, form in effect.parts.items()}
            if isinstance(container, list):
                fill(container, parts)
                continue
            if isinstance(container, Cells):
                kept = {k: v for k, v in container.items().items() if k not in effect.gone}
                container.fill(kept | parts)
                continue
            state = container if isinstance(container, dict) else vars(container)
            for key in effect.gone:
                state.pop(key, None)
            for key, part in parts.items():
                state[key] = part
        return building.value(self.returned)

    def flat(self, returned: Any, count: int) -> list[Any]:
        """Return the tensors of what the function itself returned, in the order of results."""
        found: list[Any] = [None] * count
        seen: set[int] = set()

        def take(form: Form, value: Any) -> None:
            if isinstance(form, Leaf):
                found[form.number] = value
            elif isinstance(form, Made) and id(form) not in seen:
                seen.add(id(form))
                items = dict(enumerate(value)) if isinstance(value, tuple) else items_of(value)
                for key, part in form.parts.items():
                    take(part, items[key])

        take(self.returned, returned)
        return found


@dataclass(eq=False)
class _Building:
    """Puts forms together for one call."""

    results: Sequence[Any]
    passed: Mapping[str, Any]
    _made: dict[int, Any] = field(default_factory=dict)

    def value(self, form: Form) -> Any:
        """Return what a form stands for."""
        if isinstance(form, Leaf):
            return self.results[form.number]
        if isinstance(form, Plain):
            return form.value
        if isinstance(form, Theirs):
            return self.passed[form.place]
        if id(form) in self._made:
            return self._made[id(form)]
        return form.made(self.value, lambda found: self._made.setdefault(id(form), found))
