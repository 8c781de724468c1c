"""Errors of the workers: WK7xx. A failed candidate is not an error but a Failure value."""

from __future__ import annotations

from tilecore.errors import TileError


class WorkerError(TileError):
    """Base of everything that goes wrong with the workers themselves."""


class WorkerLost(WorkerError):
    """A worker process or actor ended without a fault of the candidate: retry elsewhere."""

    code, title = "WK701", "worker-lost"
    template = "{worker}: {reason}"


class SandboxFailed(WorkerError):
    """The process that candidates run in cannot be started."""

    code, title = "WK702", "sandbox-failed"
    template = "the child process of {worker} did not start: {reason}"


class DeviceBusy(WorkerError):
    """Another run on this machine holds the measuring lock for longer than one waits."""

    code, title = "WK703", "device-busy"
    template = "expected the lock {path} within {waited_s:.0f} s, found it held by another run"
    default_hint = "wait for the other tuning run on this machine, or stop it"


class StaleEpoch(WorkerError):
    """A newer leader has started its workers: this one must stop."""

    code, title = "WK705", "stale-epoch"
    template = "expected to be the newest leader (epoch {epoch}), found actors of epoch {found}"


class ProbeFailed(WorkerError):
    """The machine's peaks could not be measured."""

    code, title = "WK706", "probe-failed"
    template = "measuring the machine's {what}: {reason}"


class ClusterUnavailable(WorkerError):
    """The Ray cluster cannot be reached or started."""

    code, title = "WK707", "cluster-unavailable"
    template = "expected a Ray cluster at {address}, found {reason}"
    default_hint = (
        "start one (ray start --head), or use the local executor; of one that asks for a token, "
        "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN have to be those of its head"
    )


class DeviceMissing(WorkerError):
    """This machine does not have the device that it is to measure on."""

    code, title = "WK708", "device-missing"
    template = "expected {expected} on this machine, found {found}"
    default_hint = (
        "NVIDIA's GPUs are those that `nvidia-smi` lists, AMD's those that torch for ROCm finds;"
        " `tilecore worker --offer` names the device"
    )


class InvalidPack(WorkerError):
    """A folder of candidates, or a file of results, is damaged or of another version."""

    code, title = "WK709", "invalid-pack"
    template = "{path}: {reason}"
    default_hint = "write it again: `tilecore pack FOLDER ...`"


class ProgramTooCostly(WorkerError):
    """Looking at a program that somebody sent takes more time or memory than it may."""

    code, title = "WK710", "program-too-costly"
    template = "expected a program that can be looked at within {limit_s:g} s and {limit}, {found}"
    default_hint = "send a smaller program, or name fewer values of its knobs"


class DeskBusy(WorkerError):
    """Too many programs that somebody sent are being looked at."""

    code, title = "WK711", "desk-busy"
    template = "expected a free process to look at a program with, found {places} busy ones"
    default_hint = "try again in some seconds"


class LockRefused(WorkerError):
    """The lock of a device is there, but nothing that this user may open."""

    code, title = "WK712", "lock-refused"
    template = "expected the lock {path} to be a file that everybody may read, found: {reason}"
    default_hint = "have its owner, or root, remove it while nothing is measured"
