"""``tvm.tirx.stmt_functor`` for programs written for TileLang: it can be imported.

Programs here are tilecore's IR, of which nothing is an instance of TVM's classes: a rewrite that
looks for those would silently find nothing, so its call is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from tilecore.errors import UnsupportedOnTarget

REASON = "programs are tilecore's IR here, which TVM's visitors do not know"


def __getattr__(name: str) -> Callable[..., NoReturn]:
    """Return a function that refuses to be called."""
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise UnsupportedOnTarget(
            what=f"tvm.tirx.stmt_functor.{name}", target="llvm", reason=REASON
        )

    return refuse
