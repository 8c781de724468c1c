"""Computations: functions of whole tensors, without a word about tiles, threads or memory."""

from __future__ import annotations

from tilecore.computing.computation import Computation, Plan, Stage, compute

__all__ = ["Computation", "Plan", "Stage", "compute"]
