"""tilecore worker: what this machine offers to a cluster."""

from __future__ import annotations

import structlog

from recommender.hardware import HardwareProfile, load_profile
from tuner_service import wiring
from tuner_service.errors import InvalidRequest
from tuner_service.hardware import HOST_NAMES
from tuner_service.log_lines import configure_logging
from tuner_service.settings import is_address, load_settings
from workers.devices import devices_of, gpu_devices
from workers.errors import DeviceMissing
from workers.offer import become_node, join_command

log = structlog.get_logger()
VENDORS = {"cuda": "NVIDIA's", "rocm": "AMD's"}


def worker(address: str, *, offer: str, devices: int | None, node_ip: str | None) -> None:
    """Become a node of the Ray cluster at ``address``; does not return.

    Raises:
        InvalidRequest: that is no address (SV901), or as ``offered`` and ``counted`` raise it.
        DeviceMissing: as ``offered`` raises it (WK708).
        ClusterUnavailable: no cluster lets it in there (WK707).
    """
    from workers.ray_cluster import check_admission

    if not is_address(address):
        raise InvalidRequest(message=f"--address: expected HOST:PORT, found {address}")
    hardware, there = offered(offer)
    cores = wiring.detected_host().cores
    devices = counted(hardware, there, devices)
    check_admission(address)
    configure_logging(load_settings().log_level)
    log.info("worker.offers", devices=devices, hardware=hardware.name, cluster=address)
    become_node(join_command(hardware, address, devices=devices, cpus=cores, node_ip=node_ip))


def offered(name: str) -> tuple[HardwareProfile, int]:
    """Return the hardware that a worker offers by name, and how many of it there are.

    Raises:
        InvalidRequest: there is no such offer, or several kinds of GPU to choose from (SV901).
        DeviceMissing: this machine does not have the device (WK708).
    """
    if name.lower() in HOST_NAMES:
        return wiring.detected_host(), 1
    if name.lower() in VENDORS:
        found = (device.hardware for device in gpu_devices())
        kinds = {hardware.key: hardware for hardware in found if hardware.kind == name.lower()}
        if len(kinds) > 1:
            names = ", ".join(sorted(h.name for h in kinds.values()))
            raise InvalidRequest(message=f"--offer: expected one of {names}, found {name}")
        hardware = next(iter(kinds.values()), None)
        if hardware is None:
            raise DeviceMissing(expected=f"a GPU of {VENDORS[name.lower()]}", found="none")
    else:
        hardware = load_profile(name)
    if hardware.is_emulated:
        return hardware, 1
    if hardware.kind == "cpu":
        expected = "cpu, cuda, rocm or a GPU's name"
        raise InvalidRequest(message=f"--offer: expected {expected}, found {name}")
    return hardware, len(devices_of(hardware))


def counted(hardware: HardwareProfile, there: int, wanted: int | None) -> int:
    """Return how many devices a worker offers: all that are there, or as many as are wanted.

    A CPU is one device: candidates are confirmed on all of its cores, so that two that are
    measured side by side would slow each other down. The emulator is as many as one likes, since
    nobody compares its times with those of another machine.

    Raises:
        InvalidRequest: that many there are not (SV901).
    """
    if wanted is None:
        return there
    if hardware.kind == "cpu" and wanted > 1:
        expected = "1 of a CPU, whose cores are all used for each measurement"
    elif not hardware.is_emulated and wanted > there:
        expected = f"1 to {there} x {hardware.name}"
    else:
        return wanted
    raise InvalidRequest(message=f"--devices: expected {expected}, found {wanted}")
