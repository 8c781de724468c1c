"""What to do about errors of Python that a program runs into, whose own text knows Python only."""

from __future__ import annotations

import inspect
import re
from types import ModuleType
from typing import Any

from tilecore.errors import did_you_mean
from tilecore.ir.expr import CALLS

TILE = "a tile or tensor has no value as a whole: compute with its elements, x[i, j], in T.Parallel"
VALUES = "values of a kernel are computed by functions of T"
FOREIGN = "a kernel reads tensors that are parameters of it; pass this one, too"
# What T calls otherwise than torch and NumPy do.
OWN_NAMES = {
    "maximum": "max", "minimum": "min", "where": "if_then_else", "power": "pow", "clip": "clamp",
    "arctan2": "atan2", "fmax": "max", "fmin": "min",
}  # fmt: skip
_TORCH = re.compile(r"(\w+)\(\)(?:: argument .* must be Tensor, not| received an invalid combi)")
_UFUNC = re.compile(r"callable (\w+) method|ufunc '(\w+)'")
_BUILTIN = re.compile(r"bad operand type for (abs)\(\)|doesn't define __(round)__ method")
_KEYWORD = re.compile(r"(?:\w+\.)*(\w+)\(\) got an unexpected keyword argument '(\w+)'")


def hint_of(error: Exception) -> str:
    """Return a hint at what the program should say instead; "": there is none."""
    text = str(error)
    unknown = _KEYWORD.match(text)
    if unknown is not None:
        return _keyword_hint(_called(error, unknown[1]), unknown[2])
    if isinstance(error, TypeError) and "ufunc" in text:
        ufunc = _UFUNC.search(text)
        return _own("np", "exp" if ufunc is None else ufunc[1] or ufunc[2])
    of_torch = _TORCH.match(text) if isinstance(error, TypeError) else None
    if isinstance(error, TypeError) and ("'Buffer'" in text or (of_torch and "Buffer" in text)):
        return TILE
    if of_torch is not None:
        return _own("torch", of_torch[1])
    builtin = _BUILTIN.search(text) if isinstance(error, TypeError) else None
    if builtin is not None:
        name = builtin[1] or builtin[2]
        return f"{VALUES}: T.{name}(...), not {name}(...)"
    if isinstance(error, IndexError) and "(got " in text and "indices" in text:
        return FOREIGN
    return ""


def _own(module: str, name: str) -> str:
    """Return a hint at the function of T that does what one of another module does."""
    own = OWN_NAMES.get(name, name)
    is_known = own in CALLS or own != name
    return f"{VALUES}: T.{own}(...), not {module}.{name}(...)" if is_known else VALUES


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
