"""What a function may read beside its arguments, as far as the names in its code go.

Variables and those of the functions that it may call lead to lists, dicts, modules of torch, and
objects with attributes. Of installed packages (``_is_installed``) the objects are looked at,
whatever attributes they have; their functions, classes and variables are taken to stay as they are.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from tilecore.computing.operands import is_tensor
from tilecore.computing.reading.cells import CONTENTS, Cells

# Packages whose objects have nothing to say either.
STABLE = frozenset({*sys.stdlib_module_names, "numpy", "torch", "tilecore"}) - {"__main__"}
# What every module of torch has and reads; the dicts among them stay the same dicts.
DICTS = frozenset({"_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"})
OF_MODULES = DICTS | {"training", "forward"}
MAKING = ("__init__", "__new__", "__post_init__")  # which calls of other methods do not run
# Where code has these names, names of attributes may be worked out.
OPENING = frozenset(
    {"getattr", "setattr", "delattr", "vars", "__dict__", "attrgetter", "methodcaller"}
)
OF_VARIABLES = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
PLAIN = (bool, int, float, complex, str, bytes, type(None))
MOST_PLAIN = 4096  # of a list or dict of plain values; with more it is taken to stay as it is


@dataclass(eq=False)
class Space:
    """Named entries: attributes of objects and classes, variables of modules.

    Attributes:
        owner: the dict, or the class.
        names: which of them matter; None: all.
        grows: whether more of them may come.
        known: those that were found.
    """

    owner: Any
    names: set[str] | None
    grows: bool = False
    known: set[str] = field(default_factory=set)

    @property
    def entries(self) -> Mapping[str, Any]:
        """All that there is."""
        return vars(self.owner) if isinstance(self.owner, type) else self.owner


class Reach:
    """What a function may read.

    Attributes:
        spaces: attributes and variables, by the identity of what has them.
        wholes: lists, dicts and sets.
        variables: of closures.
    """

    def __init__(self, function: Callable[..., Any], taken: Callable[[Any], Iterable[Any]]) -> None:
        """Find all of it.

        Args:
            function: a function, a method, or a module of torch.
            taken: returns which entries of an owner are left out.
        """
        self.spaces: dict[int, Space] = {}
        self.wholes: list[Any] = []
        self.variables: list[CellType] = []
        self._taken = taken
        self._names = set(OF_MODULES)  # that occur in any code
        self._is_open = False  # whether others may
        self._seen: dict[int, Any] = {}
        self._first = getattr(function, "__func__", function)  # is looked at wherever it is from
        self._todo: list[Any] = [function]
        while self._todo:
            while self._todo:
                self._see(self._todo.pop())
            for space in list(self.spaces.values()):
                self._look(space)

    def _look(self, space: Space) -> None:
        """See what has one of the names that are known by now."""
        entries, taken = space.entries, self._taken(space.owner)
        if self._is_open and space.names is self._names:
            space.names = None
        names = entries.keys() if space.names is None else space.names & entries.keys()
        found = names - space.known - set(taken)
        space.known |= found
        self._todo += [entries[k] for k in found]
        if isinstance(space.owner, type):  # which Python itself calls
            own = (v for k, v in entries.items() if k[:2] == "__" and k not in MAKING)
            self._todo += [v for v in own if _is_function(v) and id(v) not in self._seen]

    def _see(self, value: Any) -> None:
        if type(value) in PLAIN or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        parts = _parts(value)
        if parts is not None:
            self._todo += parts
        elif isinstance(value, FunctionType):
            self._see_function(value)
        elif isinstance(value, list | dict | set | deque):
            self._see_container(value)
        elif isinstance(value, type):  # which the function may make objects of
            self._see_class(value)
            self._todo += [vars(k)[n] for k in value.__mro__ for n in MAKING if n in vars(k)]
        elif isinstance(value, ModuleType):
            if not _is_installed(value.__name__):
                self._see_space(vars(value), self._names)
        elif not is_tensor(value) and hasattr(value, "__dict__"):
            self._see_object(value)

    def _see_space(self, owner: Any, names: set[str] | None, grows: bool = False) -> None:
        """See entries of some names, all for None."""
        self.spaces.setdefault(id(owner), Space(owner, names, grows))

    def _see_function(self, function: FunctionType) -> None:
        variables = function.__globals__
        contents = [(c, Cells(c, [CONTENTS]).items()) for c in function.__closure__ or ()]
        is_first = function is self._first
        if _is_installed(variables.get("__name__")) and not is_first:  # it may stand for another
            values = [v for _, items in contents for v in items.values()]
            self._todo += [v for v in values if isinstance(v, FunctionType | MethodType)]
            return
        names = _names(function.__code__)
        self._names |= names
        self._is_open |= not OPENING.isdisjoint(names)
        self._see_space(variables, set())
        of_module = self.spaces[id(variables)].names
        if of_module is not None:
            of_module |= _variables(function.__code__)
        for cell, items in contents:
            if items and id(cell) not in self._seen and not self._taken(cell):
                self._seen[id(cell)] = cell
                self.variables.append(cell)
                self._todo += items.values()
        self._todo += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        if vars(function):
            self._see(vars(function))

    def _see_container(self, container: Any) -> None:
        is_dict, is_taken = isinstance(container, dict), bool(self._taken(container))
        if is_dict and is_taken:
            self._see_space(container, set(container), grows=True)
        elif not is_taken:
            entries = list(container.values() if is_dict else container)
            if len(entries) <= MOST_PLAIN or not all(type(e) in PLAIN for e in entries):
                self.wholes.append(container)
                self._todo += entries

    def _see_object(self, value: Any) -> None:
        kind, own = type(value), vars(value)
        names: set[str] | None
        if _is_module(value):
            names = {k for k in own if k not in _of_every_module() or k in OF_MODULES}
            is_open = all(
                _is_stable(k.__module__) or not _is_installed(k.__module__) for k in kind.__mro__
            )
            if is_open and not _is_stable(kind.__module__):
                names = self._names
        elif _is_stable(kind.__module__):
            of_others = "function", "__wrapped__"  # of another computation, of a cache
            self._todo += [getattr(value, name, None) for name in of_others]
            return
        else:
            names = None if _is_installed(kind.__module__) else self._names
        self._see_space(own, names, grows=True)
        self._see_class(kind)

    def _see_class(self, kind: type) -> None:
        for one in kind.__mro__:
            if not _is_installed(one.__module__):
                self._see_space(one, self._names)


def _parts(value: Any) -> list[Any] | None:
    """Return what a value that stays as it is leads to; None: it is of another kind."""
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, staticmethod | classmethod):
        return [value.__func__]
    if isinstance(value, property):
        return [value.fget, value.fset]
    if isinstance(value, functools.cached_property):
        return [value.func]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    return list(value) if isinstance(value, tuple | frozenset) else None


@functools.cache
def _names(code: CodeType) -> frozenset[str]:
    """Return the names of variables and attributes in some code and its functions, and texts."""
    texts = (c for c in code.co_consts if isinstance(c, str))
    return frozenset(code.co_names).union(texts, *map(_names, _inner(code)))


@functools.cache
def _variables(code: CodeType) -> frozenset[str]:
    """Return the names of variables of modules in some code and its functions."""
    found = (i.argval for i in dis.get_instructions(code) if i.opname in OF_VARIABLES)
    return frozenset(found).union(*map(_variables, _inner(code)))


def _inner(code: CodeType) -> list[CodeType]:
    return [c for c in code.co_consts if isinstance(c, CodeType)]


def _is_function(value: Any) -> bool:
    return isinstance(value, FunctionType | staticmethod | classmethod | property)


def _is_stable(module: str | None) -> bool:
    return (module or "").partition(".")[0] in STABLE


_installed: dict[str, bool] = {}


def _is_installed(module: str | None) -> bool:
    """Return whether a module is of a package that was installed, and no code of the user's."""
    name = (module or "").partition(".")[0]
    known = _installed.get(name)
    if known is None:
        file = getattr(sys.modules.get(name), "__file__", None)
        known = name in STABLE
        if not known and file is not None:
            path = Path(file)
            site = path.parent.parent if path.stem == "__init__" else path.parent
            known = any(site.glob("*.dist-info"))
        _installed[name] = known
    return known


def _is_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


@functools.cache
def _of_every_module() -> frozenset[str]:
    """Return the names of the attributes that torch gives every module."""
    import torch

    return frozenset(vars(torch.nn.Module()))
