"""``tilelang.carver.template``: importable, and a clear error when used."""

from __future__ import annotations

from typing import Any

from tilecore.errors import UnsupportedOnTarget


class MatmulTemplate:
    """TileLang's template of GEMM configs for a live GPU."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise UnsupportedOnTarget(
            what="a template of tilelang.carver",
            target="llvm",
            reason="configs are proposed by `tilecore recommend` for any program",
        )


GEMVTemplate = ElementwiseTemplate = GeneralReductionTemplate = FlashAttentionTemplate = (
    ConvTemplate
) = MatmulTemplate
