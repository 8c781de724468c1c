"""Where the threads are that candidates run on."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from workers.host import one_per_core

# As a measuring process does it; says where this thread is, and where those are that were started.
RUN = """
import json, os, sys
from pathlib import Path
from workers.toolbox import set_threads

def places():
    found = {}
    for task in Path("/proc/self/task").iterdir():
        lines = dict(line.split(":\\t", 1) for line in (task / "status").read_text().splitlines())
        found[int(task.name)] = lines["Cpus_allowed_list"]
    return found

usable = [int(cpu) for cpu in sys.argv[1].split(",")]
os.environ["TVM_NUM_THREADS"] = str(len(usable))
os.sched_setaffinity(0, usable)
before = places()
told = []
for threads in (len(usable), 1):
    set_threads(threads)
    now = places()
    pool = [cpus for task, cpus in now.items() if task not in before]
    told.append([sorted(os.sched_getaffinity(0)), sorted(pool)])
print(json.dumps(told))
"""
CORES = one_per_core(os.sched_getaffinity(0))


@pytest.mark.exhaustive
@pytest.mark.parametrize("usable", [CORES[-1:], CORES[-2:]], ids=["one", "two"])
def test_each_thread_has_a_core_of_those_that_the_process_may_use(usable: list[int]) -> None:
    command = [sys.executable, "-c", RUN, ",".join(map(str, usable))]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    own, others = usable, [str(cpu) for cpu in usable[1:]]
    assert json.loads(found.stdout) == [[own, others], [own, others]]
