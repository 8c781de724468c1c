"""``tilelang.carver.roller.rasterization``: orders of blocks, as values that configs may hold."""

from __future__ import annotations


class NoRasterization:
    """Blocks run in their natural order."""
