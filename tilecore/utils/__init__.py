"""``tilelang.utils``: helpers on tensors and targets."""

from tilecore.utils.target import determine_target

__all__ = ["determine_target"]
