"""``tilelang.contrib``: what programs ask of the CUDA toolchain."""

from tilecore.contrib import nvcc

__all__ = ["nvcc"]
