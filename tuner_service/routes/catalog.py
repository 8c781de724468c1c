"""GET /v1/kernels and /v1/hardware: what can be asked for."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path

from db.store import SqlStore
from recommender.hardware import HardwareProfile
from tilecore import kernels
from tilecore.kernels.definition import KernelDefinition
from tuner_service.hardware import all_hardware, find_hardware
from tuner_service.jobs import is_offered
from tuner_service.routes.context import Cursor, Limit, Store, part_of
from tuner_service.schemas import HardwareOut, HardwarePage, KernelOut
from tuner_service.web.problems import documented
from tuner_service.wiring import detected_host

router = APIRouter(tags=["catalog"])
KINDS = ("cpu", "cuda")  # of targets that have values of their own


@router.get("/kernels")
def list_kernels() -> list[KernelOut]:
    """Return the kernels of the library."""
    return [_kernel(definition) for definition in kernels.KERNELS.values()]


@router.get("/kernels/{name}", responses=documented(404))
def get_kernel(name: Annotated[str, Path(max_length=64)]) -> KernelOut:
    """Return one kernel."""
    return _kernel(kernels.get(name))


@router.get("/hardware", responses=documented(422))
def list_hardware(store: Store, limit: Limit = 50, cursor: Cursor = None) -> HardwarePage:
    """Return known devices, the host of the service first."""
    found, more = part_of("hardware", limit, cursor, all_hardware(store), lambda p: p.key)
    return HardwarePage(items=[_hardware(store, p) for p in found], next_cursor=more)


@router.get("/hardware/{name}", responses=documented(404))
def get_hardware(name: Annotated[str, Path(max_length=200)], store: Store) -> HardwareOut:
    """Return one device by name, alias or key."""
    return _hardware(store, find_hardware(store, name))


def _kernel(definition: KernelDefinition) -> KernelOut:
    return KernelOut(
        name=definition.name,
        doc=definition.doc,
        fields=[
            {
                "name": f.name,
                "kind": f.kind,
                "required": f.default is None,
                "default": f.default,
                "choices": list(f.choices),
                "of_dtype": {dtype: list(values) for dtype, values in f.of_dtype.items()},
                "aliases": list(f.aliases),
                "doc": f.doc,
            }
            for f in definition.fields
        ],
        knobs=_knobs(definition),
    )


def _knobs(definition: KernelDefinition) -> list[dict[str, Any]]:
    """Return the knobs of all kinds of targets, those first that CPUs have."""
    found: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        for knob in definition.knobs_of(kind):
            own: dict[str, Any] = {
                "name": knob.name,
                "default": knob.default,
                "values": {},
                "doc": knob.doc,
            }
            known = found.setdefault(knob.name, own)
            if kind in knob.values:
                known["values"][kind] = list(knob.values[kind])
    return list(found.values())


def _hardware(store: SqlStore, profile: HardwareProfile) -> HardwareOut:
    is_host = profile.key == detected_host().key
    return HardwareOut(
        key=profile.key,
        name=profile.name,
        kind=profile.kind,
        arch=profile.arch,
        cores=profile.cores,
        aliases=list(profile.aliases),
        source=profile.source,
        driver=profile.driver,
        is_host=is_host,
        offers_tuning=is_offered(store, profile),
        peak_gflops_per_core={d: rate / 1e9 for d, rate in profile.peak_flop_per_s.items()},
        bandwidth_gb_per_s=profile.bandwidth_bytes_per_s / 1e9,
    )
