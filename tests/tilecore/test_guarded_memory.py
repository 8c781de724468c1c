"""Kernels keep to the memory of their arguments and tiles: what ``make guarded`` sees of it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "tilecore"
# What has left its memory before: vectors along the rows of a tile, bytes that several lanes share.
HAVE = {
    "test_cpu_backend.py": "a_product_is_the_vector_operand_of_the_next",
    "test_computing_prologues.py": "codes_are_unpacked_where_they_are_multiplied and less_eight",
}
OUTSIDE = """
import numpy as np
import tests.guarded_memory as guarded
import tilecore.language as T
from tilecore.compiler import compile
from tilecore.runtime import load

SIZE = 1 << 16  # no place on the stack

@T.prim_func
def main(
    X: T.Tensor((SIZE,), "float32"), N: T.Tensor((1,), "int32"), Y: T.Tensor((SIZE,), "float32")
):
    with T.Kernel(1, threads=64):
        x = T.alloc_shared((SIZE,), "float32")
        for i in T.Parallel(SIZE):
            x[i] = X[i] + 1.0
        for i in T.serial(SIZE):
            Y[i] = x[i + N[0]]

guarded.pytest_configure()
kernel = load(compile(main))
x, y = np.ones(SIZE, np.float32), np.zeros(SIZE, np.float32)
kernel(x, np.zeros(1, np.int32), y)
assert (y == 2).all()
kernel(x, np.array([{offset}], np.int32), y)
print("nothing was seen")
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    environment["PYTHONPATH"] = str(ROOT)
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("file", list(HAVE))
def test_kernels_keep_to_their_memory(file: str) -> None:
    options = ("-p", "tests.guarded_memory", "-p", "no:cacheprovider", "-p", "no:xdist")
    whole = "exhaustive or not exhaustive"
    done = run("-m", "pytest", *options, str(FOLDER / file), "-k", HAVE[file], "-m", whole)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("offset", [1, 4096, -4096])
def test_reading_outside_of_a_tile_ends_the_process(tmp_path: Path, offset: int) -> None:
    """Behind its end by one element, and by pages before and behind it."""
    script = tmp_path / "outside.py"
    script.write_text(OUTSIDE.format(offset=offset))
    done = run(str(script))
    assert done.returncode == -signal.SIGSEGV, done.stdout + done.stderr[-1000:]
