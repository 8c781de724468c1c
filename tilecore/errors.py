"""Every error that tilecore raises: one class per cause, with a stable code, place and hint.

Shown as::

    TC201 shape-mismatch: T.gemm expected K = 32 on both sides, found 32 and 64
      --> gemm.py:27:9
       27 |     T.gemm(A_shared, B_shared, C_local)
      hint: ...

Errors are picklable: they cross process borders.
"""

from __future__ import annotations

import contextlib
import difflib
import linecache
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SourceSpan:
    """Where a piece of a tile program stands: 1-based line, 1-based column."""

    file: str
    line: int
    column: int = 1
    end_column: int | None = None

    @classmethod
    def unknown(cls) -> SourceSpan:
        """Return the span of a node that no source line made."""
        return cls("<unknown>", 0, 0)

    @property
    def is_known(self) -> bool:
        """Whether a source line made the node."""
        return self.line > 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def excerpt(self) -> str:
        """Return the source line with a caret below, or '' where it cannot be read."""
        text = linecache.getline(self.file, self.line).rstrip("\n")
        if not text:
            return ""
        width = max(1, (self.end_column or self.column + 1) - self.column)
        gutter = f"{self.line:5d} | "
        return f"{gutter}{text}\n{' ' * (len(gutter) - 2)}| {' ' * (self.column - 1)}{'^' * width}"


class TileError(Exception):
    """Base of all errors of tilecore.

    ``code`` and ``title`` belong to the class; ``template`` is formatted with the keyword fields.
    """

    code = "TC000"
    title = "error"
    template = "{message}"
    default_hint = ""

    def __init__(self, *, span: SourceSpan | None = None, hint: str = "", **fields: Any) -> None:
        self.span = span if span is not None and span.is_known else None
        self.hint = hint or self.default_hint
        self.fields = fields
        super().__init__(self.message)

    @property
    def message(self) -> str:
        """What was expected and what was found, on one line."""
        return self.template.format(**self.fields)

    def at(self, span: SourceSpan) -> TileError:
        """Return this error placed at ``span`` unless it already has a place."""
        if self.span is None and span.is_known:
            self.span = span
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.span, self.hint, self.fields))

    def __str__(self) -> str:
        lines = [f"{self.code} {self.title}: {self.message}"]
        if self.span is not None:
            lines.append(f"  --> {self.span}")
            excerpt = self.span.excerpt()
            if excerpt:
                lines.append(excerpt)
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


def did_you_mean(found: object, known: Iterable[str], of: str = "{}") -> str:
    """Return a hint at the known name that is most like what was found; '': none is.

    ``of``: how such a name is written.
    """
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(str(found).lower(), by_lower, n=1)
    return f"did you mean `{of.format(by_lower[close[0]])}`?" if close else ""


def _rebuild(
    kind: type[TileError], span: SourceSpan | None, hint: str, fields: dict[str, Any]
) -> TileError:
    return kind(span=span, hint=hint, **fields)


# --- TC1xx: the source program ---------------------------------------------------------------


class UnsupportedSyntax(TileError, RuntimeError):
    """Python that has no meaning inside a tile program."""

    code, title = "TC101", "unsupported-syntax"
    template = "expected {expected}, found {found}"


class UnknownPrimitive(TileError):
    """A ``T.name`` that tilecore does not have (yet) or that the target cannot run."""

    code, title = "TC102", "unknown-primitive"
    template = "T.{name} is not available: {reason}"


class UnknownName(UnknownPrimitive, AttributeError):
    """A ``T.name`` that TileLang has not either; to ``hasattr`` and pickle an attribute missing."""


class SourceUnavailable(TileError):
    """The Python source of a kernel cannot be read."""

    code, title = "TC103", "source-unavailable"
    template = "the source of `{name}` cannot be read"
    default_hint = "define the kernel in a file, not in exec() or an interactive prompt"


class ScopeError(TileError):
    """A value is used where it does not exist, or a statement stands where it may not."""

    code, title = "TC104", "scope-error"
    template = "{message}"


class ProgramError(TileError):
    """Python raised an error while a program was traced; also an instance of that error's class."""

    code, title = "TC105", "python-error"
    template = "{kind}: {detail}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (ProgramError, self.span, self.hint, self.fields))


def program_error(error: Exception, span: SourceSpan, hint: str = "") -> ProgramError:
    """Return ``error``, raised by the Python in a program, as an error with a place."""
    kind = type(error)
    both: type[ProgramError] = ProgramError
    with contextlib.suppress(TypeError):  # the layouts of the two classes may not fit together
        both = type("ProgramError", (ProgramError, kind), {"__module__": __name__})
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return both(kind=name, detail=str(error) or "no message", span=span, hint=hint)


# --- TC2xx: types and shapes -----------------------------------------------------------------


class ShapeMismatch(TileError):
    """Shapes that must agree do not."""

    code, title = "TC201", "shape-mismatch"
    template = "{what}: expected {expected}, found {found}"


class TypeMismatch(TileError, ValueError):
    """A value has the wrong type."""

    code, title = "TC202", "type-mismatch"
    template = "expected {expected}, found {found}"


class InvalidProgram(TileError):
    """The verifier found one or more faults; all are listed."""

    code, title = "TC203", "invalid-program"
    template = "{count} fault(s) in `{name}`:\n{faults}"


class DataRace(TileError):
    """Iterations or blocks that have no order write, or write and read, the same element."""

    code, title = "TC204", "data-race"
    template = "{what}"


class InvalidDocument(TileError):
    """A program as JSON that cannot be read, or one that has no form in JSON."""

    code, title = "TC205", "invalid-document"
    template = "{path}: expected {expected}, found {found}"


class PredicateMismatch(TypeMismatch, TypeError):
    """A vote of threads is about a number that is neither an integer nor a bool."""

    code, title = "TC206", "predicate-mismatch"
    template = "T.{name} requires an integer or boolean predicate: expected one, found {found}"
    default_hint = "compare it: `x != 0`"


# --- TC3xx: inference, lowering, targets -----------------------------------------------------


class LayoutConflict(TileError):
    """No layout of a buffer satisfies all its uses or its annotation."""

    code, title = "TC301", "layout-conflict"
    template = "no layout for `{buffer}`: {reason}"


class UnsupportedOnTarget(TileError):
    """The program is valid but the target cannot run it."""

    code, title = "TC302", "unsupported-on-target"
    template = "{what} on target {target}: {reason}"


class InvalidConfig(TileError):
    """A tile config breaks a limit of the program or the hardware."""

    code, title = "TC303", "invalid-config"
    template = "{knob}={value}: expected {expected}"


class UnknownTarget(TileError):
    """A target name that tilecore does not know."""

    code, title = "TC304", "unknown-target"
    template = "found {found}, expected one of {known}"


class CompileFailed(TileError):
    """The code generator or linker rejected the program (a fault of tilecore or the toolchain)."""

    code, title = "TC305", "compile-failed"
    template = "{stage}: {detail}"
    default_hint = "the program is well formed: please report it with the target and this text"


class ToolchainMissing(TileError):
    """A program that the target needs is not installed."""

    code, title = "TC306", "toolchain-missing"
    template = "{tool} is needed for {purpose} and was not found"


class EmulationError(TileError):
    """A generated kernel does what the device emulated does not define, or never ends."""

    code, title = "TC307", "emulation-error"
    template = "{kernel}: {what}"


class OrderFault(TileError):
    """Threads of a generated kernel touch memory, or wait, in no certain order (a compiler bug)."""

    code, title = "TC308", "order-fault"
    template = "{kernel}: expected every access to be ordered, found\n{faults}"
    default_hint = (
        "where the program places barriers of its own, one may be missing there; else this is a "
        "fault of tilecore: please report it with the program"
    )


# --- TC4xx: artifacts and calls --------------------------------------------------------------


class ArtifactError(TileError):
    """An artifact is damaged, of another version, or for another machine."""

    code, title = "TC401", "artifact-error"
    template = "{path}: {reason}"


class ArgumentError(TileError):
    """A kernel was called with arguments it does not take."""

    code, title = "TC402", "argument-error"
    template = "argument {position} `{name}`: expected {expected}, found {found}"


class AliasError(TileError):
    """Two arguments share memory and one of them is written."""

    code, title = "TC403", "alias-error"
    template = "arguments `{first}` and `{second}` share memory and `{written}` is written"
    default_hint = "pass a copy: the kernel assumes that what it writes is not read elsewhere"


class AssertionFailed(TileError):
    """A condition that a program asserts does not hold while it runs."""

    code, title = "TC404", "assertion-failed"
    template = "{message}"


class LaunchFailed(TileError):
    """The driver refused a launch, or a kernel of an earlier one failed on the device."""

    code, title = "TC405", "launch-failed"
    template = "{call}: {detail}"


# --- TC5xx: library kernels ------------------------------------------------------------------


class UnknownKernel(TileError):
    """A kernel name that is not registered."""

    code, title = "TC501", "unknown-kernel"
    template = "expected one of {known}, found {found!r}"
    default_hint = "a program of your own is named path/program.py:function; REST takes its digest"


class InvalidProblem(TileError):
    """A problem (shape, dtype, attribute) that the kernel does not take."""

    code, title = "TC502", "invalid-problem"
    template = "{field}: expected {expected}, found {found}"


class TuningFailed(TileError):
    """No config of a tuning compiled and computed right."""

    code, title = "TC503", "tuning-failed"
    template = "expected at least one of {count} configs to work, found none: {reason}"
    default_hint = "compile one of them by itself to see its whole error"


class TunerMissing(TileError):
    """Nothing that measures candidates is installed."""

    code, title = "TC504", "tuner-missing"
    template = "expected a tuner registered as entry point of `{group}`, found none"
    default_hint = "install the project (pip install .), which registers its own"


class RecommenderMissing(TileError):
    """Nothing that recommends configs is installed."""

    code, title = "TC505", "recommender-missing"
    template = "expected a recommender registered as entry point of `{group}`, found none"
    default_hint = "install the project (pip install .), which registers its own"


class InvalidDispatchTable(TileError):
    """A file that is no dispatch table, or one that its kernel or this machine has no use for."""

    code, title = "TC506", "invalid-dispatch-table"
    template = "{path}: expected {expected}, found {found}"
    default_hint = "make it with `tilecore dispatch KERNEL ... --output FILE`"


class OutsideDispatchTable(TileError):
    """A call with sizes beyond those that a dispatch table was made for."""

    code, title = "TC507", "outside-dispatch-table"
    template = "expected {expected}, found {found}"
    default_hint = 'make the table for these sizes, too, or let beyond="nearest" serve them'
