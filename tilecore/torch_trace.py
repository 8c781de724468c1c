"""Whether torch traces the code that runs, and how to keep it out of functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def is_traced() -> bool:
    """Return whether torch.compile or torch.export reads the code that calls this."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


def untraced(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return ``function(*args, **kwargs)``, run rather than traced: the graph breaks here."""
    import torch

    return torch.compiler.disable(function)(*args, **kwargs)
