"""One tuned space as T4 results: the exchange format of autotuners, version 1.0.0.

Source: https://github.com/odgaard/TuningSchema (T4), as AutoTuningAssociation's benchmark hub uses
it. Times in milliseconds. ``recommender.recorded.RecordedSpace`` reads it back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from db.records import MeasurementRecord
from recommender.measurement import MeasureStatus

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
    }
