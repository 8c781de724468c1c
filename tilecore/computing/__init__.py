"""Computations: functions of whole tensors, without a word about tiles, threads or memory."""

from __future__ import annotations

from tilecore.computing.computation import Computation, compute
from tilecore.computing.planning.plan import Plan, Stage

__all__ = ["Computation", "Plan", "Stage", "compute"]
