"""One tuned space as T4 results: the exchange format of autotuners, version 1.0.0.

Source: https://github.com/odgaard/TuningSchema (T4), as AutoTuningAssociation's benchmark hub uses
it. Times in milliseconds. ``recommender.recorded.RecordedSpace`` reads any such file as a space;
``t4_measurements`` reads ours back as the measurements they were.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from db.records import MeasurementRecord
from recommender.errors import InvalidRecording
from recommender.hardware import HardwareProfile
from recommender.measurement import Measurement, MeasureStatus, Protocol, Toolchain
from recommender.workload import Workload
from tilecore.tile_config import TileConfig

INVALIDITY = {
    MeasureStatus.OK: "correct",
    MeasureStatus.INVALID_CONFIG: "constraints",
    MeasureStatus.COMPILE_ERROR: "compile",
    MeasureStatus.COMPILE_TIMEOUT: "timeout",
    MeasureStatus.TOOLCHAIN_MISSING: "compile",
    MeasureStatus.LAUNCH_ERROR: "runtime",
    MeasureStatus.RUN_TIMEOUT: "timeout",
    MeasureStatus.WRONG_RESULT: "correctness",
    MeasureStatus.UNSTABLE: "runtime",
    MeasureStatus.WORKER_LOST: "runtime",
}


def t4_chunks(records: Iterable[MeasurementRecord]) -> Iterator[str]:
    """Yield a T4 document piece by piece, a result per record.

    A space has the same knobs everywhere: records with others than the first has are of another
    version of the kernel and left out; the metadata at the end tell how many.
    """
    knobs: tuple[str, ...] | None = None
    written = left_out = 0
    metadata: dict[str, Any] = {"timeunit": "milliseconds"}
    yield '{"schema_version": "1.0.0", "results": ['
    for record in records:
        m = record.measurement
        if knobs is None:
            knobs = tuple(m.config)
            metadata |= {
                "kernel": m.workload.kernel,
                "problem": dict(m.workload.problem),
                "hardware": m.hardware.name,
                "hardware_key": m.hardware.key,
                "hardware_profile": m.hardware.as_dict(),
                "workload_threads": m.workload.threads,
            }
        if tuple(m.config) != knobs:
            left_out += 1
            continue
        yield (",\n" if written else "\n") + json.dumps(_result(record))
        written += 1
    metadata |= {"results": written, "left_out": left_out}
    yield f'\n], "metadata": {json.dumps(metadata)}}}\n'


def _result(record: MeasurementRecord) -> dict[str, Any]:
    m = record.measurement
    times: dict[str, Any] = {
        "compilation": (m.compile_s or 0.0) * 1e3,
        "framework": 0,
        "search_algorithm": 0,
        "validation": 0,
    }
    value: float | str = m.status.value
    if m.time_s is not None:
        times["runtimes"] = [t * 1e3 for t in m.times_s]
        value = m.time_s * 1e3
    return {
        "timestamp": m.measured_at.isoformat(sep=" "),
        "configuration": dict(m.config.items_),
        "times": times,
        "invalidity": INVALIDITY[m.status],
        "correctness": int(m.status is MeasureStatus.OK),
        "measurements": [{"name": "time", "value": value, "unit": "ms"}],
        "objectives": ["time"],
        "protocol": m.protocol.value,
        "status": m.status.value,
        "threads": m.threads,
        "program_digest": m.program_digest,
        "toolchain": asdict(m.toolchain),
    }


def t4_measurements(text: str, name: str) -> list[Measurement]:
    """Return the measurements in a document of ``t4_chunks``; detail and metrics are not kept.

    Args:
        text: the document.
        name: of the file, for the error.

    Raises:
        InvalidRecording: no such document, or one without a profile of its device (RC607).
    """
    try:
        document = json.loads(text)
        about = document["metadata"]
        workload = Workload.of(about["kernel"], about["problem"], about["workload_threads"])
        hardware = _profile(about["hardware_profile"])
        return [_measurement(r, workload, hardware) for r in document["results"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise InvalidRecording(path=name, reason=what) from error


def _profile(values: Mapping[str, Any]) -> HardwareProfile:
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return HardwareProfile(**fields)


def _measurement(
    result: Mapping[str, Any], workload: Workload, hardware: HardwareProfile
) -> Measurement:
    return Measurement(
        workload=workload,
        config=TileConfig.of(result["configuration"]),
        hardware=hardware,
        toolchain=Toolchain(**result["toolchain"]),
        program_digest=result["program_digest"],
        protocol=Protocol(result["protocol"]),
        threads=int(result["threads"]),
        status=MeasureStatus(result["status"]),
        times_s=tuple(t / 1e3 for t in result["times"].get("runtimes", ())),
        measured_at=datetime.fromisoformat(result["timestamp"]),
    )
