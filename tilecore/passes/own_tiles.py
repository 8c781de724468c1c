"""own_tiles: atomic updates of a block's own tiles are loads and stores.

One thread runs a block, and no other one is at its tiles.
"""

from __future__ import annotations

from dataclasses import replace

from tilecore.ir.nodes import Atomic, PrimFunc
from tilecore.ir.plain_updates import plain_updates


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with such updates as loads and stores."""
    body = plain_updates(func.body, _is_own)
    return func if body is func.body else replace(func, body=body)


def _is_own(stmt: Atomic) -> bool:
    return stmt.buffer.root.scope != "global"
