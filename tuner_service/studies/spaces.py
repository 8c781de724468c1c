"""Spaces of studies: parameters that somebody wrote down, or those of a kernel of the library.

A study keeps what makes its space, and the numbers of its configurations; they mean the same as
long as the space is the same, which the digest of a library kernel's candidates tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from db.store import SqlStore
from recommender.errors import InvalidExternalSpace
from recommender.external import ExternalSpace, Value
from recommender.screening import SpaceCandidates
from recommender.search import Landscape
from recommender.space import SearchSpace
from tilecore import kernels
from tilecore.tile_config import TileConfig, digest
from tuner_service.errors import InvalidRequest, StudyOfAnotherVersion
from tuner_service.hardware import find_hardware
from tuner_service.questions import Question

OUTSIDE = -1  # the number of a default that is none of the candidates


class StudySpace(Protocol):
    """Configurations by number."""

    def __len__(self) -> int: ...

    @property
    def key(self) -> str:
        """Return what is the same for the same configurations."""
        ...

    def config(self, row: int) -> Mapping[str, Value]:
        """Return a configuration."""
        ...

    def row(self, config: Mapping[str, Value]) -> int:
        """Return the number of a configuration."""
        ...

    def find(self, config: Mapping[str, Value]) -> int | None:
        """Return the number of a configuration, None where it is not in the space."""
        ...

    def landscape(self) -> Landscape:
        """Return what a search may see."""
        ...


@dataclass(frozen=True, eq=False)
class KernelSpace:
    """The candidates of a kernel of the library for a problem on a device."""

    space: SearchSpace
    threads: int
    store: SqlStore

    @classmethod
    def of(cls, store: SqlStore, question: Question) -> KernelSpace:
        """Return the candidates for what a question asks.

        Raises:
            EmptySpace: there are none (RC602).
        """
        assert question.definition is not None
        problem = dict(question.workload.problem)
        space = SearchSpace.build(question.definition, problem, question.hardware)
        return cls(space, question.workload.threads, store)

    def __len__(self) -> int:
        return len(self.space)

    @property
    def key(self) -> str:
        """Return what is the same for the same candidates."""
        space = self.space
        values = [[knob, list(options)] for knob, options in space.values.items()]
        candidates = [values, space.codes.tolist(), dict(self.default)]
        asked = [space.definition.name, dict(space.problem), self.threads, space.hardware.key]
        return digest([asked, candidates])

    @property
    def default(self) -> Mapping[str, Value]:
        """The author's config."""
        return dict(self.space.definition.default_config(self.space.hardware.kind).items_)

    def config(self, row: int) -> Mapping[str, Value]:
        """Return a candidate, or the author's config."""
        return self.default if row == OUTSIDE else dict(self.space.config(row).items_)

    def row(self, config: Mapping[str, Any]) -> int:
        """Return the row of a candidate, or ``OUTSIDE``."""
        wanted = TileConfig.of(config)
        return self.space.index(wanted) if self.space.contains(wanted) else OUTSIDE

    def find(self, config: Mapping[str, Any]) -> int | None:
        """Return the row of a candidate, ``OUTSIDE`` for the author's config; None: neither."""
        row = self.row(config)
        return row if row != OUTSIDE or dict(config) == self.default else None

    def landscape(self) -> Landscape:
        """Return the candidates as the models see them that answer questions about the kernel."""
        threads = self.threads or self.space.hardware.cores
        return SpaceCandidates(self.space, threads, self.store).landscape


def written_down(
    parameters: Mapping[str, Sequence[Value]] | None,
    configurations: Sequence[Mapping[str, Value]] | None,
    conditions: Sequence[str],
    default: Mapping[str, Value] | None,
) -> ExternalSpace:
    """Return the space of parameters and conditions, or of configurations; one is given.

    Raises:
        InvalidRequest: conditions come with configurations (SV901).
        InvalidExternalSpace: these make no space (RC610).
    """
    texts = _texts(conditions)
    if default is not None:
        default = _config("default", default)
    if configurations is None:
        given = _mapping("parameters", "a list of values by name", parameters)
        values = {_name(name): _options(name, all_) for name, all_ in given.items()}
        return ExternalSpace(values, texts, default)
    if texts:
        raise InvalidRequest(message="expected conditions with parameters, found configurations")
    if isinstance(configurations, (str, Mapping)) or not isinstance(configurations, Iterable):
        raise _fault("configurations", "a list of configurations", configurations)
    listed = [_config("configuration", one) for one in configurations]
    return ExternalSpace.of_list(listed, default)


def plain_value(found: Any) -> Any:
    """Return a scalar of NumPy as the number or text that it is, and anything else as it is."""
    return found.item() if isinstance(found, np.generic) else found


def _fault(what: str, expected: str, found: object) -> InvalidExternalSpace:
    return InvalidExternalSpace(what=what, expected=expected, found=repr(found)[:200])


def _mapping(what: str, expected: str, found: object) -> Mapping[Any, Any]:
    if not isinstance(found, Mapping):
        raise _fault(what, expected, found)
    return found


def _config(what: str, found: object) -> dict[str, Any]:
    given = _mapping(what, "a value for each parameter", found)
    return {name: plain_value(value) for name, value in given.items()}


def _texts(conditions: object) -> tuple[str, ...]:
    """Return conditions; those of one text would be its letters."""
    if isinstance(conditions, (str, bytes)) or not isinstance(conditions, Iterable):
        raise _fault("conditions", "a list of texts", conditions)
    found = tuple(conditions)
    if not all(isinstance(one, str) for one in found):
        raise _fault("conditions", "a list of texts", conditions)
    return found


def _name(found: object) -> str:
    if not isinstance(found, str):
        raise _fault("parameter", "a text as its name", found)
    return found


def _options(name: str, found: object) -> tuple[Value, ...]:
    """Return the values of a parameter; a text has letters, which nobody means."""
    if isinstance(found, (str, bytes)) or not isinstance(found, Iterable):
        raise _fault(f"values of {name}", "a list of values", found)
    return tuple(plain_value(value) for value in found)


def described(space: ExternalSpace | KernelSpace) -> dict[str, Any]:
    """Return what is stored of a space."""
    if isinstance(space, ExternalSpace):
        listed = None if space.listed is None else [list(c.values()) for c in space.listed]
        return {
            "parameters": [[name, list(values)] for name, values in space.parameters.items()],
            "conditions": list(space.conditions),
            **({} if listed is None else {"configurations": listed}),
            "default": None if space.default is None else dict(space.default),
            "size": len(space),
            **({} if space.sample is None else _sampled(space)),
        }
    found = space.space
    return {
        "kernel": found.definition.name,
        "problem": dict(found.problem),
        "threads": space.threads,
        "hardware": found.hardware.key,
        "parameters": [[knob, list(options)] for knob, options in found.values.items()],
        "default": dict(space.default),
        "size": len(space),
    }


def _sampled(space: ExternalSpace) -> dict[str, Any]:
    assert space.sample is not None
    return {"sampled": len(space.sample), "is_estimate": space.is_estimate}


def rebuilt(store: SqlStore, stored: Mapping[str, Any], key: str) -> StudySpace:
    """Return the space that was stored (an external one without its default).

    Raises:
        StudyOfAnotherVersion: a kernel of the library has other candidates by now (SV934).
    """
    if "kernel" not in stored:
        parameters = {name: tuple(values) for name, values in stored["parameters"]}
        if "configurations" in stored:
            listed = stored["configurations"]
            return ExternalSpace.of_list([dict(zip(parameters, c, strict=True)) for c in listed])
        return ExternalSpace(parameters, tuple(stored["conditions"]))
    hardware = find_hardware(store, stored["hardware"])
    definition = kernels.get(stored["kernel"]).on(hardware.kind)
    space = SearchSpace.build(definition, dict(stored["problem"]), hardware)
    found = KernelSpace(space, int(stored["threads"]), store)
    if found.key != key:
        raise StudyOfAnotherVersion(
            kernel=stored["kernel"], expected=key[:12], found=found.key[:12]
        )
    return found
