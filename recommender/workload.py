"""Workload: a kernel and the problem it solves, as one canonical key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tilecore.tile_config import TileConfig, canonical_json, digest

ProblemValue = int | str | bool
SCHEMA = 1
SENT = "program:"  # a program that came as data is a kernel of this name and its digest
_SENT = re.compile(SENT + "([0-9a-f]{32})")


@dataclass(frozen=True, slots=True)
class ProgramSource:
    """A program that came as data: its canonical text, and a config that others must agree with."""

    document: bytes
    reference: TileConfig


@dataclass(frozen=True, slots=True)
class Workload:
    """What is to be computed: kernel name plus canonical problem fields.

    ``problem`` is what ``tilecore.kernels.get(kernel).parse_problem`` returned: all fields present,
    canonical spelling (gemm: m, n, k, dtype, accum_dtype, out_dtype, transpose_a, transpose_b),
    sorted by name.
    ``threads`` is the number of cores the kernel may use (0: all cores of the device).
    ``source`` travels to the workers where the kernel is a program that came as data; its digest
    is in the kernel's name.
    """

    kernel: str
    problem: tuple[tuple[str, ProblemValue], ...]
    threads: int = 0
    source: ProgramSource | None = field(default=None, compare=False, repr=False)
    _key: str = field(default="", init=False, compare=False, repr=False)  # once it was asked for

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
        if not self._key:
            object.__setattr__(self, "_key", digest(self.as_dict()))
        return self._key

    def __str__(self) -> str:
        return f"{self.kernel} {canonical_json(dict(self.problem))} threads={self.threads or 'all'}"


def kernel_name(digest: str) -> str:
    """Return what the log calls a program."""
    return SENT + digest


def digest_of(kernel: str) -> str | None:
    """Return the digest of a program that came as data; None: the name of another kernel."""
    found = _SENT.fullmatch(kernel)
    return None if found is None else found[1]
