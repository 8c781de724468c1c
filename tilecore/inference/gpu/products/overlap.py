"""Loops in which the products of two iterations and what lies between them run at once (sm_90).

Of ``S = A B; f(S); P = g(S); C += P D`` an iteration issues its first product and the last one of
the iteration before; while that one runs, threads compute what needs only S. This is the order of
FlashAttention-3 within a warpgroup (Shah et al. 2024, section 3.2), found in any loop of that form:
statements are told apart by what they read and write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from tilecore.inference.gpu.distribution import Distribution
from tilecore.inference.gpu.plan import GemmPlan, Overlap, Pipeline
from tilecore.inference.gpu.products import registers
from tilecore.ir import nodes
from tilecore.ir.analysis import read_buffers, written_buffers
from tilecore.ir.expr import Var
from tilecore.ir.nodes import Buffer, Gemm, Stmt
from tilecore.ir.visitor import expressions, walk, walk_expr

# Beside fragments: addresses, descriptors, barriers, values under way (NVRTC 13.0 keeps attention
# free of spills down to this many).
OTHER_REGISTERS = 22
MEETING = (nodes.Sync, nodes.Arrive, nodes.Wait, nodes.Jump, *nodes.EXCHANGES, nodes.ClusterCopy)


@dataclass(frozen=True, slots=True)
class _Touched:
    """What a statement reads and writes: buffers, and variables that others compute with."""

    read: frozenset[Buffer | Var]
    written: frozenset[Buffer | Var]

    def meets(self, other: _Touched) -> bool:
        """Return whether the order of the two matters."""
        return not (
            self.written.isdisjoint(other.read | other.written)
            and self.read.isdisjoint(other.written)
        )


def with_overlaps(
    pipelines: Mapping[Stmt, Pipeline],
    gemms: Mapping[Stmt, GemmPlan],
    fragments: Mapping[Buffer, Distribution],
    barriers: Set[Stmt],
    threads: int,
) -> tuple[dict[Stmt, Pipeline], tuple[str, ...]]:
    """Return the pipelines, with the order of those that overlap, and why others do not."""
    found, notes = dict(pipelines), []
    needed = registers.held(fragments) + OTHER_REGISTERS
    there = registers.of_thread(threads, fragments)
    for loop, pipeline in pipelines.items():
        made = _order(pipeline, gemms, barriers) if pipeline.boxes else None
        if isinstance(made, Overlap) and needed > there:
            made = f"it takes about {needed} registers a thread, there are {there}"
        if isinstance(made, Overlap):
            found[loop] = replace(pipeline, overlap=made)
        elif made is not None:
            notes.append(
                f"line {loop.span.line}: products of two iterations do not overlap ({made})"
            )
    return found, tuple(notes)


def _order(
    pipeline: Pipeline, gemms: Mapping[Stmt, GemmPlan], barriers: Set[Stmt]
) -> Overlap | str | None:
    """Return the order in which the products overlap, why there is none, or None: not the form."""
    body = pipeline.loop.body
    stmts = body.stmts if isinstance(body, nodes.Seq) else (body,)
    stmts = tuple(s for s in stmts if s not in pipeline.ahead and not isinstance(s, nodes.Annotate))
    places = [n for n, s in enumerate(stmts) if s in gemms and gemms[s].kind == "wgmma"]
    if len(places) < 2:
        return None
    last, end = stmts[places[-1]], places[0] + 1
    assert isinstance(last, Gemm)
    touched = {s: _touched(s) for s in stmts}
    while end < places[-1] and end in places and not _needs(stmts[end], stmts[places[0] : end]):
        end += 1
    first = stmts[:end]
    between = (*stmts[end : places[-1]], *stmts[places[-1] + 1 :])
    if not any(isinstance(s, (nodes.Parallel, nodes.Reduce)) for s in between):
        return None
    if any(touched[s].meets(touched[last]) for s in stmts[places[-1] + 1 :]):
        return None
    rest: list[Stmt] = []
    for stmt in between:
        if any(touched[stmt].meets(touched[s]) for s in (last, *rest)):
            rest.append(stmt)
    meanwhile = tuple(s for s in between if s not in rest)
    if not any(isinstance(s, (nodes.Parallel, nodes.Reduce)) for s in meanwhile):
        return None
    made = Overlap(first, meanwhile, tuple(rest), last)
    return _why_not(made, pipeline, gemms, touched, barriers) or made


def _why_not(
    made: Overlap,
    pipeline: Pipeline,
    gemms: Mapping[Stmt, GemmPlan],
    touched: Mapping[Stmt, _Touched],
    barriers: Set[Stmt],
) -> str:
    """Return why iterations must not overlap, or ""."""
    inside = [s for stmt in touched for s in walk(stmt)]
    if any(isinstance(s, MEETING) or s in barriers for s in inside):
        return "threads meet in the loop"
    products = [s for s in inside if isinstance(s, Gemm)]
    others = [s for s in products if s is not made.last]
    if any(s not in touched or s in made.meanwhile or s in made.rest for s in others):
        return "there are other products between the first and the last"
    if any(gemms[s].kind != "wgmma" or not gemms[s].keeps_c for s in products):
        return "not all products are those of warpgroups with sums in registers"
    if any(touched[s].meets(touched[made.last]) for s in made.first):
        return "the first product needs what the last one computes or reads"
    tiles = set(pipeline.tiles)
    both = (
        tiles
        & touched[made.last].read
        & {b for s in (*made.first, *made.meanwhile, *made.rest) for b in touched[s].read}
    )
    if both and pipeline.stages < 2:
        return "two iterations need tiles of which there is one"
    bound = {s.var for s in inside if isinstance(s, nodes.Let)}
    if bound & touched[made.last].read:
        return "the last product depends on what its iteration computes"
    return ""


def _needs(stmt: Stmt, before: Sequence[Stmt]) -> bool:
    """Return whether a product reads the sums of one before as an operand."""
    assert isinstance(stmt, Gemm)
    sums = {s.c.buffer for s in before if isinstance(s, Gemm)}
    return bool(sums & {stmt.a.buffer, stmt.b.buffer})


def _touched(stmt: Stmt) -> _Touched:
    inside = list(walk(stmt))
    named = {n for s in inside for e in expressions(s) for n in walk_expr(e) if isinstance(n, Var)}
    bound = {s.var for s in inside if isinstance(s, nodes.Let)}
    read = {b.root for b in read_buffers(stmt)} | named
    return _Touched(frozenset(read), frozenset({b.root for b in written_buffers(stmt)} | bound))
