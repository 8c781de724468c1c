"""``import tilelang.x.y`` finds tilecore's counterpart while :func:`aliased` is active.

``import tvm`` finds :mod:`tilecore.compat.tvm` then, but for tilecore and TVM themselves.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ALIAS, OURS = "tilelang", "tilecore"

# TileLang's module -> ours, where the names differ below the package.
COUNTERPARTS = {
    "autotuner.tuner": "autotuner",
    "backend.target": "utils.target",
    "cache": "jit",
    "carver.arch.driver": "carver.arch",
    "cpu.language": "language",
    "cuda.intrinsics": "intrinsics",
    "cuda.intrinsics.layout.mma_layout": "layout",
    "cuda.intrinsics.layout.utils": "layout",
    "cuda.intrinsics.macro": "intrinsics",
    "cuda.intrinsics.macro.mma_macro_generator": "intrinsics",
    "cuda.intrinsics.sparse_layout": "language.sparse",
    "cuda.language": "language",
    "engine.callback": "engine",
    "engine.lower": "engine",
    "engine.param": "engine",
    "intrinsics.mma_layout": "layout",
    "intrinsics.mma_macro_generator": "intrinsics",
    "intrinsics.utils": "intrinsics",
    "jit.kernel": "kernel",
    "language.dtypes": "language",
    "language.tir.ir": "language",
    "language.tir.op": "language",
    "layout.layout": "layout",
    "layout.fragment": "layout",
    "layout.swizzle": "layout",
    "profiler.bench": "profiler",
    "rocm.language": "language",
    "tileop.base": "language",
    "transform.pass_config": "pass_config",
    "transform.simplify": "transform",
    "utils.device": "utils.target",
}


class _Missing(ModuleNotFoundError):
    """A module of TileLang without a counterpart here."""


class _AliasLoader(Loader):
    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has put the alias's spec there


class AliasFinder(MetaPathFinder):
    """Finds ``tilelang`` and what is below it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec whose module is tilecore's."""
        _ = path, target
        root, _, rest = fullname.partition(".")
        if root != ALIAS:
            return None
        name = f"{OURS}.{COUNTERPARTS.get(rest, rest)}" if rest else OURS
        if any(key.startswith(f"{rest}.") for key in COUNTERPARTS) and not _is_ours(name):
            return ModuleSpec(fullname, _AliasLoader(ModuleType(fullname)), is_package=True)
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (error.name == OURS or error.name.startswith(f"{OURS}.")):
                raise
            raise _Missing(f"tilecore has no counterpart of {fullname}", name=fullname) from None
        return ModuleSpec(
            fullname, _AliasLoader(module), is_package=True, origin=f"alias of {name}"
        )


TVM = "tvm"
_THEIR_OWN = ("tilecore", "tvm", "tvm_ffi")  # packages that mean TVM when they say so


def _import_as_programs_mean(real: Any) -> Any:
    def find(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        root, _, rest = name.partition(".")
        asker = str((globals or {}).get("__name__", "")).partition(".")[0]
        if level or root != TVM or asker in _THEIR_OWN:
            return real(name, globals, locals, fromlist, level)
        found: Any = importlib.import_module("tilecore.compat.tvm")
        for part in rest.split(".") if rest and fromlist else ():
            found = getattr(found, part)
        return found

    return find


def _is_ours(name: str) -> bool:
    """Return whether tilecore has a module of this name (its parent must exist)."""
    return importlib.util.find_spec(name) is not None


@contextlib.contextmanager
def aliased() -> Iterator[None]:
    """Answer imports of ``tilelang`` with tilecore inside the block.

    A TileLang that is installed here too is hidden meanwhile.
    """
    hidden = {n: m for n, m in sys.modules.items() if n.partition(".")[0] == ALIAS}
    for name in hidden:
        del sys.modules[name]
    finder = AliasFinder()
    sys.meta_path.insert(0, finder)
    real = builtins.__import__
    builtins.__import__ = _import_as_programs_mean(real)
    try:
        yield
    finally:
        builtins.__import__ = real
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n.partition(".")[0] == ALIAS]:
            del sys.modules[name]
        sys.modules.update(hidden)
