"""own_tiles: atomic updates of a block's own tiles are loads and stores.

One thread runs a block, and no other one is at its tiles.
"""

from __future__ import annotations

from tilecore.ir.nodes import Atomic, PrimFunc
from tilecore.ir.plain.updates import plain_updates
from tilecore.ir.visitor import with_body


def run(func: PrimFunc) -> PrimFunc:
    """Return the function with such updates as loads and stores."""
    return with_body(func, plain_updates(func.body, _is_own))


def _is_own(stmt: Atomic) -> bool:
    return stmt.buffer.root.scope != "global"
