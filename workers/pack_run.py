"""Measure the candidates of this folder on this machine's GPU: ``python run.py --help``.

Needs Python 3.11 or newer, torch for CUDA, cuda-bindings, NumPy, ml_dtypes and psutil; no compiler,
no database. The code is in ``code.zip``, whatever is installed.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path


def run() -> int:
    """Run the measuring of this folder with its own code; return the exit status."""
    folder = Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory(prefix="tilecore-pack-") as code:
        with zipfile.ZipFile(folder / "code.zip") as archive:
            archive.extractall(code)
        sys.path.insert(0, code)
        from workers.measure_pack import main

        return main([str(folder), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(run())
