"""``tilecore.recommend``: configs for any function that makes a program, decorated or not."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from tilecore.autotuner import AutoTuneImpl
from tilecore.errors import TypeMismatch
from tilecore.jit import JITImpl
from tilecore.logged import name_of
from tilecore.recommending import (
    TOP_K,
    OpenProgram,
    ProgramAdvice,
    installed_recommender,
    open_program,
)


def recommend(
    program: Any, *args: Any, target: str | None = None, top_k: int = TOP_K,
    space: Mapping[str, Any] | None = None, cores: int = 0, service: str | None = None,
    problem: Mapping[str, int] | None = None, **given: Any,
) -> ProgramAdvice:  # fmt: skip
    """Return ranked values of the open parameters of ``program``.

    Args:
        program: a function under ``@tilelang.jit`` (and ``@tilelang.autotune``), or one that
            returns a program made by ``@T.prim_func``.
        args: arguments, which stay as they are.
        given: the same by keyword.
        target: the device ("h100"); None: that of ``jit``, else this machine.
        top_k: how many configs.
        space: values to choose from, by parameter.
        cores: of a CPU; 0: all.
        service: address of a service that is to answer, by what was measured there; None: this
            installation answers.
        problem: for a service, values of sizes that the program finds out at its call.

    Raises:
        TileError: the program's own fault, or nothing to choose from, by class.
    """
    asked: dict[str, Any] = {"target": target, "top_k": top_k, "cores": cores, "space": space,
                             "service": service, "problem": problem or {}}  # fmt: skip
    if isinstance(program, AutoTuneImpl):
        return program.recommend(*args, **asked, **given)
    return installed_recommender()(question_of(program, args, given, **asked))


def question_of(
    program: Any, args: Sequence[Any], given: Mapping[str, Any], **asked: Any
) -> OpenProgram:
    """Return what ``recommend`` asks of a recommender.

    Raises:
        TypeMismatch: it is no function that makes a program (TC202).
    """
    if isinstance(program, AutoTuneImpl):
        program = program.impl
    if isinstance(program, JITImpl):
        return program.question(args, given, **asked)
    if not inspect.isfunction(program):
        raise TypeMismatch(
            expected="a function under @tilelang.jit, or one that returns a program",
            found=type(program).__name__,
        )
    signature = inspect.signature(program)
    return open_program(program, signature, args, given, name=program.__name__,
                        logged=name_of(program), **asked)  # fmt: skip
