"""Room: whether memory holds what a tuning run measures, known before anything is compiled."""

from __future__ import annotations

from db.store import SqlStore
from recommender.open_shapes import tensor_bytes
from tuner_service.errors import TooLargeToMeasure
from tuner_service.questions import Question
from tuner_service.wiring import detected_host
from workers.host import MEASURED_BYTES, candidate_memory_bytes

COPIES = 2  # each input as kernels get it and as it was, each output and what it is to be


def check_room(store: SqlStore, question: Question, *, on_this_host: bool) -> None:
    """Complain of tensors that surely find no room where candidates are measured.

    The limit is that of a candidate's process on this machine, where it alone measures, else what
    such a process has on any machine. What a GPU holds is known on the GPU only.

    Raises:
        TooLargeToMeasure: they take more (SV932).
    """
    hardware = question.hardware
    if hardware.kind != "cpu" and not hardware.is_emulated:
        return
    is_here = hardware.is_emulated or hardware.key == detected_host().key
    alone = on_this_host and is_here and not store.nodes.has_offered(hardware.key)
    limit = candidate_memory_bytes(MEASURED_BYTES) if alone else MEASURED_BYTES
    needed = COPIES * _tensor_bytes(question)
    if needed > limit:
        where = "this machine" if alone else "any machine"
        raise TooLargeToMeasure(limit=_shown(limit), where=where, found=_shown(needed))


def _tensor_bytes(question: Question) -> int:
    if question.sent is not None:
        return question.sent.table.tensor_bytes
    assert question.definition is not None
    return tensor_bytes(question.definition, dict(question.workload.problem))


def _shown(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"
