"""What torch does for a function that is read goes through these first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tilecore.computing.calls import Impure, results


class Mode(TorchDispatchMode):  # type: ignore[misc]
    """A mode that torch's compiler is not kept off: torch would import it for that, in 0.8 s.

    Nothing that it compiles runs in these modes.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def written(function: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the tensors that an operation of torch writes to."""
    for at, argument in enumerate(function._schema.arguments):
        value: Any = args[at] if at < len(args) else named.get(argument.name)
        writes = argument.alias_info is not None and argument.alias_info.is_write
        if writes:
            yield from results(value)


def draws(function: Any, args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Return whether an operation of torch draws random numbers: none for a dropout of nothing."""
    if torch.Tag.nondeterministic_seeded not in function.tags:
        return False
    known = {a.name: a.default_value for a in function._schema.arguments}
    known |= {**dict(zip(known, args, strict=False)), **named}
    return bool(known.get("dropout_p", 1.0))


class Pure(Mode):
    """Refuses to change some tensors, and to draw numbers."""

    def __init__(self, given: Sequence[Any]) -> None:
        super().__init__()
        self._kept = {t.untyped_storage()._cdata for t in given}
        self._views: list[Any] = []  # of those, in other memory where tensors are fakes of them

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        _ = types
        named = kwargs or {}
        if draws(function, args, named):
            raise Impure("functions that draw no random numbers")
        if any(map(self._keeps, written(function, args, named))):
            raise Impure("operations that return new tensors")
        found = function(*args, **named)
        if function.is_view and self._keeps(args[0]):
            self._views.extend(results(found))
            self._kept.update(t.untyped_storage()._cdata for t in self._views)
        return found

    def _keeps(self, tensor: Any) -> bool:
        return tensor.untyped_storage()._cdata in self._kept
