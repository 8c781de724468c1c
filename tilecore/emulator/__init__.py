"""A CUDA device on the CPU: generated kernels run block by block, and their faults are reported.

Every thread is a fiber. Asynchronous copies, TMA transfers and wgmma are delivered as late (or as
early, or at such times) as the schedule says; accesses to shared memory that no barrier orders,
missing proxy fences, misaligned and out-of-bounds accesses, divergence, transfers left in flight
and deadlocks are errors.
"""

from tilecore.emulator.arguments import TensorMap
from tilecore.emulator.driver import EmulatedDriver
from tilecore.emulator.launch import (
    ALL_SCHEDULES,
    EARLY,
    LATE,
    AccessCount,
    EmulatedKernels,
    Schedule,
    build,
    emulate,
    random_order,
)

__all__ = [
    "ALL_SCHEDULES", "EARLY", "LATE", "AccessCount", "EmulatedDriver", "EmulatedKernels",
    "Schedule", "TensorMap", "build", "emulate", "random_order",
]  # fmt: skip
