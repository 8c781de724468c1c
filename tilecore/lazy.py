"""cached_property: functools' own, but without a lock where Python's still takes one (3.11).

For what every answer makes anew: it reads dozens of them for the first time, and the locks took
5 % of its time. Objects that live long may as well have functools'. Two threads that read one at
the same time may compute it twice, as with Python 3.12.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:

    class cached_property:
        """A property that is computed when it is first read and kept in the object."""

        def __init__(self, func: Callable[[Any], Any]) -> None:
            self.func, self.__doc__ = func, func.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            found = instance.__dict__[self._name] = self.func(instance)
            return found


__all__ = ["cached_property"]
