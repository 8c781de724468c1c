"""Errors of the recommender: RC6xx."""

from __future__ import annotations

from tilecore.errors import TileError


class UnknownHardware(TileError):
    """A hardware name that no profile has."""

    code, title = "RC601", "unknown-hardware"
    template = "expected one of {known}, found {found!r}"
    default_hint = "profile the machine at hand with `tilecore profile`, or name a known device"


class EmptySpace(TileError):
    """No config of a program is legal for a problem on a device."""

    code, title = "RC602", "empty-space"
    template = "{kernel} on {hardware}: no legal config; {reason}"
    default_hint = "leave more knobs open, or ask for another device"


class InvalidProfile(TileError):
    """A hardware profile file does not say what a profile must say."""

    code, title = "RC603", "invalid-profile"
    template = "{path}: {reason}"
    default_hint = "the profiles in recommender/profiles show the form"


class InvalidModel(TileError):
    """The bytes of a cost model are damaged or of another version."""

    code, title = "RC604", "invalid-model"
    template = "expected {expected}, found {found}"
    default_hint = "train it again; the recommender works without a model until then"


class UnknownCandidate(TileError):
    """A config that is not a point of the search space."""

    code, title = "RC605", "unknown-candidate"
    template = "expected a config of the space of {kernel}, found {config}"


class NotEnoughMeasurements(TileError):
    """Too little was measured to train a cost model."""

    code, title = "RC606", "not-enough-measurements"
    template = "expected at least {expected}, found {found}"
    default_hint = "measure more: `tilecore tune`"


class InvalidRecording(TileError):
    """A file that holds no measured space."""

    code, title = "RC607", "invalid-recording"
    template = "{path}: {reason}"
    default_hint = (
        "expected CSV with knobs, `time_ms` and `status` (ok, or why not), T4 results (`tilecore "
        "log --export FILE.t4.json`), or a cache of Kernel Tuner"
    )


class NothingOpen(TileError):
    """A program of which nothing is left to choose."""

    code, title = "RC608", "nothing-open"
    template = "expected an open parameter of {program}, found none (given: {fixed})"
    default_hint = "leave out block_M, num_stages, threads or their like, or give `space` the \
values of another parameter"


class NoClosedForm(TileError):
    """A program whose time depends on what is known at the call only."""

    code, title = "RC609", "no-closed-form"
    template = "expected sizes of {program} that follow from its arguments and knobs, found {found}"
    default_hint = (
        "give numbers for dynamic sizes; a loop whose length is data has an estimate "
        "only if it walks through a tensor"
    )


class InvalidExternalSpace(TileError):
    """Parameters or conditions of an external kernel that cannot be used."""

    code, title = "RC610", "invalid-external-space"
    template = "{what}: expected {expected}; found {found}"


class InvalidShapes(TileError):
    """Sizes, ranges or weights from which no dispatch table can be made."""

    code, title = "RC611", "invalid-shapes"
    template = "{where}: expected {expected}; found {found}"
