"""The port behind ``@autotune``: what is asked of a tuner, what it answers, and where it is found.

tilecore compiles; measuring, remembering and recommending are the business of the packages above
it. They register a tuner under the entry point group ``tilecore.tuner``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from tilecore.errors import TunerMissing
from tilecore.ir.nodes import PrimFunc
from tilecore.profiler import Tolerance
from tilecore.tile_config import KnobValue, TileConfig

GROUP = "tilecore.tuner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A traced program that competes, with what it is run on.

    Attributes:
        config: the values that made the program, as they are stored.
        program: the traced program with its outputs marked.
        inputs: tensors and numbers for its parameters without outputs.
        expected: its outputs for these inputs, None where nobody knows them.
        lowering: knobs of the CPU's lowering that are its own.
    """

    config: TileConfig
    program: PrimFunc
    inputs: Sequence[Any]
    expected: Sequence[Any] | None = None
    lowering: Mapping[str, KnobValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningTask:
    """Which of several programs that compute the same is the fastest here?

    Attributes:
        name: what the log calls the program.
        problem: shapes, element types and numbers of the inputs, by parameter name.
        candidates: in the author's order; the first one is the default.
        target: what to generate code for.
        knobs: of the lowering, for all candidates.
        tolerance: of comparisons with ``expected``.
        run_timeout_s: how long checking and timing a candidate may take.
        device: the GPU as the author named it ("h200", "emulated h200"); "": this machine's CPU.
    """

    name: str
    problem: Mapping[str, KnobValue]
    candidates: Sequence[Candidate]
    target: str
    knobs: Mapping[str, KnobValue] = field(default_factory=dict)
    tolerance: Tolerance = field(default_factory=Tolerance)
    run_timeout_s: float | None = None
    device: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningAnswer:
    """What is known of the candidates.

    Attributes:
        times_s: seconds per call of those that compute right, by position, the fastest first.
        failures: why each of the others does not take part, by position.
        is_stored: whether it was measured before, so that nothing was measured now.
        unmeasured: why nothing could be measured ("": it was); the times are then what the
            recommender expects.
    """

    times_s: Mapping[int, float]
    failures: Mapping[int, str]
    is_stored: bool
    unmeasured: str = ""


Tuner = Callable[[TuningTask], TuningAnswer]


@cache
def installed_tuner() -> Tuner:
    """Return the tuner of this installation.

    Raises:
        TunerMissing: nothing is registered, as where tilecore's files are used uninstalled (TC504).
    """
    for entry in entry_points(group=GROUP):
        tuner: Tuner = entry.load()
        return tuner
    raise TunerMissing(group=GROUP)
