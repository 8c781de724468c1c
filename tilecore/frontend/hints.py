"""What to do about errors of Python that a program runs into, whose own text knows Python only."""

from __future__ import annotations

import inspect
import re
from types import ModuleType
from typing import Any

from tilecore.errors import did_you_mean

TILE = "a tile or tensor has no value as a whole: compute with its elements, x[i, j], in T.Parallel"
UFUNC = "values of a kernel are computed by functions of T: T.exp(x), not np.exp(x)"
FOREIGN = "a kernel reads tensors that are parameters of it; pass this one, too"
_KEYWORD = re.compile(r"(?:\w+\.)*(\w+)\(\) got an unexpected keyword argument '(\w+)'")


def hint_of(error: Exception) -> str:
    """Return a hint at what the program should say instead; "": there is none."""
    text = str(error)
    unknown = _KEYWORD.match(text)
    if unknown is not None:
        return _keyword_hint(_called(error, unknown[1]), unknown[2])
    if isinstance(error, TypeError) and "ufunc" in text:
        return UFUNC
    if isinstance(error, TypeError) and "'Buffer'" in text:
        return TILE
    if isinstance(error, IndexError) and "(got " in text and "indices" in text:
        return FOREIGN
    return ""


def _called(error: Exception, name: str) -> Any:
    """Return the function of this name in one of the modules that the program knows."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    frame = None if last is None else last.tb_frame
    seen = () if frame is None else (*frame.f_globals.values(), *frame.f_locals.values())
    modules = (value for value in seen if isinstance(value, ModuleType))
    return next((m.__dict__[name] for m in modules if name in m.__dict__), None)


def _keyword_hint(function: Any, found: str) -> str:
    if not inspect.isfunction(function):
        return ""
    known = list(inspect.signature(function).parameters)
    longer = [name for name in known if found in name]
    close = did_you_mean(found, longer or known, "{}=")
    return close or f"its arguments: {', '.join(known)}"
