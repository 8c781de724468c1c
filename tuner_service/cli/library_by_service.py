"""``tilecore recommend|tune KERNEL --service URL``: a kernel of the library, by a service."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from recommender.recommendation import Recommendation
from tilecore.tile_config import TileConfig
from tuner_service.cli import console as show
from tuner_service.cli.console import out
from tuner_service.client import ServiceClient
from tuner_service.errors import RunFailed
from tuner_service.jobs import Effort
from tuner_service.settings import Settings


def recommend(
    settings: Settings, url: str, question: Mapping[str, Any], *, top_k: int, as_json: bool
) -> None:
    """Print the ranked configs of a service.

    Args:
        settings: have the key.
        url: of the service.
        question: ``kernel``, ``problem``, ``threads`` and ``hardware`` as REST takes them.
        top_k: how many configs.
        as_json: whether as JSON, as without a service.

    Raises:
        Refused, ServiceUnreachable: the service's answer (SV918, SV917).
    """
    with ServiceClient(url, settings.key) as client:
        found = client.recommendations({**question, "top_k": top_k})
    told = found["recommendations"]
    if as_json:
        out.print_json(json.dumps(told))
        return
    workload = found["workload"]
    text = show.workload_text(workload["kernel"], workload["problem"])
    out.print(f"{text} on {found['hardware']}, by {url}", highlight=False, soft_wrap=True)
    work_flop = told[0]["gflops"] * told[0]["latency_us"] * 1e3
    show.print_recommendations(out, work_flop, [_recommendation(r) for r in told], "")
    for note in found["notes"]:
        out.print(note, highlight=False, soft_wrap=True)


def tune(settings: Settings, url: str, question: Mapping[str, Any], effort: Effort) -> None:
    """Queue a run at a service, wait for it, and print what it found.

    Raises:
        RunFailed: the run ended without a result (SV911).
        Refused, ServiceUnreachable: the service's answer (SV918, SV917).
    """
    with ServiceClient(url, settings.key) as client:
        follow(client, client.queue({**question, **limits(effort)}))


def limits(effort: Effort) -> dict[str, Any]:
    """Return what a run may take as REST takes it."""
    return {
        "max_trials": effort.max_trials, "time_limit_s": effort.time_limit_s, "seed": effort.seed,
        "ceiling_s": effort.ceiling_s, "priority": effort.priority,
        "wait_for_hardware": effort.waits,
    }  # fmt: skip


def follow(client: ServiceClient, run: Mapping[str, Any]) -> None:
    """Wait for a run of a service, and print what it found.

    Raises:
        RunFailed: it ended without a result (SV911).
    """
    out.print(f"run {run['id']} at {client.url}: {run['state']}", soft_wrap=True)
    now: Mapping[str, Any] = run
    for now in client.follow(run):  # noqa: B007
        pass
    if now["state"] != "SUCCEEDED":
        raise RunFailed(run=now["id"], state=now["state"], error=now["error"] or "")
    show.print_told_result(out, now, client.url)


def _recommendation(told: Mapping[str, Any]) -> Recommendation:
    low_us, high_us = told["interval_us"]
    return Recommendation(
        config=TileConfig.of(told["config"]), source=told["source"],
        time_s=told["latency_us"] / 1e6, interval_s=(low_us / 1e6, high_us / 1e6),
        distance=told["distance"], confidence=told["confidence"], bound_by=told["bound_by"],
        rationale=told["rationale"], doubts=tuple(told["doubts"]),
    )  # fmt: skip
