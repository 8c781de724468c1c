"""GPUs by their names: of which architecture one is, and how far two are from each other."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

NAMES = Path(__file__).with_suffix(".toml")
FAMILY = 1  # steps to a device of one family
STRANGER = 3  # steps to a device of another vendor, or one that nobody knows


@dataclass(frozen=True, slots=True)
class Architecture:
    """What devices have in common: "sm_86", "Ampere", "NVIDIA"."""

    arch: str
    family: str
    vendor: str


def plain(name: str) -> str:
    """Return a device's name without what says nothing about it: "a100sxm4-80gb"."""
    words = re.sub(r"nvidia|amd|geforce|tesla|instinct", "", name.lower())
    words = re.sub(r"[^a-z0-9]+", "-", words).strip("-")
    return re.sub(r"(?<!\d)-|-(?!\d)", "", words)  # numbers stay apart


@lru_cache(maxsize=1024)  # names come from clients, too
def architecture_of(name: str) -> Architecture | None:
    """Return the architecture of a GPU's name ("NVIDIA RTX A4000", "RTX_2080_Ti"), or of its own.

    None: no GPU that is known has the name.
    """
    wanted = plain(name)
    for architecture, pattern in _architectures():
        if pattern.match(wanted) or re.fullmatch(rf"{plain(architecture.arch)}[af]?", wanted):
            return architecture
    return None


def steps_between(one: str, other: str) -> int:
    """Return how far the GPUs of two names are from each other.

    0: of one architecture, or the same name; 1: of one family; 2: of one vendor; else STRANGER.
    """
    if plain(one) == plain(other):
        return 0
    first, second = architecture_of(one), architecture_of(other)
    if first is None or second is None:
        return STRANGER
    alike = (first.arch == second.arch, first.family == second.family,
             first.vendor == second.vendor)  # fmt: skip
    return alike.index(True) if any(alike) else STRANGER


@cache
def _architectures() -> tuple[tuple[Architecture, re.Pattern[str]], ...]:
    found = []
    for entry in tomllib.loads(NAMES.read_text(encoding="utf-8"))["architecture"]:
        pattern = re.compile(rf"(?:{'|'.join(entry.pop('names'))})(?!\d)")
        found.append((Architecture(**entry), pattern))
    return tuple(found)
