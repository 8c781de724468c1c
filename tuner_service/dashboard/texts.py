"""How values are written for people: times, dates, configs, problems."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from recommender.workload import digest_of
from tilecore import kernels

NOTHING = "\N{EN DASH}"


def micro(us: float | None) -> str:
    """Return microseconds with four digits that count, without the unit."""
    if us is None:
        return NOTHING
    digits = 0 if us >= 1000 else 1 if us >= 100 else 2 if us >= 10 else 3
    return f"{us:,.{digits}f}"


def number(value: float | None, digits: int = 1) -> str:
    """Return a number with so many decimals."""
    return NOTHING if value is None else f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    """Return a share in per cent."""
    return NOTHING if value is None else f"{value:.0%}"


def times(ratio: float | None) -> str:
    """Return a ratio."""
    return NOTHING if ratio is None else f"{ratio:.2f}\N{MULTIPLICATION SIGN}"


def seconds(value: float | None) -> str:
    """Return a duration."""
    if value is None:
        return NOTHING
    if value < 100:
        return f"{value:.1f} s"
    return f"{value / 60:.0f} min" if value < 6000 else f"{value / 3600:.1f} h"


def moment(at: datetime | None) -> Markup | str:
    """Return a time in UTC to the minute; the whole of it for programs."""
    if at is None:
        return NOTHING
    utc = at.astimezone(UTC)
    shown = Markup('<time datetime="{}" title="{} UTC">{}</time>')
    return shown.format(utc.isoformat(), f"{utc:%Y-%m-%d %H:%M:%S}", f"{utc:%Y-%m-%d %H:%M}")


def config_text(config: Mapping[str, Any]) -> str:
    """Return a config in one line."""
    return " ".join(f"{name}={value}" for name, value in config.items())


def kernel_text(kernel: str) -> str:
    """Return the name of a kernel, of a program that was sent its beginning."""
    digest = digest_of(kernel)
    return kernel if digest is None else f"program {digest[:8]}"


def workload_text(workload: Mapping[str, Any]) -> str:
    """Return a workload as people say it: fields that have their defaults are left out."""
    kernel, problem = str(workload["kernel"]), workload["problem"]
    definition = kernels.KERNELS.get(kernel)
    fields = () if definition is None else definition.fields
    usual = {f.name: f.beside(problem.get("dtype"))[0] for f in fields}
    names = [*(n for n in usual if n in problem), *(n for n in problem if n not in usual)]
    given = [n for n in names if n != "dtype" and (usual.get(n) is None or problem[n] != usual[n])]
    words = [f"{n}={problem[n]}" for n in given]
    words += [str(problem["dtype"])] if "dtype" in problem else []
    threads = workload.get("threads")
    return " ".join([kernel_text(kernel), *words, *([f"threads={threads}"] if threads else [])])


def first_line(text: str | None) -> str:
    """Return the first line of a message."""
    return (text or "").partition("\n")[0]
