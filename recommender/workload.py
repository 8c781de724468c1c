"""Workload: a kernel and the problem it solves, as one canonical key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilecore.tile_config import canonical_json, digest

ProblemValue = int | str | bool
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Workload:
    """What is to be computed: kernel name plus canonical problem fields.

    ``problem`` is what ``tilecore.kernels.get(kernel).parse_problem`` returned: all fields present,
    canonical spelling (gemm: m, n, k, dtype, accum_dtype, out_dtype, transpose_a, transpose_b),
    sorted by name.
    ``threads`` is the number of cores the kernel may use (0: all cores of the device).
    """

    kernel: str
    problem: tuple[tuple[str, ProblemValue], ...]
    threads: int = 0

    @classmethod
    def of(cls, kernel: str, problem: Mapping[str, ProblemValue], threads: int = 0) -> Workload:
        """Return the workload for a canonical problem mapping."""
        return cls(kernel, tuple(sorted(problem.items())), threads)

    def as_dict(self) -> dict[str, object]:
        """Return the JSON form that is hashed and stored."""
        return {
            "schema": SCHEMA,
            "kernel": self.kernel,
            "problem": dict(self.problem),
            "threads": self.threads,
        }

    @property
    def key(self) -> str:
        """A stable digest (32 hex digits)."""
        return digest(self.as_dict())

    def __str__(self) -> str:
        return f"{self.kernel} {canonical_json(dict(self.problem))} threads={self.threads or 'all'}"
