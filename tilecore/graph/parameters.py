"""What a program is called with, in bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tilecore.errors import TypeMismatch
from tilecore.graph.closed_form import evaluate
from tilecore.ir.nodes import Buffer, PrimFunc


def parameter_bytes(func: PrimFunc, sizes: Mapping[str, Any]) -> int:
    """Return the bytes of the tensors that a program is called with, at some sizes.

    Tensors count nothing whose shape no size gives, and those with strides.
    """
    tensors = [p for p in func.params if isinstance(p, Buffer) and p.strides is None]
    return sum(_bytes(tensor, sizes) for tensor in tensors)


def _bytes(tensor: Buffer, sizes: Mapping[str, Any]) -> int:
    try:
        extents = [int(evaluate(extent, sizes)) for extent in tensor.shape]
    except TypeMismatch:
        return 0
    return max(0, math.prod(extents)) * tensor.dtype.bits // 8
