"""WorkloadIndex finds what ``workload_distance`` says is nearest."""

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recommender.nearest import workload_distance
from recommender.workload import Workload
from recommender.workload_index import WorkloadIndex

SIZES = st.sampled_from((0, 1, 7, 64, 1000, 4096))
PROBLEMS = st.fixed_dictionaries(
    {"m": SIZES, "dtype": st.sampled_from(("float16", "float32"))},
    optional={"n": SIZES, "flag": st.booleans(), "pad": st.text(max_size=2)},
)


@settings(max_examples=80, deadline=None)
@given(st.lists(PROBLEMS, max_size=12), PROBLEMS, st.integers(1, 5))
def test_nearest_is_what_the_distance_says(known, asked, count):
    workloads = [Workload.of("gemm", problem) for problem in known]
    wanted = Workload.of("gemm", asked)
    found = WorkloadIndex(workloads).nearest(wanted, count)
    distances = [workload_distance(w, wanted) for w in workloads]
    assert [d for _, d in found] == pytest.approx(sorted(distances)[:count])
    assert all(d == pytest.approx(distances[i]) for i, d in found)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(PROBLEMS, max_size=6), st.lists(PROBLEMS, max_size=6), st.lists(PROBLEMS, max_size=3),
    PROBLEMS,
)  # fmt: skip
def test_an_index_that_grew_is_like_one_of_all(first, second, third, asked):
    parts = [[Workload.of("gemm", p, i % 3) for i, p in enumerate(part)]
             for part in (first, second, third)]  # fmt: skip
    grown = WorkloadIndex(parts[0]).with_more(parts[1]).with_more(parts[2])
    whole = WorkloadIndex([*parts[0], *parts[1], *parts[2]])
    wanted = Workload.of("gemm", asked, 1)
    assert list(grown.workloads) == list(whole.workloads)
    for count in (1, 4, 20):
        assert grown.nearest(wanted, count) == whole.nearest(wanted, count)


def test_of_many_numbers_of_threads_the_one_asked_for_comes_first():
    known = [Workload.of("gemm", {"m": 64}, threads) for threads in range(20)]
    found = WorkloadIndex(known).nearest(Workload.of("gemm", {"m": 64}, 17), 3)
    assert found == [(17, 0.0), (0, 0.0), (1, 0.0)]


DISTANCES = """
from recommender.nearest import workload_distance
from recommender.workload_index import WorkloadIndex
from recommender.workload import Workload

sizes = [{"m": 24 + i, "n": 112 + 7 * i, "k": 443, "l": 9 + i} for i in range(9)]
known = [Workload.of("gemm", size) for size in sizes]
asked = Workload.of("gemm", {"m": 1000, "n": 333, "k": 77, "l": 5})
print([workload_distance(w, asked) for w in known], WorkloadIndex(known).nearest(asked, 9))
"""


def test_distances_are_the_same_in_every_process():
    """Sums in the order of a set of names differed in their last digit from process to process."""
    said = {
        subprocess.run(
            [sys.executable, "-c", DISTANCES], env={**os.environ, "PYTHONHASHSEED": str(seed)},
            check=True, capture_output=True, text=True,
        ).stdout
        for seed in range(4)
    }  # fmt: skip
    assert len(said) == 1
