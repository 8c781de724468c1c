"""A module that is imported once something of it is asked for."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


def later(name: str) -> ModuleType:
    """Return what stands for a module among ``sys.modules`` until somebody uses it.

    Who looks at all modules (``inspect`` does, for the source of a function) does not use it.
    """
    module = ModuleType(name)
    module.__file__ = None

    def found(attribute: str) -> Any:
        if attribute.startswith("__") and attribute != "__path__":
            raise AttributeError(f"module {name!r} is not imported yet: no {attribute!r}")
        if sys.modules.get(name) is module:
            del sys.modules[name]
        return getattr(importlib.import_module(name), attribute)

    module.__dict__["__getattr__"] = found
    return module
