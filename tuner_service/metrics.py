"""Metrics for Prometheus: of the requests of this process, and of the runs in the database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from db.overview import Counts
from db.store import SqlStore
from recommender.workload import digest_of
from tilecore.errors import TileError

BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
METHODS = ("GET", "POST", "PATCH", "HEAD", "OPTIONS", "PUT", "DELETE")
RECOUNT_S = 10.0  # a count of the whole database is that old at most, where that takes no time
QUICK_S = 0.05  # counts that take longer are made while the one before is told
SHARE = 20  # of the time is spent on counting at most: one part in so many
OLDEST_S = 60.0  # an older count is told to nobody


class Metrics:
    """What one application counts."""

    def __init__(self, store: SqlStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = CollectorRegistry()
        self._requests = Histogram(
            "tilecore_request_seconds",
            "Time to the end of the answer",
            ("method", "route", "status"),
            buckets=BUCKETS_S,
            registry=self._registry,
        )
        self._in_flight = Gauge(
            "tilecore_requests_in_flight", "Requests not answered yet", registry=self._registry
        )
        self._recommendations = Counter(
            "tilecore_recommendations",
            "Questions answered, by where the first config comes from",
            ("kernel", "source"),
            registry=self._registry,
        )
        self._wrong_keys = Counter(
            "tilecore_wrong_keys",
            "Keys that nobody has (unknown); not looked for, after too many of them (limited)",
            ("answer",),
            registry=self._registry,
        )
        self._database = _Database(store, clock)
        self._registry.register(self._database)

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """Count a request while it lasts."""
        with self._in_flight.track_inprogress():
            yield

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request. ``route`` is the template, never the path of a client."""
        known = method if method in METHODS else "other"  # clients may invent any number of them
        self._requests.labels(known, route, status).observe(seconds)

    def recommendation(self, kernel: str, source: str) -> None:
        """Count an answered question."""
        self._recommendations.labels(kernel, source).inc()

    def wrong_key(self, answer: str) -> None:
        """Count a key that is "unknown", or was not looked for: "limited"."""
        self._wrong_keys.labels(answer).inc()

    def counts(self) -> Counts:
        """Return how many of everything there are, some seconds old at most."""
        return self._database.count()

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)


class _Database(Collector):
    """Counts of the database at the time of the scrape; nothing but ``up`` 0 where it is away."""

    def __init__(self, store: SqlStore, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        self._counts: Counts | None = None
        self._counted_at, self._took_s = 0.0, 0.0
        self._counting: threading.Thread | None = None

    def describe(self) -> Iterable[Metric]:
        """Say nothing ahead: a registration must not ask the database."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Yield the counts."""
        up = GaugeMetricFamily("tilecore_database_up", "Whether the database answers")
        try:
            counts = self.count()
            leader = self._store.leader.current()
        except TileError:
            up.add_metric((), 0)
            yield up
            return
        up.add_metric((), 1)
        yield up
        leads = GaugeMetricFamily("tilecore_coordinator_leads", "Whether a coordinator leads")
        leads.add_metric((), float(leader is not None and leader.is_alive))
        yield leads
        epoch = GaugeMetricFamily("tilecore_coordinator_epoch", "Changes of leader so far")
        epoch.add_metric((), leader.epoch if leader is not None else 0)
        yield epoch
        yield from _families(counts)

    def count(self) -> Counts:
        """Return the counts, RECOUNT_S old at most, or OLDEST_S where they take long.

        Of a million measurements they take a second: nobody waits for that while there are some.
        """
        with self._lock:
            age_s = self._clock() - self._counted_at
            if self._counts is None or age_s > OLDEST_S:
                return self._count()
            is_due = age_s > max(RECOUNT_S, SHARE * self._took_s)
            if is_due and self._took_s < QUICK_S:
                return self._count()
            if is_due and (self._counting is None or not self._counting.is_alive()):
                self._counting = threading.Thread(target=self._count_again, daemon=True)
                self._counting.start()
            return self._counts

    def _count_again(self) -> None:
        with suppress(TileError):  # while the database is away the last count gets older
            self._count()

    def _count(self) -> Counts:
        began = self._clock()
        found = self._store.counts()
        self._counts, self._counted_at = found, self._clock()
        self._took_s = self._counted_at - began
        return found


def _families(counts: Counts) -> Iterator[Metric]:
    runs = GaugeMetricFamily("tilecore_tuning_runs", "Tuning runs", labels=("state",))
    for state, number in counts.runs.items():
        runs.add_metric((state,), number)
    yield runs
    trials = GaugeMetricFamily("tilecore_trials", "Trials", labels=("state",))
    for state, number in counts.trials.items():
        trials.add_metric((state,), number)
    yield trials
    lost = GaugeMetricFamily("tilecore_lost_executions", "Executions of trials that were lost")
    lost.add_metric((), counts.lost_executions)
    yield lost
    devices = GaugeMetricFamily(
        "tilecore_devices", "Devices of the cluster's nodes", labels=("hardware", "state")
    )
    for place, number in counts.devices.items():
        devices.add_metric(place, number)
    yield devices
    measured = GaugeMetricFamily(
        "tilecore_measurements", "Measurements", labels=("kernel", "status")
    )
    found: dict[tuple[str, str], int] = {}
    for (kernel, status), number in counts.measurements.items():
        name = "program" if digest_of(kernel) else kernel  # any number of these: told as one
        found[name, status] = found.get((name, status), 0) + number
    for labels, number in found.items():
        measured.add_metric(labels, number)
    yield measured
    models = GaugeMetricFamily(
        "tilecore_cost_model",
        "Metrics of the active cost models",
        labels=("kernel", "family", "metric"),
    )
    for (kernel, family), model in counts.models.items():
        for name, value in model.metrics.items():
            models.add_metric((kernel, family, name), value)
    yield models
