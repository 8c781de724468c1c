"""The tuning log as CSV: a line per measurement, nested values as JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator

from db.records import MeasurementRecord
from tilecore.tile_config import canonical_json

COLUMNS = (
    "id", "run", "measured_at", "kernel", "problem", "workload_threads", "threads", "hardware",
    "hardware_key", "toolchain_key", "program_digest", "config", "protocol", "status", "time_us",
    "reference_time_us", "repeats_us", "reference_repeats_us", "compile_ms", "max_error", "detail",
    "worker", "metrics", "driver", "created_by",
)  # fmt: skip


def csv_lines(records: Iterable[MeasurementRecord]) -> Iterator[str]:
    """Yield the header and one line per record."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    writer.writerow(COLUMNS)
    for record in records:
        yield _taken(buffer)
        writer.writerow(values(record))
    yield _taken(buffer)


def _taken(buffer: io.StringIO) -> str:
    text = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return text


def values(record: MeasurementRecord) -> list[object]:
    """Return the values of a line by COLUMNS; None is written as nothing."""
    m = record.measurement
    reference_s = m.reference_time_s
    return [
        record.id, record.run, m.measured_at.isoformat(), m.workload.kernel,
        canonical_json(dict(m.workload.problem)), m.workload.threads, m.threads, m.hardware.name,
        m.hardware.key, m.toolchain.key, m.program_digest, canonical_json(dict(m.config.items_)),
        m.protocol.value, m.status.value, None if m.time_s is None else m.time_s * 1e6,
        None if reference_s is None else reference_s * 1e6,
        canonical_json([t * 1e6 for t in m.times_s]),
        canonical_json([t * 1e6 for t in m.reference_times_s]),
        None if m.compile_s is None else m.compile_s * 1e3, m.max_error, m.detail, m.worker,
        canonical_json(dict(m.metrics)), m.driver, record.created_by,
    ]  # fmt: skip
