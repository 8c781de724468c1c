"""``tilelang.env``: what programs ask it for and switch with it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class _Environment:
    """Settings by TileLang's names.

    Attributes:
        TILELANG_CACHE_DIR: where programs look for cached kernels.
    """

    TILELANG_CACHE_DIR: str = field(default_factory=lambda: str(Path.home() / ".cache/tilecore"))

    def is_cache_enabled(self) -> bool:
        """Return whether ``@jit`` functions keep kernels."""
        from tilecore import jit

        return jit.is_cache_enabled()

    def enable_cache(self) -> None:
        """Let ``@jit`` functions keep kernels."""
        from tilecore import jit

        jit.enable_cache()

    def disable_cache(self) -> None:
        """Build anew on every call."""
        from tilecore import jit

        jit.disable_cache()


env = _Environment()


def set_log_level(level: str | int) -> None:
    """Let tilecore log from ``level`` on, a name such as "WARNING" or a number of logging."""
    logging.getLogger("tilecore").setLevel(level.upper() if isinstance(level, str) else level)
