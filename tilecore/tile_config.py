"""TileConfig: one value for every knob of a tile program and of its lowering."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

KnobValue = int | str | bool
MOST_RETURNED = 50  # configs of one answer


def canonical_json(value: object) -> str:
    """Return ``value`` as JSON with sorted keys and no spaces: the only text that is hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest(value: object, length: int = 32) -> str:
    """Return the first ``length`` hex digits of the SHA-256 of the canonical JSON of ``value``."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


def in_words(values: Mapping[str, object]) -> str:
    """Return named values in one line: ``block_M=64 num_stages=2``."""
    return " ".join(f"{name}={value}" for name, value in values.items())


@dataclass(frozen=True, slots=True)
class TileConfig(Mapping[str, KnobValue]):
    """An immutable, hashable mapping from knob name to value, ordered by name.

    Knobs keep the spelling of the program's author (``block_M``, ``num_stages``); knobs of the
    CPU lowering are ``micro_m``, ``micro_n``, ``pack_a``, ``pack_b``
    (``inference/cpu/options.py``).
    """

    items_: tuple[tuple[str, KnobValue], ...]

    @classmethod
    def of(cls, values: Mapping[str, KnobValue] | None = None, **knobs: KnobValue) -> TileConfig:
        """Return the config with the given knob values."""
        merged = {**(values or {}), **knobs}
        return cls(tuple(sorted(merged.items())))

    def __getitem__(self, knob: str) -> KnobValue:
        for name, value in self.items_:
            if name == knob:
                return value
        raise KeyError(knob)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.items_)

    def __len__(self) -> int:
        return len(self.items_)

    def replace(self, **knobs: KnobValue) -> TileConfig:
        """Return a copy with some knobs changed."""
        return TileConfig.of(dict(self.items_), **knobs)

    @property
    def key(self) -> str:
        """A stable digest of the values (32 hex digits)."""
        return digest(dict(self.items_))

    def __str__(self) -> str:
        return in_words(self)
