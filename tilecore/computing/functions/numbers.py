"""Integers that name rows or elements: whether there are those that they name, and these rows."""

from __future__ import annotations

from typing import Any

from tilecore.runtime import pages


def named(
    numbers: Any, extent: int, axis: int, wraps: bool = False, is_index: bool = False
) -> Any:  # fmt: skip
    """Return integers of torch that name places of an axis, from 0 on, in memory row by row.

    Those on a GPU are not waited for: they fail there.

    Args:
        numbers: a tensor of integers.
        extent: how many places there are.
        axis: which one it is, to tell it.
        wraps: whether -1 is the last place.
        is_index: whether torch takes one that names no place for an index.

    Raises:
        IndexError: one of them names no place, and ``is_index``.
        RuntimeError: one of them names no place.
    """
    import torch

    if numbers.is_meta:
        return torch.empty(numbers.shape, dtype=numbers.dtype, device="meta")
    lowest, has_negative = -extent if wraps else 0, wraps
    if numbers.is_cuda:
        torch._assert_async(((numbers >= lowest) & (numbers < extent)).all())
    else:
        least, most = (int(n) for n in torch.aminmax(numbers))
        if least < lowest or most >= extent:
            wrong = least if least < lowest else most
            said = f"index {wrong} is out of bounds for dimension {axis} with size {extent}"
            raise (IndexError if is_index else RuntimeError)(said)
        has_negative = least < 0
    found = numbers.where(numbers >= 0, numbers + extent) if has_negative else numbers
    return found.contiguous()


def rows(table: Any, axis: int, numbers: Any, wraps: bool) -> Any:
    """Return the rows of a tensor of torch that integers name along an axis, in its place.

    Raises:
        IndexError: one of them names no row.
    """
    import torch

    wanted = named(numbers, table.shape[axis], axis, wraps, is_index=True)
    before, behind = table.shape[:axis], table.shape[axis + 1 :]
    found = table.new_empty((*before, wanted.numel(), *behind))
    if found.device.type == "cpu":
        pages.ask_for_large(found)
    with torch.no_grad():
        torch.index_select(table, axis, wanted.flatten(), out=found)
    return found.view(*before, *numbers.shape, *behind)
