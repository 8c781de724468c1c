"""Where the threads are that candidates run on."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tilecore import kernels
from tilecore.compiler import compile
from workers.host import one_per_core

# As a measuring process does it; says where this thread is, and where those are that were started.
RUN = """
import json, os, sys, time
from pathlib import Path
import numpy as np
from tilecore.runtime import load
from workers.pinning import set_threads

def places():
    found = []
    for task in Path("/proc/self/task").iterdir():
        lines = dict(line.split(":\\t", 1) for line in (task / "status").read_text().splitlines())
        if lines["Name"] == "tilecore":
            found.append(lines["Cpus_allowed_list"])
    return sorted(found)

usable = [int(cpu) for cpu in sys.argv[1].split(",")]
os.sched_setaffinity(0, usable)
a, b, c = np.ones((300, 50), "f4"), np.ones((50, 400), "f4"), np.zeros((300, 400), "f4")
kernel = load(sys.argv[2])
told = []
for threads in (len(usable), 1):
    set_threads(threads)
    kernel(a, b, c)
    assert (c == 50).all()
    time.sleep(0.1)  # until what was started has said where it is
    told.append([sorted(os.sched_getaffinity(0)), places()])
print(json.dumps(told))
"""
CORES = one_per_core(os.sched_getaffinity(0))


@pytest.mark.exhaustive
@pytest.mark.parametrize("usable", [CORES[-1:], CORES[-2:]], ids=["one", "two"])
def test_each_thread_has_a_core_of_those_that_the_process_may_use(usable: list[int]) -> None:
    gemm = kernels.get("gemm")
    problem = gemm.parse_problem({"m": 300, "n": 400, "k": 50})
    path = compile(gemm.program(problem, dict(gemm.default_config()))).path
    command = [sys.executable, "-c", RUN, ",".join(map(str, usable)), str(path)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    own, others = usable, [str(cpu) for cpu in usable[1:]]
    assert json.loads(found.stdout) == [[own, others], [own, others]]
