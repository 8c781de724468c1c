"""Whether a command is about a program of the user's: asked before anything heavy is loaded."""

from __future__ import annotations

from collections.abc import Sequence

from tilecore.errors import InvalidProblem

FORM = "path/program.py:function"


def is_program(kernel: str) -> bool:
    """Return whether the argument of a command means a file of the user's."""
    return kernel.endswith(".py") or ".py:" in kernel


def refuse_for_library(kernel: str, **options: Sequence[str]) -> None:
    """Check that options of programs are not given for a kernel of the library.

    Raises:
        InvalidProblem: one is (TC502).
    """
    for name, given in options.items():
        if given:
            raise InvalidProblem(
                field=f"--{name}", expected=f"a program ({FORM})", found=f"the kernel {kernel}"
            )
