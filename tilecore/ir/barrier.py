"""What an array of mbarriers means: arrivals counted, phases that end, waits by parity.

An element counts the arrivals so far. Every ``arrive_counts[i]`` of them end a phase, so phase
``arrivals // count`` is running. A wait for a parity is over as soon as the running phase has the
other parity: it waits for the last phase of its own. Transfers are complete when their statement
is, so bytes to come (``expect_tx``) never hold a phase back.
"""

from __future__ import annotations

from tilecore.ir.expr import Expr, Load, binary, cast, const, select
from tilecore.ir.nodes import Arrive, Buffer, Store, Wait


def arrive_count(buffer: Buffer, index: Expr) -> Expr:
    """Return how many arrivals end a phase of ``buffer[index]``."""
    counts = buffer.arrive_counts or (1,)
    if len(set(counts)) == 1:
        return const(counts[0])
    found: Expr = const(counts[-1])
    for position in reversed(range(len(counts) - 1)):
        found = select(binary("eq", index, position), const(counts[position]), found)
    return found


def is_over(wait: Wait) -> Expr:
    """Return whether ``wait`` need not wait."""
    arrived = Load(wait.buffer, (wait.index,), wait.buffer.dtype)
    phase = binary("floordiv", arrived, arrive_count(wait.buffer, wait.index))
    parity = cast(wait.parity, wait.buffer.dtype)
    return binary("ne", binary("mod", phase, 2), binary("mod", parity, 2))


def arrival(arrive: Arrive, times: int = 1) -> Store:
    """Return the statement that counts ``times`` arrivals."""
    place = (arrive.index,)
    arrived = Load(arrive.buffer, place, arrive.buffer.dtype)
    return Store(arrive.buffer, place, binary("add", arrived, const(times)), arrive.span)


def deadlock(wait: Wait) -> str:
    """Return what is said of a wait that nothing can end."""
    return f"deadlock: no thread arrives any more at barrier `{wait.buffer.name}`, waited for here"
