"""The store of artifacts: bounded, shared by processes, least recently used first out."""

import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tilecore.artifact import ABANDONED_S, ArtifactStore, Manifest
from tilecore.tile_config import digest

SIZE = 10_000


def manifest(number: int) -> Manifest:
    return Manifest(
        key=digest({"number": number}), name="f", entry="f", parameters=(), target="llvm",
        isa="x86-64-avx2", config={"block_M": number}, program_digest="p", versions={},
    )  # fmt: skip


def _write(path: Path) -> None:
    path.write_bytes(bytes(SIZE))


def put(root: Path, number: int, limit_bytes: int = 1 << 30) -> Path:
    store = ArtifactStore(root, limit_bytes)
    made = store.put(manifest(number), "program", _write)
    return made.path


def test_what_was_not_used_for_longest_goes_first(tmp_path):
    paths = [put(tmp_path, number) for number in range(8)]
    for age, path in enumerate(reversed(paths)):
        os.utime(path, (time.time() - 100 * (age + 1),) * 2)
    store = ArtifactStore(tmp_path, limit_bytes=5 * SIZE)
    assert store.get(manifest(0).key) is not None  # the oldest, but used now
    removed = store.trim()
    kept = [path.is_dir() for path in paths]
    assert kept == [True, False, False, False, False, True, True, True]
    assert 4 * SIZE < removed < 5 * SIZE
    assert store.get(manifest(1).key) is None
    assert store.get(manifest(7).key).manifest == manifest(7)


def test_within_its_limit_nothing_goes(tmp_path):
    paths = [put(tmp_path, number) for number in range(3)]
    (tmp_path / "launch-1.o").write_bytes(bytes(SIZE))  # what others keep beside the shards
    assert ArtifactStore(tmp_path, limit_bytes=4 * SIZE).trim() == 0
    assert all(path.is_dir() for path in paths)


def test_what_a_killed_process_began_goes_after_a_day(tmp_path):
    shard = put(tmp_path, 0).parent
    begun, abandoned = shard / ".staging-now", shard / ".staging-killed"
    for folder in begun, abandoned:
        folder.mkdir()
        (folder / "kernel.so").write_bytes(bytes(SIZE))
    os.utime(abandoned, (time.time() - ABANDONED_S - 60,) * 2)
    assert ArtifactStore(tmp_path).trim() == 0
    assert begun.is_dir()
    assert not abandoned.exists()


def test_what_was_just_made_stays(tmp_path):
    paths = [put(tmp_path, number) for number in range(3)]
    assert ArtifactStore(tmp_path, limit_bytes=1).trim() == 0
    assert all(path.is_dir() for path in paths)


def _put_and_trim(root: Path, number: int) -> int:
    path = put(root, number)
    os.utime(path, (time.time() - 1000 + number,) * 2)
    return ArtifactStore(root, limit_bytes=3 * SIZE).trim()


def test_processes_put_and_trim_at_once(tmp_path):
    with ProcessPoolExecutor(4) as pool:
        removed = list(pool.map(partial(_put_and_trim, tmp_path), range(200)))
    assert sum(removed) > 0
    ArtifactStore(tmp_path, limit_bytes=3 * SIZE).trim()
    left = sum(f.stat().st_size for f in tmp_path.rglob("*") if f.is_file())
    assert left <= 3 * SIZE


MADE_AND_CALLED = """
import sys
import numpy as np
import tilecore as tilelang, tilecore.language as T

@tilelang.jit
def doubled(A):
    N = T.const("N")
    A: T.Tensor[[N], T.float32]
    B = T.empty([N], T.float32)
    with T.Kernel(1):
        T.device_assert(A[0] > 0, "größer als 0")
        for i in T.Parallel(N):
            B[i] = A[i] * 2.0
    return B

assert sys.getfilesystemencoding() == "ascii", sys.getfilesystemencoding()
assert doubled(np.ones(8, np.float32)).sum() == 16
try:
    doubled(np.zeros(8, np.float32))
except Exception as error:
    assert "größer als 0" in str(error), ascii(str(error))
else:
    raise AssertionError("it holds")
"""


@pytest.mark.exhaustive
def test_kernels_are_loaded_from_a_folder_whose_name_the_locale_does_not_spell(tmp_path):
    """TVM was given the name as Python spells it then: every trial of a run failed."""
    folder = tmp_path / "Prüf daten ü"
    folder.mkdir()
    program = folder / "program.py"
    program.write_text(MADE_AND_CALLED)
    environment = os.environ | {
        "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0",
        "HOME": str(folder),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(folder.rglob("kernel.so"))
