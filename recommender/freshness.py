"""Freshness: how what was measured differs from what would run now, and what that costs."""

from __future__ import annotations

from recommender.measurement import Measurement

# Factors on the confidence. The code is another one where program or toolchain differ; another
# driver runs the same code.
OTHER_CODE, OTHER_DRIVER = 0.5, 0.8
SHOWN = 12  # digits of a digest


def differences(
    m: Measurement, *, program_digest: str, toolchain_key: str, driver: str
) -> tuple[str, ...]:
    """Return in words what was another program, toolchain or driver; empty if nothing was.

    Args:
        m: what was measured.
        program_digest: of the program now; that of a measurement of another workload differs
            anyway, so pass its own there.
        toolchain_key: of the toolchain now.
        driver: of the device now; where either is unknown, they count as the same.
    """
    found = [
        f"{what} {was[:SHOWN] or 'unknown'}, now {now[:SHOWN]}"
        for what, was, now in (
            ("program", m.program_digest, program_digest),
            ("toolchain", m.toolchain.key, toolchain_key),
        )
        if was != now
    ]
    return (*found, *driver_differences(m, driver))


def driver_differences(m: Measurement, driver: str) -> tuple[str, ...]:
    """Return in words that the driver was another one; where either is unknown, it was the same."""
    is_same = not m.driver or not driver or m.driver == driver
    return () if is_same else (f"driver {m.driver}, now {driver}",)
