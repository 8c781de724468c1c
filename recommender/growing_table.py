"""The candidates of a tuning run of a program: its table, and what is found around the fastest.

A table has the most promising of the combinations that were looked at, some values of its knobs
left out where there are very many. What of that is around a config is asked for when it is fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from recommender.program_table import ProgramTable, Rows
from recommender.search import Landscape
from tilecore.tile_config import TileConfig

Look = Callable[[Sequence[TileConfig], Sequence[TileConfig]], Rows]


class GrowingTable:
    """A table that gets further rows; those it has stay what they are (``Candidates``)."""

    def __init__(self, table: ProgramTable, look: Look | None) -> None:
        """Begin with a table.

        Args:
            table: of the program.
            look: (centres, others) -> what is around the centres, and the others where they are
                legal; None: it is never asked, nor is it of a table that is whole.
        """
        self._table = table
        self._look = None if table.is_whole else look

    def __len__(self) -> int:
        return len(self._table)

    @property
    def landscape(self) -> Landscape:
        """What a search may know before it starts."""
        return self._table.landscape

    def config(self, row: int) -> TileConfig:
        """Return the config of a row."""
        return self._table.config(row)

    def row(self, config: TileConfig) -> int | None:
        """Return the row of a config, None where it is none of the candidates."""
        return self._table.row(config)

    def scale(self, config: TileConfig) -> float:
        """Return the expected time with all threads over that with one."""
        return self._table.scale(config)

    def predicted_s(self, config: TileConfig, threads: int) -> float | None:
        """Return the expected time with one thread, or (0) with those asked for."""
        return self._table.predicted_s(config, threads)

    def look_around(self, fastest: Sequence[TileConfig], also: Sequence[TileConfig]) -> None:
        """Take in what is around some configs, and others, as further rows."""
        if self._look is not None and (fastest or also):
            self._table = self._table.with_rows(self._look(fastest, also))
