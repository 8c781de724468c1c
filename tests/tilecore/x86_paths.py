"""Targets that tests of CPU code run on: natively where this machine can, else emulated."""

import pytest

from tilecore.target import EMULATED, host_features, parse_cpu_target, widest_target

HOST = widest_target(host_features())
CLIENT = "avx2+avx_vnni"
VECTOR = "avx512+avx512_bf16+avx512_vnni"
TILES = "avx512+amx_bf16+amx_int8+amx_tile"


def is_native(path):
    """Return whether this machine runs code of a target."""
    return HOST.runs(parse_cpu_target(path))


def here(path):
    """Return the target by which code of ``path`` runs on this machine."""
    return path if is_native(path) else EMULATED + path


def paths(*names):
    """Return targets as values of a parameter; those not native are marked as emulated.

    Of the marked cases of a test only one is run unless pytest is given ``--emulated``.
    """
    return [n if is_native(n) else pytest.param(n, marks=pytest.mark.emulated) for n in names]
