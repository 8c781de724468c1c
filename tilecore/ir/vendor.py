"""Statements that only GPUs of one vendor run, and the error of other targets."""

from __future__ import annotations

from tilecore.errors import UnsupportedOnTarget
from tilecore.ir import nodes
from tilecore.ir.nodes import PrimFunc
from tilecore.ir.visitor import walk


def refuse_cuda_source(func: PrimFunc, target: str) -> None:
    """Check that a program launches no CUDA source of its own.

    Args:
        func: the program.
        target: what is to run it, for the message.

    Raises:
        UnsupportedOnTarget: it does (TC302).
    """
    for stmt in walk(func.body):
        if isinstance(stmt, nodes.SourceLaunch):
            raise UnsupportedOnTarget(
                what=f"the CUDA source of kernel `{stmt.entry}`", target=target, span=stmt.span,
                reason="expected tile operations, found C++ for NVIDIA's GPUs, which nothing "
                "translates",
                hint='compile for an NVIDIA GPU (target="h100", "sm_80", ...; '
                'target="emulated h100" runs plain CUDA C++ on a CPU), or write the kernel with '
                "T.Kernel",
            )  # fmt: skip
