"""Hashed: what has fields that no dict takes as the key of a cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Hashed:
    """A value with unhashable fields as a cache key: hashed by name, compared whole."""

    value: Any
    name: str

    def __hash__(self) -> int:
        return hash(self.name)
