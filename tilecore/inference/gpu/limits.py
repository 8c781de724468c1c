"""How large grids, clusters and blocks may be: what a launch asks for, against the target."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from tilecore.errors import InvalidConfig, UnsupportedOnTarget
from tilecore.gpu_target import MOST_BLOCKS, GpuTarget
from tilecore.ir.expr import int_value
from tilecore.ir.nodes import Buffer, KernelLaunch, SourceLaunch

AXES = "xyz"


def check_launch(launch: KernelLaunch, target: GpuTarget) -> tuple[int, int, int]:
    """Return the threads of a block along x, y and z.

    Raises:
        InvalidConfig: more threads, or a grid or cluster of other extents, than there can be
            (TC303).
        UnsupportedOnTarget: a number of threads that is known only at run time (TC302).
    """
    threads = _threads(launch, target)
    _check_grid(launch, target)
    if target.has_clusters:
        _check_cluster(launch, target)
    return threads


def check_source_launch(launch: SourceLaunch, target: GpuTarget) -> None:
    """Check what a launch of a program's own CUDA source asks of the target.

    Raises:
        InvalidConfig, UnsupportedOnTarget: as ``check_launch`` (TC303, TC302).
    """
    _threads(launch, target)
    _check_grid(launch, target)
    if launch.cluster and not target.has_clusters:
        raise UnsupportedOnTarget(
            what=f"cluster_dims={launch.cluster} of `{launch.entry}`", target=target.name,
            reason="clusters of blocks need sm_90 or later", span=launch.span,
        )  # fmt: skip
    _check_cluster(launch, target)


def _threads(launch: KernelLaunch | SourceLaunch, target: GpuTarget) -> tuple[int, int, int]:
    values = [int_value(e) for e in launch.threads]
    if any(v is None for v in values):
        raise UnsupportedOnTarget(
            what="a number of threads known only at run time", target=target.name,
            reason="code is generated for one number of threads", span=launch.span,
        )  # fmt: skip
    known = [v for v in values if v is not None] + [1] * (3 - len(values))
    if len(known) > 3 or min(known) < 1:
        raise InvalidConfig(
            knob="threads", value=tuple(values), span=launch.span,
            expected="at least one thread along each of at most 3 axes",
        )  # fmt: skip
    most, count = target.threads_per_block, math.prod(known)
    if count > most:
        raise InvalidConfig(
            knob="threads", value=count, span=launch.span,
            expected=f"at most {most} threads in a block of {target.name}",
            hint=f"threads={most} and a loop over what is left, or more blocks",
        )  # fmt: skip
    if known[2] > target.threads_along_z:
        raise InvalidConfig(
            knob="threads", value=tuple(known), span=launch.span,
            expected=f"at most {target.threads_along_z} threads of a block along z on "
            f"{target.name}", hint=f"threads={tuple(reversed(known))}: x takes up to {most}",
        )  # fmt: skip
    return known[0], known[1], known[2]


def _check_grid(launch: KernelLaunch | SourceLaunch, target: GpuTarget) -> None:
    """Check the extents of a grid that are known; those of a call are checked there."""
    for axis, extent, most in zip(AXES, launch.grid, MOST_BLOCKS, strict=False):
        blocks = int_value(extent)
        if target.kind != "cuda":  # HIP counts threads (tilecore/codegen/rocm.py)
            most = MOST_BLOCKS[0]
        if blocks is None or 0 <= blocks <= most:
            continue
        hint = "" if blocks < 0 else "put the longest axis of T.Kernel first"
        raise InvalidConfig(
            knob="grid", value=f"{blocks} blocks along {axis}", span=launch.span,
            expected=f"0 to {most} blocks along {axis} on {target.name}",
            hint="let a block do more" if axis == "x" and blocks > 0 else hint,
        )  # fmt: skip


def _check_cluster(launch: KernelLaunch | SourceLaunch, target: GpuTarget) -> None:
    count = math.prod(launch.cluster)
    if count > target.blocks_per_cluster:
        raise InvalidConfig(
            knob="cluster_dims", value=launch.cluster, span=launch.span,
            expected=f"at most {target.blocks_per_cluster} blocks in a cluster of {target.name}",
            hint=f"cluster_dims={target.blocks_per_cluster} fits",
        )  # fmt: skip
    for axis, (size, extent) in enumerate(itertools.zip_longest(launch.cluster, launch.grid)):
        blocks = 1 if extent is None else int_value(extent)
        if size is not None and blocks is not None and blocks % size:
            fits = math.gcd(blocks, size)
            raise InvalidConfig(
                knob="cluster_dims", value=launch.cluster, span=launch.span,
                expected=f"divisors of the grid, which has {blocks} blocks along an axis",
                hint=f"{fits} along {AXES[axis]} fits, or a grid of a multiple of {size} blocks",
            )  # fmt: skip


def check_tiles(tiles: Iterable[Buffer], target: GpuTarget) -> None:
    """Check that the sizes of tiles are known: memory is laid out when code is generated.

    Raises:
        UnsupportedOnTarget: that of one is known only at run time (TC302).
    """
    for tile in tiles:
        if tile.scope != "global" and tile.static_shape is None:
            raise UnsupportedOnTarget(
                what=f"a tile `{tile.name}` of a size known only at run time", target=target.name,
                reason="registers and shared memory are laid out when code is generated",
                hint="a tile of the largest size, or a loop over tiles of a known one",
                span=tile.span,
            )  # fmt: skip
