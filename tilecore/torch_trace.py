"""Whether torch traces the code that runs, and what that code can refer to."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

_numbers = itertools.count()
_labelled: WeakValueDictionary[str, Any] = WeakValueDictionary()


def labelled(thing: Any) -> str:
    """Return a name that nothing else has in this process: traced code can pass it on as text."""
    label = str(next(_numbers))
    _labelled[label] = thing
    return label


def labelled_as(label: str) -> Any:
    """Return what has a name."""
    return _labelled[label]


def is_traced() -> bool:
    """Return whether torch.compile or torch.export reads the code that calls this.

    That torch compiles it says of all threads; in the one that does, it has modes for what runs.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.compiler.is_compiling():
        return False
    return bool(torch.compiler.is_dynamo_compiling() or torch._C._len_torch_dispatch_stack())


def is_autocast() -> bool:
    """Return whether torch converts what it computes with (``torch.autocast``)."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch._C._is_any_autocast_enabled())


def untraced(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return ``function(*args, **kwargs)``, run rather than traced: the graph breaks here."""
    import torch

    return torch.compiler.disable(function)(*args, **kwargs)
