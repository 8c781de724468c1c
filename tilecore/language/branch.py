"""Branches by hand: ``with T.If(cond):`` around ``with T.Then():`` and ``with T.Else():``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilecore.errors import ScopeError
from tilecore.frontend.builder import current
from tilecore.frontend.control import Branch
from tilecore.ir.expr import ExprLike, as_bool

__all__ = ["Else", "If", "Then"]


@contextmanager
def If(condition: ExprLike) -> Iterator[None]:
    """Run what stands in T.Then where ``condition`` holds, else what stands in T.Else.

    Raises:
        ScopeError: no T.Then inside, or a statement outside both (TC104).
    """
    builder = current()
    branch = Branch(builder, as_bool(condition))
    with builder.open("if") as frame:
        frame.branch = branch
        yield
    if frame.stmts or "then" not in branch.frames:
        found = "a statement outside both" if frame.stmts else "no T.Then"
        raise ScopeError(
            message=f"T.If holds `with T.Then()` and perhaps `with T.Else()`; found {found}",
            hint="an `if` of Python does the same",
        )
    branch.close()


@contextmanager
def Then() -> Iterator[None]:
    """Hold what runs where the condition of the enclosing T.If is true.

    Raises:
        ScopeError: outside T.If, or for the second time in it (TC104).
    """
    with _side("then"):
        yield


@contextmanager
def Else() -> Iterator[None]:
    """Hold what runs where the condition of the enclosing T.If is false.

    Raises:
        ScopeError: outside T.If, or for the second time in it (TC104).
    """
    with _side("else"):
        yield


@contextmanager
def _side(side: str) -> Iterator[None]:
    frame = current().frame
    branch = frame.branch
    if branch is None or side in branch.frames:
        where = "outside T.If" if branch is None else "twice in one T.If"
        raise ScopeError(message=f"T.{side.capitalize()} stands {where}")
    with branch.body(side):
        yield
