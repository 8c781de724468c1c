"""ProgramDesk: programs that somebody sent are read and looked at in processes of their own.

A document of some kilobytes may ask for closed forms, tables and layouts of any size. So whoever
serves others (REST, the coordinator) hands it to a child process with a limit of time and of
memory, and gets back values: what the program is called, or the table of its configs.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recommender.hardware import HardwareProfile
from tilecore.errors import InvalidDocument, TileError
from tilecore.portable import MOST_BYTES, PortableProgram, parse, unmeasurable
from tilecore.tile_config import KnobValue, TileConfig, canonical_json
from workers.errors import DeskBusy, ProgramTooCostly
from workers.host import candidate_memory_bytes
from workers.sandbox import Outcome, Raised, Returned, Sandbox, TimedOut, Zygote

if TYPE_CHECKING:
    from recommender.program_table import ProgramTable, Rows

LOG = logging.getLogger(__name__)
MEMORY_BYTES = 2 << 30
LIMIT_S = 30.0
WAIT_S = 30.0
PLACES = 2
MAX_REMEMBERED = 32  # answers; a table takes about half a megabyte
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
PRELOAD = ("workers.program_desk", "tilecore.compiler", "recommender.program_table")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadProgram:
    """A program that is well formed, in words.

    Attributes:
        digest: identifies it wherever its source stands.
        document: its canonical text.
        sizes: what a problem must give.
        knobs: name, default and values (None: the service chooses) of each open knob.
        variants: how many programs it consists of.
        unfit: what keeps it from being measured (``unmeasurable``).
    """

    digest: str
    name: str
    document: bytes
    sizes: tuple[str, ...]
    knobs: tuple[tuple[str, KnobValue | None, tuple[KnobValue, ...] | None], ...]
    variants: int
    unfit: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Refused:
    """The program's own fault, or the question's."""

    error: TileError


class ProgramReader:
    """Lives in the child process; the program read last stays in its memory."""

    def __init__(self) -> None:
        self._known: tuple[bytes, PortableProgram] | None = None

    def read(self, document: bytes) -> ReadProgram | _Refused:
        """Return what a document says."""
        try:
            program = self._program(document)
            canonical = program.to_bytes()
            if len(canonical) > MOST_BYTES:  # what came was shorter: other spellings of its texts
                raise InvalidDocument(
                    path="/", expected=f"at most {MOST_BYTES} bytes", found=f"{len(canonical)}"
                )
            return ReadProgram(
                digest=program.digest, name=program.name, document=canonical,
                sizes=(*program.sizes, *program.call_sizes),
                knobs=tuple((k.name, k.default, k.values) for k in program.knobs),
                variants=len(program.variants),
                unfit=tuple(unmeasurable(program.variants[0].func)),
            )  # fmt: skip
        except TileError as error:
            return _Refused(error)

    def table(
        self, document: bytes, problem: Mapping[str, Any], hardware: HardwareProfile, target: str,
        fixed: Mapping[str, KnobValue], threads: int,
    ) -> ProgramTable | _Refused:  # fmt: skip
        """Return the configs of a program."""
        from recommender.program_table import tabulate
        from tilecore.compiler import check

        try:
            return tabulate(
                self._program(document), problem, hardware,
                lambda func, knobs: check(func, target, knobs), fixed=fixed, threads=threads,
            )  # fmt: skip
        except TileError as error:
            return _Refused(error)

    def around(
        self, document: bytes, problem: Mapping[str, Any], hardware: HardwareProfile,
        centres: Sequence[TileConfig], also: Sequence[TileConfig], fixed: Mapping[str, KnobValue],
        threads: int,
    ) -> Rows | _Refused:  # fmt: skip
        """Return configs around some configs of a program."""
        from recommender.program_table import look_around

        try:
            return look_around(
                self._program(document), problem, hardware, centres, also, fixed=fixed,
                threads=threads,
            )  # fmt: skip
        except TileError as error:
            return _Refused(error)

    def _program(self, document: bytes) -> PortableProgram:
        if self._known is None or self._known[0] != document:
            self._known = document, parse(document)
        return self._known[1]


class ProgramDesk:
    """Some child processes that look at programs, and what they found lately."""

    def __init__(
        self, *, limit_s: float = LIMIT_S, memory_bytes: int = MEMORY_BYTES, places: int = PLACES
    ) -> None:
        self._limit_s, self._places = limit_s, places
        self._memory = candidate_memory_bytes(memory_bytes * places) // places
        self._zygote = Zygote(
            "program reader", PRELOAD, absent=("torch",), environment=ENVIRONMENT,
            memory_bytes=self._memory,
        )  # fmt: skip
        self._free: queue.LifoQueue[Sandbox] = queue.LifoQueue()
        for _ in range(places):
            self._free.put(Sandbox(self._zygote, ProgramReader))
        self._known: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, document: bytes) -> ReadProgram:
        """Return what a document says.

        Raises:
            TileError: the document's fault, by class.
            ProgramTooCostly: reading it takes too much time or memory (WK710).
            DeskBusy: too many others are being read (WK711).
        """
        key = hashlib.sha256(document).hexdigest()
        found: ReadProgram = self._remembered(key, "read", document)
        return found

    def table(
        self, digest: str, document: bytes, problem: Mapping[str, Any], hardware: HardwareProfile,
        target: str, *, fixed: Mapping[str, KnobValue] | None = None, threads: int = 0,
    ) -> ProgramTable:  # fmt: skip
        """Return the configs of a stored program at one problem (see ``tabulate``)."""
        asked = [digest, dict(problem), hardware.as_dict(), target, dict(fixed or {}), threads]
        found: ProgramTable = self._remembered(
            canonical_json(asked), "table", document, dict(problem), hardware, target,
            dict(fixed or {}), threads,
        )  # fmt: skip
        return found

    def around(
        self, document: bytes, problem: Mapping[str, Any], hardware: HardwareProfile,
        centres: Sequence[TileConfig], also: Sequence[TileConfig] = (), *,
        fixed: Mapping[str, KnobValue] | None = None, threads: int = 0,
    ) -> Rows:  # fmt: skip
        """Return what a table leaves out around some configs (see ``look_around``)."""
        found: Rows = self._ask(
            "around", document, dict(problem), hardware, tuple(centres), tuple(also),
            dict(fixed or {}), threads,
        )  # fmt: skip
        return found

    def close(self) -> None:
        """End the child processes."""
        self._zygote.close()

    def _remembered(self, key: str, method: str, *args: Any) -> Any:
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return known
        found = self._ask(method, *args)
        with self._lock:
            self._known[key] = found
            if len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        return found

    def _ask(self, method: str, *args: Any) -> Any:
        try:
            sandbox = self._free.get(timeout=WAIT_S)
        except queue.Empty:
            raise DeskBusy(places=self._places) from None
        try:
            outcome = sandbox.call(method, *args, timeout_s=self._limit_s)
        finally:
            self._free.put(sandbox)
        if not isinstance(outcome, Returned):
            raise self._too_costly(outcome)
        if isinstance(outcome.value, _Refused):
            raise outcome.value.error
        return outcome.value

    def _too_costly(self, outcome: Outcome) -> ProgramTooCostly:
        if isinstance(outcome, TimedOut):
            found = "found one that takes longer"
        elif isinstance(outcome, Raised):
            LOG.error("a program could not be looked at: %s: %s", outcome.kind, outcome.text)
            found = f"found one that ends with {outcome.kind}"
        else:
            found = "found one that needs more memory"
        limit = f"{self._memory / 2**30:.1f} GiB"
        return ProgramTooCostly(limit_s=self._limit_s, limit=limit, found=found)
