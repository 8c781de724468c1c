"""What a GPU artifact holds beside its machine code: how its kernels are launched.

Extents, strides and launch parameters are numbers, or expressions (Python's syntax) of scalar
parameters and dimensions by name; the runtime evaluates them at a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Extent = int | str
ALIGNMENT = 16  # bytes, of the tensors that kernels take: the widest load of a thread


@dataclass(frozen=True, slots=True)
class KernelArgument:
    """What one parameter of a CUDA kernel gets.

    Attributes:
        name: of the program's parameter or workspace, of a dimension, or of a tensor map.
        kind: "tensor" (its address), "scalar" or "tensor_map".
        dtype: of the tensor's elements or of the scalar ("" for a tensor map).
    """

    name: str
    kind: str
    dtype: str


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """One launch of a kernel.

    ``is_chained``: it may begin before those before have ended, for which it waits itself.
    """

    name: str
    arguments: tuple[KernelArgument, ...]
    grid: tuple[Extent, Extent, Extent]
    block: tuple[Extent, Extent, Extent]
    cluster: tuple[Extent, Extent, Extent]
    shared_bytes: Extent
    is_chained: bool = False

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> KernelEntry:
        """Return the launch that a manifest describes."""
        arguments = tuple(KernelArgument(**a) for a in values["arguments"])
        axes = {name: tuple(values[name]) for name in ("grid", "block", "cluster")}
        return cls(**{**values, **axes, "arguments": arguments})


@dataclass(frozen=True, slots=True)
class TensorMapRecipe:
    """How a tensor map is made at a call.

    Attributes:
        name: of the kernel's parameter.
        tensor: name of the program's parameter or workspace that it is a map of.
        dtype: of the elements, which a view may see otherwise than the parameter has them.
        shape: extents of the tensor or of the view, outermost first.
        strides: in elements, of all axes; None: row-major.
        box: extents of one transfer, outermost first.
        swizzle_bytes: of the rows in shared memory: 0, 32, 64 or 128.
    """

    name: str
    tensor: str
    dtype: str
    shape: tuple[Extent, ...]
    strides: tuple[Extent, ...] | None
    box: tuple[int, ...]
    swizzle_bytes: int

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TensorMapRecipe:
        """Return the recipe that a manifest describes."""
        strides = values["strides"]
        return cls(
            **{
                **values,
                "shape": tuple(values["shape"]),
                "strides": None if strides is None else tuple(strides),
                "box": tuple(values["box"]),
            }
        )


@dataclass(frozen=True, slots=True)
class Workspace:
    """Memory that the runtime provides and that holds nothing between calls.

    ``is_zeroed``: it holds zeros when a call begins.
    """

    name: str
    dtype: str
    shape: tuple[Extent, ...]
    is_zeroed: bool = False

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Workspace:
        """Return the workspace that a manifest describes."""
        return cls(**{**values, "shape": tuple(values["shape"])})


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """How the kernels of a cubin are launched, in this order.

    Attributes:
        arch: architecture that the machine code is for ("sm_90a").
        entries: the launches.
        maps: tensor maps that kernels take.
        workspaces: memory that kernels take.
        alignment: bytes that addresses of tensors are multiples of.
    """

    arch: str
    entries: tuple[KernelEntry, ...]
    maps: tuple[TensorMapRecipe, ...] = ()
    workspaces: tuple[Workspace, ...] = ()
    alignment: int = ALIGNMENT

    @property
    def extents(self) -> Iterator[Extent]:
        """All numbers and expressions that launches, maps and workspaces depend on."""
        for entry in self.entries:
            yield from (*entry.grid, *entry.block, *entry.cluster, entry.shared_bytes)
        for found in self.maps:
            yield from (*found.shape, *(found.strides or ()))
        for workspace in self.workspaces:
            yield from workspace.shape

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DeviceCode:
        """Return what a manifest describes."""
        return cls(
            arch=values["arch"],
            entries=tuple(KernelEntry.from_json(e) for e in values["entries"]),
            maps=tuple(TensorMapRecipe.from_json(m) for m in values["maps"]),
            workspaces=tuple(Workspace.from_json(w) for w in values["workspaces"]),
            alignment=values["alignment"],
        )
