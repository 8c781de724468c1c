"""Tensors of torch and arrays of NumPy: their strides, views of their memory, and copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilecore.computing.graph import Node
from tilecore.computing.places import Place


def strides(tensor: Any) -> tuple[int, ...] | None:
    """Return the strides of a tensor in elements.

    None: it is row-major, or to be made so at each call: its axes run backwards, by parts of
    elements, or on the spot.
    """
    if hasattr(tensor, "is_contiguous"):
        if tensor.is_contiguous():
            return None
        found, rests = tuple(tensor.stride()), ()
    else:
        if tensor.flags.c_contiguous:
            return None
        found = tuple(s // tensor.itemsize for s in tensor.strides)
        rests = tuple(s % tensor.itemsize for s in tensor.strides)
    return None if any(rests) or min(found) < 1 else found


def laid(tensor: Any, node: Node) -> Any:
    """Return the tensor of an argument in the strides that a plan knows of."""
    return tensor if "strides" in node.attrs else whole(tensor)


def at(known: Mapping[Node, Any], place: Place) -> Any:
    """Return what lies at a place."""
    memory = known[place.memory]
    if place.is_whole:
        return memory if tuple(memory.shape) == place.shape else memory.reshape(place.shape)
    if hasattr(memory, "as_strided"):
        return memory.as_strided(place.shape, place.strides, memory.storage_offset() + place.offset)
    strided, size = np.lib.stride_tricks.as_strided, memory.itemsize
    line = strided(memory, (place.offset + 1,), (size,))[place.offset :]
    return strided(line, place.shape, [s * size for s in place.strides])


def whole(tensor: Any) -> Any:
    """Return a tensor whose elements lie one after the other."""
    if hasattr(tensor, "contiguous"):
        return tensor.contiguous()
    return tensor if tensor.flags.c_contiguous else np.ascontiguousarray(tensor)


def copied(tensor: Any, shape: tuple[int, ...]) -> Any:
    """Return a copy in another shape, row-major."""
    if not hasattr(tensor, "contiguous"):
        return np.array(tensor, order="C").reshape(shape)
    import torch

    return tensor.clone(memory_format=torch.contiguous_format).reshape(shape)
