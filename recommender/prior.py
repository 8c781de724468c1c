"""Cost models that ship with the package: the first answer on a machine that measured nothing.

Trained by ``benchmarks/train_priors.py`` on the recordings in ``benchmarks/data``, one per kernel
and instruction set. A model that was trained and promoted on a machine's own measurements goes
before them.
"""

from __future__ import annotations

import gzip
import zlib
from functools import lru_cache
from pathlib import Path

from recommender.cost_model import CostModel
from recommender.errors import InvalidModel
from recommender.families import schema_of
from recommender.hardware import HardwareProfile

PRIOR_THREADS = 1  # of all recordings that they were trained on
FOLDER = Path(__file__).parent / "priors"


def prior(kernel: str, hardware: HardwareProfile) -> CostModel | None:
    """Return the model that ships for a kernel on devices of this kind, None without one."""
    return prior_of(kernel, hardware.family, hardware.arch)


def prior_of(kernel: str, family: str, arch: str) -> CostModel | None:
    """Return the model that ships for a kernel on devices of a family with this instruction set."""
    return _load(FOLDER / file_name(kernel, arch), schema_of(family))


def file_name(kernel: str, arch: str) -> str:
    """Return the file that holds the model of a kernel for an instruction set."""
    return f"{kernel}.{arch}.json.gz"


@lru_cache(maxsize=32)
def _load(path: Path, schema: str) -> CostModel | None:
    try:
        blob = gzip.decompress(path.read_bytes())
        return CostModel.from_bytes(blob, feature_schema=schema)
    except (OSError, EOFError, zlib.error, InvalidModel):  # none, or a damaged installation
        return None
