"""Families of devices: whose measurements one cost model of a kernel learns from and answers for.

All CPUs are one, "cpu": their features tell them apart. GPUs of one architecture are one, by its
name ("sm_90a", "gfx942"): what the compiler emits for another is other code. What is emulated is
of a family of its own ("emulated-sm_90a"). Which one a device is of is ``HardwareProfile.family``.
"""

from __future__ import annotations

import re

from recommender import features
from recommender.gpu import features as gpu_features

CPU = "cpu"
VERSION = 3  # of the analytic model of GPUs, on which models of GPUs build
_END = f"-{VERSION}-{gpu_features.DIGEST}"
_GPU = re.compile(r"((?:emulated-)?(?:sm_[0-9]+[a-z]?|gfx[0-9a-f]+))" + _END)


def schema_of(family: str) -> str:
    """Return the version of the features of a family's models, which names the family."""
    return features.SCHEMA if family == CPU else family + _END


def family_of_schema(schema: str) -> str | None:
    """Return the family whose models have features of this version; None: there is none."""
    if schema == features.SCHEMA:
        return CPU
    found = _GPU.fullmatch(schema)
    return found and found.group(1)


def feature_names(family: str) -> tuple[str, ...]:
    """Return the names of the features of a family's models, in their order."""
    return features.NAMES if family == CPU else gpu_features.NAMES
