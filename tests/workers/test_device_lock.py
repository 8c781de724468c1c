from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from workers.device_lock import device_lock, lock_path
from workers.errors import DeviceBusy

HOLD = """
import sys, time
from pathlib import Path
from workers.device_lock import device_lock
with device_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_another_process_waits_and_a_killed_holder_releases(tmp_path: Path) -> None:
    path = tmp_path / "device.lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(DeviceBusy, match="WK703"), device_lock(path, wait_s=0.05):
            pass
    finally:
        holder.kill()
        holder.wait()
    with device_lock(path, wait_s=5.0):
        pass


def test_devices_have_locks_of_their_own() -> None:
    assert lock_path("cpu") != lock_path("GPU-1")
