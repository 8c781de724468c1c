"""Proof of the order of a kernel: a happens-before check of the program that is emitted.

It shares nothing with what places barriers (``inference/gpu/threads`` and the lowering):
``codegen/order.py`` reads the finished TIR, instruction by instruction, into the event language of
``program.py``; ``machine.py`` runs all threads of a block, ``clocks.py`` holds what each knows of
the others, and ``shadow.py`` finds accesses that nothing orders.
"""

from tilecore.ordering.check import Verdict, check, judge, unneeded, without
from tilecore.ordering.code import Unrolling
from tilecore.ordering.faults import Fault
from tilecore.ordering.program import OrderProgram

__all__ = ["Fault", "OrderProgram", "Unrolling", "Verdict", "check", "judge", "unneeded", "without"]
