"""The storm: processes killed and links cut in random order while a run goes on."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sqlalchemy import distinct, func, select

from db.models import MeasurementRow, TrialRow
from db.records import RunRecord
from tests.chaos.site import DATABASE, NODES, Site, patient

LINK_CUT, DATABASE_CUT = "link of a node cut", "link of the database cut"
CUTS = (LINK_CUT, DATABASE_CUT)  # where there are links
PLAN = {
    "API": 7, "leading coordinator": 8, "standby coordinator": 3, "measure actor": 13,
    "compile actor": 5, "raylet of a node": 6, "Ray head": 3, "PostgreSQL": 7, LINK_CUT: 6,
    DATABASE_CUT: 4,
}  # fmt: skip
RECOVERY_S = 240.0
CUT_S = (2.0, 8.0)
OUTLIVED_S = 2.0  # what a killed process had started may still answer until its service ends it
ACTORS = {"measure actor": "ray::MeasureActor", "compile actor": "ray::CompileActor"}


@dataclass(frozen=True, slots=True)
class Blow:
    """What was done, and how long it took until new records arrived."""

    kind: str
    recovery_s: float


@dataclass(frozen=True, slots=True)
class Strike:
    """What was struck, from when on, and until when all of it had ended or was cut off, in s."""

    kind: str
    began_at: float
    landed_at: float


@dataclass(slots=True)
class Storm:
    """Strikes a site; ``blows`` tells what came of each of the ``strikes``."""

    site: Site
    rng: random.Random
    say: Callable[[str], None] = lambda _text: None
    records: int = 2  # new ones after which the site counts as recovered
    blows: list[Blow] = field(default_factory=list)
    strikes: list[Strike] = field(default_factory=list)

    def rage(self, plan: Mapping[str, int], is_over: Callable[[], bool]) -> None:
        """Strike in random order, each time when the site works again: each kind once, then more.

        Fails where the run was over before every kind of blow had been dealt.
        """
        for kind in self._order(plan):
            if is_over():
                break
            before, start = self._records(), time.monotonic()
            while not self._strike(kind):  # an actor that is not back yet, or nobody leads
                assert not is_over(), f"{kind}: nothing to strike"
                assert time.monotonic() - start < RECOVERY_S, f"{kind}: nothing to strike"
                time.sleep(0.1)
            self.strikes.append(Strike(kind, start, time.monotonic() + OUTLIVED_S))
            while self._records() < before + self.records and not is_over():
                assert time.monotonic() - start < RECOVERY_S, f"no recovery after: {kind}"
                time.sleep(0.1)
            self.blows.append(Blow(kind, time.monotonic() - start))
            self.say(f"{kind}: new records after {self.blows[-1].recovery_s:.1f} s, {before=}")
            time.sleep(self.rng.uniform(0.0, 1.0))
        missing = set(self._order(plan)) - {blow.kind for blow in self.blows}
        assert not missing, f"never dealt: {', '.join(sorted(missing))}"

    def _order(self, plan: Mapping[str, int]) -> list[str]:
        """Return the blows in the order in which they are dealt."""
        counts = {k: n for k, n in plan.items() if k not in CUTS or self.site.network.has_links}
        once, more = list(counts), [k for k, n in counts.items() for _ in range(n - 1)]
        self.rng.shuffle(once)
        self.rng.shuffle(more)
        return once + more

    def _strike(self, kind: str) -> int:
        site, node = self.site, self.rng.choice(NODES)
        if kind in ACTORS:
            victims = [p for n in NODES for p in site.services[n].processes(ACTORS[kind])]
            if victims:
                self.rng.choice(victims).kill()
            return len(victims)
        if kind == "raylet of a node":
            return site.services[node].kill("raylet/raylet")
        if kind == "Ray head":
            return site.services["ray-head"].kill("gcs_server")
        if kind == "PostgreSQL":
            return site.services["postgres"].kill("bin/postgres -D")
        if kind == "API":
            return site.services["api"].kill()
        if kind in CUTS:
            return self._cut(node if kind == LINK_CUT else DATABASE)
        leader = site.leader()
        if leader is None:
            return 0
        if kind == "leading coordinator":
            return leader.kill()
        standby = [n for n in site.services if n.startswith("coord") and n != leader.name]
        return site.services[standby[0]].kill() if standby else 0

    def _cut(self, host: str) -> int:
        network = self.site.network
        assert network.is_up(host), host
        network.cut(host)
        assert not network.is_up(host), host
        time.sleep(self.rng.uniform(*CUT_S))
        network.heal(host)
        return 1

    def _records(self) -> int:
        return patient(self.site.store.count_measurements)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What is in the books after the storm."""

    trials: int
    records: int
    distinct_trials: int
    executions: int
    executed_twice: int
    attempts: int


def audit(site: Site, run: RunRecord) -> Ledger:
    """Check that every trial has exactly one final record; return the figures."""
    assert run.state == "SUCCEEDED", run.error
    trials = site.store.trials.of_run(run.id)
    assert {t.state for t in trials} == {"done"}
    assert all(t.measurement is not None for t in trials)
    mine = select(TrialRow.id).where(TrialRow.run_id == run.id)
    counts = select(func.count(), func.count(distinct(MeasurementRow.trial_id)))
    with site.store.database.read() as session:
        records, distinct_trials = session.execute(
            counts.where(MeasurementRow.trial_id.in_(mine))
        ).one()
    assert records == distinct_trials == len(trials)
    assert len({(t.config, t.protocol) for t in trials}) == len(trials)
    events = [e for e in _events(site, run) if e == "trial"]
    assert len(events) == len(trials)
    executions = site.executions.read_text().split()
    return Ledger(
        trials=len(trials),
        records=records,
        distinct_trials=distinct_trials,
        executions=len(executions),
        executed_twice=len(executions) - len(trials),
        attempts=sum(t.attempt for t in trials),
    )


def _events(site: Site, run: RunRecord) -> list[str]:
    found, last = [], 0
    while events := site.store.runs.events(run.id, after=last):
        found += [event.kind for event in events]
        last = events[-1].id
    return found
