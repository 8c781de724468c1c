"""TuningSession: the course of one tuning run as a pure ask/tell state machine.

    opening   default and zero-measurement recommendation                     SCREEN
    search    warm start (related winners, models' favourites), then strategy SCREEN
    confirm   finalists, default and recommendation interleaved, all threads  CONFIRM
    done

It holds no clock but the one it is given, no process, no file: told the same results, a new session
with the same arguments stands where the old one stood.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, MeasureStatus, Protocol
from recommender.nearest import fastest
from recommender.ports import MeasurementStore
from recommender.recommend import recommend
from recommender.screening import Screening, SpaceCandidates
from recommender.search import STRATEGIES
from recommender.space import SearchSpace
from recommender.workload import Workload
from tilecore.kernels.definition import KernelDefinition
from tilecore.tile_config import TileConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How long to search.

    Attributes:
        max_trials: SCREEN trials, default and recommendation included.
        time_limit_s: no new SCREEN trial after this; CONFIRM still follows.
        confirm_top: finalists besides default and recommendation.
        warm_start: first trials taken from recommendations instead of the strategy.
        patience: end the search after so many trials without a gain of 1 % (0: never).
    """

    max_trials: int = 64
    time_limit_s: float = 600.0
    confirm_top: int = 8
    warm_start: int = 8
    patience: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A trial to run. ``predicted_s`` is for the protocol's thread count."""

    config: TileConfig
    protocol: Protocol
    purpose: str
    predicted_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningResult:
    """What a run found. ``best`` is never slower than ``default`` in the same confirmation.

    ``default`` and ``recommended`` are the CONFIRM measurements where there are some, failed ones
    too (a SCREEN time is of one thread: beside a CONFIRM time it would mislead), else SCREEN.
    """

    default: Measurement | None
    recommended: Measurement | None
    best: Measurement | None
    trials: int
    by_status: dict[str, int]
    space_size: int

    @property
    def gain_over_default(self) -> float | None:
        """Default time over best time; None, too, where one was timed apart from the others."""
        return _ratio(self.default, self.best)

    @property
    def recommendation_ratio(self) -> float | None:
        """Best time over recommended time: 1 if nothing better was found."""
        return _ratio(self.best, self.recommended)


class TuningSession:
    """One tuning run. Ask for proposals, tell their measurements in any order, until ``done``."""

    def __init__(
        self,
        default: TileConfig,
        ranked: Sequence[TileConfig],
        screening: Screening,
        *,
        budget: Budget | None = None,
        incumbents: Sequence[TileConfig] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin a session.

        Args:
            default: the config of who tunes nothing.
            ranked: what is recommended without a measurement of this workload, the best first.
            screening: the candidates, and the search over them.
            budget: how long to search.
            incumbents: what was the best before: measured early, confirmed again; what has other
                knobs (of another version of the program) is left out.
            clock: seconds.
        """
        self.budget = budget or Budget()
        self._clock, self._started_s = clock, clock()
        self._default = default
        self._recommended = ranked[0]
        self._seeds = ranked[1:]
        self._incumbents = [config for config in incumbents if config.keys() == default.keys()]
        self._screening = screening
        self._told: dict[tuple[TileConfig, Protocol], Measurement] = {}
        self._open: set[tuple[TileConfig, Protocol]] = set()
        self._finalists: list[TileConfig] | None = None

    # --- ask and tell -------------------------------------------------------------------------

    def ask(self, count: int) -> list[Proposal]:
        """Return trials to run now; empty while results are awaited or the run is done.

        Returns:
            Up to ``count`` SCREEN proposals; or, once the search is over and nothing is open, all
            CONFIRM proposals at once however small ``count`` is: they are to be timed interleaved.
        """
        if count <= 0:
            return []
        proposals = self._screens(count)
        if not proposals and not self._open:
            proposals = self._confirms()
        self._open |= {(p.config, p.protocol) for p in proposals}
        return proposals

    def tell(self, trial: Proposal | TileConfig, measurement: Measurement) -> None:
        """Take in the outcome of a trial; a second outcome of the same trial is ignored."""
        config = trial.config if isinstance(trial, Proposal) else trial
        key = (config, measurement.protocol)
        self._adopt(trial)
        self._open.discard(key)
        if key in self._told:
            return
        self._told[key] = measurement
        if measurement.protocol is Protocol.SCREEN:
            self._screening.tell(config, measurement.time_s)
        else:
            self._note_confirmation(config)

    def restore(self, proposals: Sequence[Proposal]) -> None:
        """Mark trials as running that an earlier session proposed and nobody has told yet."""
        for proposal in proposals:
            self._adopt(proposal)
            key = (proposal.config, proposal.protocol)
            if key not in self._told:
                self._open.add(key)
                if proposal.protocol is Protocol.SCREEN:
                    self._screening.expect(proposal.config)
                else:
                    self._note_confirmation(proposal.config)

    @property
    def done(self) -> bool:
        """Whether everything was asked and told."""
        return self._finalists is not None and not self._open and not self._missing()

    # --- what comes next ----------------------------------------------------------------------

    def _screens(self, count: int) -> list[Proposal]:
        if self._finalists is not None:
            return []
        wanted: list[tuple[TileConfig, str]] = []
        for config, purpose in self._opening():
            key = (config, Protocol.SCREEN)
            if purpose == "search" and len(wanted) >= self._trials_left():
                break
            if len(wanted) < count and key not in self._told and key not in self._open:
                wanted.append((config, purpose))
                self._screening.expect(config)
        room = min(count - len(wanted), self._trials_left() - len(wanted))
        if room > 0 and not self._is_search_over():
            found = self._screening.ask(room)
            wanted += [(config, "search") for config in found]
        return [
            Proposal(
                config=config,
                protocol=Protocol.SCREEN,
                purpose=purpose,
                predicted_s=self._screening.predicted_s(config, threads=1),
            )
            for config, purpose in wanted
        ]

    def _opening(self) -> list[tuple[TileConfig, str]]:
        """Return default, recommendation and, as the budget allows, the warm start; no twins."""
        opening = {self._default: "default"}
        opening.setdefault(self._recommended, "recommended")
        for config in self._incumbents:
            opening.setdefault(config, "search")
        if not self._is_search_over():
            for config in self._seeds:
                if len(opening) < self.budget.max_trials:
                    opening.setdefault(config, "search")
        return list(opening.items())

    def _trials_left(self) -> int:
        used = [p for _, p in (*self._told, *self._open) if p is Protocol.SCREEN]
        return self.budget.max_trials - len(used)

    def _is_search_over(self) -> bool:
        late = self._clock() - self._started_s >= self.budget.time_limit_s
        return late or self._screening.has_stalled(self.budget.patience)

    def _confirms(self) -> list[Proposal]:
        if self._finalists is None:
            self._finalists = self._choose_finalists()
        return [
            Proposal(
                config=config,
                protocol=Protocol.CONFIRM,
                purpose="confirm",
                predicted_s=self._screening.predicted_s(config),
            )
            for config in self._missing()
        ]

    def _choose_finalists(self) -> list[TileConfig]:
        """Return default, recommendation, incumbents and the fastest screened, if they ran."""
        fast = self._screening.fastest(self.budget.confirm_top)
        unique = dict.fromkeys([self._default, self._recommended, *self._incumbents, *fast])
        return [config for config in unique if self._screen_ok(config)]

    def _missing(self) -> list[TileConfig]:
        return [
            config
            for config in self._finalists or ()
            if (config, Protocol.CONFIRM) not in self._told
            and (config, Protocol.CONFIRM) not in self._open
        ]

    def _screen_ok(self, config: TileConfig) -> bool:
        told = self._told.get((config, Protocol.SCREEN))
        return told is not None and told.status is MeasureStatus.OK

    def _adopt(self, trial: Proposal | TileConfig) -> None:
        """Keep the recommendation that the run started with, whatever was learned since."""
        if isinstance(trial, Proposal) and trial.purpose == "recommended":
            self._recommended = trial.config

    def _note_confirmation(self, config: TileConfig) -> None:
        """Continue a confirmation that an earlier session started."""
        if self._finalists is None:
            self._finalists = self._choose_finalists()
        if config not in self._finalists:
            self._finalists.append(config)

    # --- the outcome --------------------------------------------------------------------------

    def result(self) -> TuningResult:
        """Return what is known now (final once ``done``)."""
        return TuningResult(
            default=self._of(self._default),
            recommended=self._of(self._recommended),
            best=fastest(list(self._told.values())),
            trials=len(self._told),
            by_status=dict(Counter(m.status.value for m in self._told.values())),
            space_size=len(self._screening),
        )

    def _of(self, config: TileConfig) -> Measurement | None:
        confirmed = self._told.get((config, Protocol.CONFIRM))
        return confirmed or self._told.get((config, Protocol.SCREEN))


def kernel_session(
    workload: Workload,
    definition: KernelDefinition,
    hardware: HardwareProfile,
    space: SearchSpace,
    *,
    store: MeasurementStore,
    budget: Budget | None = None,
    seed: int = 0,
    strategy: str = "model",
    program_digest: str = "",
    toolchain_key: str = "",
    incumbents: Sequence[TileConfig] = (),
    clock: Callable[[], float] = time.monotonic,
) -> TuningSession:
    """Return a session that tunes a workload of a registered kernel."""
    effort = budget or Budget()
    ranked = recommend(
        workload, definition, hardware, store, top_k=max(1, effort.warm_start),
        program_digest=program_digest, toolchain_key=toolchain_key, use_exact=False,
    )  # fmt: skip
    candidates = SpaceCandidates(space, workload.threads or hardware.cores, store)
    return TuningSession(
        definition.default_config(hardware.kind), [r.config for r in ranked],
        Screening(candidates, STRATEGIES[strategy], seed),
        budget=effort, incumbents=incumbents, clock=clock,
    )  # fmt: skip


def _ratio(a: Measurement | None, b: Measurement | None) -> float | None:
    if a is None or b is None or a.time_s is None or b.time_s is None or a.protocol != b.protocol:
        return None
    if a is not b and (a.is_apart or b.is_apart):
        return None  # of two moments: their ratio says nothing of the configs
    return a.time_s / b.time_s
