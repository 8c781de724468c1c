"""The tuning log as Parquet: the columns of the CSV with their types, in row groups."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from db.errors import FormatMissing
from db.exchange.csv_log import COLUMNS, values
from db.records import MeasurementRecord

GROUP = 2_000  # records in memory at a time
NUMBERS = ("time_us", "reference_time_us", "compile_ms", "max_error")
COUNTS = ("id", "workload_threads", "threads")
LISTS = ("repeats_us", "reference_repeats_us")


def parquet_pieces(records: Iterable[MeasurementRecord]) -> Iterator[bytes]:
    """Return a Parquet file piece by piece.

    Raises:
        FormatMissing: pyarrow is not installed (DB826).
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise FormatMissing(form="Parquet", package="pyarrow") from error
    schema = pyarrow.schema([(name, _type(pyarrow, name)) for name in COLUMNS])
    return _pieces(pyarrow, parquet, schema, records)


def _pieces(
    pyarrow: Any, parquet: Any, schema: Any, records: Iterable[MeasurementRecord]
) -> Iterator[bytes]:
    sink = _Sink()
    with parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
        rows = iter(records)
        while group := [_row(record) for record in islice(rows, GROUP)]:
            columns = dict(zip(COLUMNS, map(list, zip(*group, strict=True)), strict=True))
            writer.write_table(pyarrow.table(columns, schema))
            yield sink.taken()
    yield sink.taken()


def _type(pyarrow: Any, name: str) -> Any:
    if name == "measured_at":
        return pyarrow.timestamp("us", tz="UTC")
    if name in LISTS:
        return pyarrow.list_(pyarrow.float64())
    if name in NUMBERS:
        return pyarrow.float64()
    return pyarrow.int64() if name in COUNTS else pyarrow.string()


def _row(record: MeasurementRecord) -> list[object]:
    """Return the values of the CSV, those that are text there for want of a type with theirs."""
    m = record.measurement
    typed = {
        "measured_at": m.measured_at,
        "repeats_us": [t * 1e6 for t in m.times_s],
        "reference_repeats_us": [t * 1e6 for t in m.reference_times_s],
    }
    return [typed.get(n, value) for n, value in zip(COLUMNS, values(record), strict=True)]


class _Sink(io.RawIOBase):
    """A file that is handed on as it is written."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []
        self._length = 0

    def writable(self) -> bool:
        """Whether it takes bytes."""
        return True

    def tell(self) -> int:
        """Return how much was written."""
        return self._length

    def write(self, piece: Any) -> int:
        """Take bytes."""
        taken = bytes(piece)
        self._pieces.append(taken)
        self._length += len(taken)
        return len(taken)

    def taken(self) -> bytes:
        """Return what was written since the last call."""
        found = b"".join(self._pieces)
        self._pieces.clear()
        return found
