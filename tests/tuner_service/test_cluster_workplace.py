"""Nodes that cannot say what they are: refused with the reason, and asked again."""

import time
from dataclasses import replace

import pytest
from ray.exceptions import RayTaskError

from tests.tuner_service.table_measurer import HARDWARE, TOOLCHAIN
from tuner_service.coordinator.cluster_workplace import ClusterWorkplace, _Known
from workers.errors import ClusterUnavailable, ProbeFailed
from workers.offer import resource_name
from workers.ray_cluster import ClusterNode

UNMEASURED = replace(HARDWARE, source="detected", peak_flop_per_s={})
NODE = ClusterNode(
    key="n1", name="one", cpus=2, resource=resource_name(HARDWARE), devices=1, compiles=True
)


class Answers:
    """An inquiry that has an answer, or ends with an error of the node."""

    def __init__(self, found):
        self._found = found

    def answer(self):
        if not isinstance(self._found, Exception):
            return self._found
        error = ClusterUnavailable(address="the node", reason="RayTaskError: ray::_f()")
        raise error from RayTaskError("_f", "Traceback", self._found).as_instanceof_cause()


@pytest.fixture
def cluster(store):
    """A workplace with one node; what the node says is taken from a list."""

    class OneNode(ClusterWorkplace):
        def __init__(self):
            self.says = []
            self.asked = 0
            super().__init__(
                "unused", TOOLCHAIN, lambda *_, **__: None, self._next, self._next
            )  # fmt: skip
            self._epoch = store.leader.acquire("me", 60)

        def _next(self, _node):
            self.asked += 1
            return Answers(self.says.pop(0))

        def ask(self):
            if "n1" not in self._known:
                self._known["n1"] = _Known(NODE, self._inquire(NODE))
            self._ask(store, self._known["n1"], "n1")
            return self._known["n1"]

    return OneNode()


def test_a_node_whose_peaks_cannot_be_measured_is_refused_and_says_why(store, cluster):
    """It was asked again every two seconds, and nobody was told of it."""
    broken = ProbeFailed(what="bandwidth", reason="no memory")
    cluster.says = [(UNMEASURED, TOOLCHAIN), broken]
    for _ in range(9):
        known = cluster.ask()
    assert cluster.asked == 2
    (row,) = store.nodes.list()
    assert (row.state, row.key) == ("refused", "n1")
    assert "WK706" in row.detail
    assert "no memory" in row.detail
    assert cluster.is_settled
    assert not cluster._usable()
    cluster.says, known.ask_at = [(UNMEASURED, TOOLCHAIN), (HARDWARE, TOOLCHAIN)], 0.0
    for _ in range(9):
        known = cluster.ask()
    (row,) = store.nodes.list()
    assert (row.state, row.detail) == ("active", "")
    assert cluster._usable() == [known.node]


def test_a_node_of_another_version_that_cannot_answer_is_refused(store, cluster):
    store.save_hardware(HARDWARE)
    cluster.says = [AttributeError("no attribute '_describe'")]
    for _ in range(9):
        cluster.ask()
    (row,) = store.nodes.list()
    assert (row.state, row.hardware) == ("refused", HARDWARE)
    assert row.detail.endswith("AttributeError: no attribute '_describe'")


def test_a_node_of_another_version_is_refused_and_says_what_differs(store, cluster):
    """It was told as two toolchains, spelled out."""
    store.save_hardware(HARDWARE)
    digests = {"tilecore": "0123456789abcdef", "tvm": "0.27 (ffi 0.1.14.post1)"}
    cluster.says = [(HARDWARE, replace(TOOLCHAIN, **digests, nvrtc="13.0"))]
    for _ in range(3):
        cluster.ask()
    (row,) = store.nodes.list()
    assert (row.state, row.detail) == (
        "refused",
        "it has tilecore 0123456789ab (the coordinator has table), "
        "tvm 0.27 (ffi 0.1.14.post1) (the coordinator has none)",
    )
    assert not cluster._usable()


def test_a_node_that_nobody_knows_and_cannot_answer_is_asked_less_and_less(store, cluster):
    cluster.says = [OSError("gone")] * 4
    delays = []
    for _ in range(3):
        known = cluster.ask()
        delays.append(known.ask_at - time.monotonic())
        known.ask_at = 0.0
        cluster.ask()
    assert store.nodes.list() == []
    assert delays == pytest.approx([4.0, 8.0, 16.0], abs=0.5)
