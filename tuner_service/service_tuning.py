"""``@tilelang.autotune`` asks a service: what its cluster measured, or measures now, answers here.

The programs travel as data: a document with one variant per config (``tilecore.portable``). What
the service's log has of them answers; otherwise a tuning run is queued there and waited for. Many
machines that ask at once queue one run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recommender.analytic import Estimate
from recommender.hardware import HardwareProfile
from recommender.measurement import MeasureStatus, Protocol
from recommender.portable_tracing import SENT
from recommender.programs import by_promise
from tilecore.errors import InvalidDocument
from tilecore.ir.dims import solve
from tilecore.ir.nodes import Buffer
from tilecore.kernel import input_parameters
from tilecore.portable import MOST_VARIANTS, OpenKnob, PortableProgram, Variant, parse
from tilecore.recommending import LOWERING
from tilecore.tile_config import TileConfig, digest
from tilecore.tuning import Candidate, TuningAnswer, TuningTask
from tuner_service.client import OUTAGE_S, ServiceClient
from tuner_service.errors import NoServiceResult
from tuner_service.settings import Settings

LOG = logging.getLogger(__name__)
NUMBER = "candidate"  # the knob of candidates whose configs cannot travel as they are
UNMEASURED = "not measured by the service: it expects it to be slow, or illegal"


def tune_there(
    task: TuningTask, expected: Sequence[Estimate | None], hardware: HardwareProfile,
    settings: Settings,
) -> TuningAnswer:  # fmt: skip
    """Return the times that a service measured for a task's candidates, stored or just now.

    Args:
        task: what is to be tuned.
        expected: by candidate what the analytic model says; of more than MOST_VARIANTS the most
            promising ones are sent.
        hardware: the device to tune for.
        settings: address of the service, key, how long to wait.

    Raises:
        Refused, ServiceUnreachable: the service's answer (SV918, SV917).
        NoServiceResult: its run does not end in time, or without a result (SV931).
        InvalidDocument: the programs have no form as data (TC205).
    """
    assert settings.service_url is not None
    chosen = sorted(by_promise(expected)[:MOST_VARIANTS])
    program, configs = as_data(task, [task.candidates[i] for i in chosen])
    positions = dict(zip(configs, chosen, strict=True))
    known: dict[str, int] = {}
    for value, param in _inputs(task):
        known |= _sizes(value, param)
    problem = {name: known[name] for name in program.call_sizes if name in known}
    with ServiceClient(settings.service_url, settings.key) as client:
        client.store(program)
        asked = _Asked(client, program.digest, problem, hardware)
        found = asked.measured()
        is_stored = bool(found)
        if not found:
            asked.run(len(configs), settings.service_timeout_s)
            found = asked.measured()
    return _answer(task, positions, found, is_stored=is_stored)


# --- the programs as data ------------------------------------------------------------------------


def as_data(
    task: TuningTask, candidates: Sequence[Candidate]
) -> tuple[PortableProgram, list[TileConfig]]:
    """Return candidates as one program with a variant for each, and what their configs are there.

    Configs that a document cannot hold (fractions, lists, other knobs in each) are numbered.

    Raises:
        InvalidDocument: the programs have no form as data (TC205).
    """
    configs = [c.config for c in candidates]
    if any(c.lowering for c in candidates):
        raise InvalidDocument(
            path="/knobs", expected="one lowering for all configs",
            found="configs that set knobs of the lowering",
        )  # fmt: skip
    try:
        return _document(task, candidates, configs), configs
    except InvalidDocument:
        numbered = [TileConfig.of({NUMBER: i}) for i in range(len(candidates))]
        return _document(task, candidates, numbered), numbered


def _document(
    task: TuningTask, candidates: Sequence[Candidate], configs: Sequence[TileConfig]
) -> PortableProgram:
    names = tuple(configs[0])
    program = PortableProgram(
        name=_document_name(task.name),
        sizes=(),
        knobs=tuple(
            OpenKnob(name, configs[0][name], tuple(dict.fromkeys(c.get(name, 0) for c in configs)))
            for name in names
        ),
        fixed={k: v for k, v in task.knobs.items() if k in SENT},
        variants=tuple(
            Variant(dict(config.items()), candidate.program, {})
            for candidate, config in zip(candidates, configs, strict=True)
        ),
    )
    if set(names) & set(LOWERING):  # of the program, not of the lowering: numbers tell them apart
        raise InvalidDocument(path="/knobs", expected="no knob of the lowering", found=list(names))
    parse(program.to_bytes())  # as the service will read it
    return program


def _document_name(name: str) -> str:
    """Return the function's name out of what the log calls a program."""
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in name.rpartition(":")[2])


def _inputs(task: TuningTask) -> list[tuple[Any, Any]]:
    first = task.candidates[0]
    return list(zip(first.inputs, input_parameters(first.program), strict=False))


def _sizes(value: Any, param: Any) -> dict[str, int]:
    """Return the sizes that an input settles: those of its dynamic axes, or its own number."""
    if not isinstance(param, Buffer):
        return {param.name: int(value)} if isinstance(value, (int, np.integer)) else {}
    found = {}
    for extent, size in zip(param.shape, np.shape(value), strict=False):
        solved = solve(extent)
        if solved is not None:
            found[solved.symbol.name] = (int(size) - solved.rest) // solved.factor
    return found


# --- the service ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asked:
    """A program at one problem on one device, at a service."""

    client: ServiceClient
    program: str
    problem: Mapping[str, int]
    hardware: HardwareProfile

    @property
    def question(self) -> dict[str, Any]:
        return {
            "program": self.program, "problem": dict(self.problem), "threads": 0,
            "hardware": self.hardware.key,
        }  # fmt: skip

    def measured(self) -> list[Mapping[str, Any]]:
        """Return what the log has of the toolchain that confirmed the best; [] without one."""
        best = self.client.first(self.question)
        if best["source"] != "measured" or best["doubts"]:
            return []
        log = [
            m
            for m in self.client.log(program=self.program, hardware=self.hardware.key, threads=0)
            if m["problem"] == self.problem
        ]
        confirmed = (
            m for m in log
            if m["config"] == best["config"] and m["protocol"] == Protocol.CONFIRM.value
        )  # fmt: skip
        newest = next(confirmed, None)
        if newest is None:
            return []
        return [m for m in log if m["toolchain_key"] == newest["toolchain_key"]]

    def run(self, trials: int, limit_s: float) -> None:
        """Have the candidates tuned there, and wait for it.

        Raises:
            NoServiceResult: that takes too long, or the run ends without a result (SV931).
        """
        newest = next(iter(self.client.log(program=self.program, limit=1)), None)
        state = [self.question, None if newest is None else newest["id"]]
        effort = {"max_trials": trials, "time_limit_s": limit_s}
        run = self.client.queue(self.question | effort, f"autotune-{digest(state)}")
        LOG.info("run %s at %s tunes %s", run["id"], self.client.url, self.program)
        until = time.monotonic() + limit_s
        for now in self.client.follow(run, patience_s=min(OUTAGE_S, limit_s)):
            run = now
            if time.monotonic() > until:
                break
        if run["state"] != "SUCCEEDED":
            reason = run["error"] or f"not done after {limit_s:g} s"
            raise NoServiceResult(
                url=self.client.url, run=run["id"], state=run["state"], reason=reason
            )


def _answer(
    task: TuningTask, positions: Mapping[TileConfig, int], log: Sequence[Mapping[str, Any]],
    *, is_stored: bool,
) -> TuningAnswer:  # fmt: skip
    """Return times by rank: confirmed ones first, those only screened behind them."""
    times: dict[str, dict[int, float]] = {p.value: {} for p in Protocol}
    reasons: dict[int, str] = {}
    for m in log:
        position = positions.get(TileConfig.of(m["config"]))
        if position is None:
            continue
        if m["status"] == MeasureStatus.OK.value:
            seconds = m["latency_us"] / 1e6
            own = times[m["protocol"]]
            own[position] = min(seconds, own.get(position, seconds))
        else:
            reasons.setdefault(position, f"{m['status']}: {m['detail']}")
    confirmed, screened = times[Protocol.CONFIRM.value], times[Protocol.SCREEN.value]
    ranked = {i: confirmed[i] for i in sorted(confirmed, key=lambda i: confirmed[i])}
    ranked |= {
        i: screened[i] for i in sorted(screened, key=lambda i: screened[i]) if i not in ranked
    }
    return TuningAnswer(
        times_s=ranked,
        failures={
            i: reasons.get(i, UNMEASURED)
            for i in range(len(task.candidates))
            if i not in ranked
        },
        is_stored=is_stored,
    )  # fmt: skip
