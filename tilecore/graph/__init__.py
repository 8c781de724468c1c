"""The fused tile graph: traffic, work and resources of a tile program as closed forms."""

from __future__ import annotations

from tilecore.graph.build import build
from tilecore.graph.closed_form import Bindings, evaluate, free_vars, product, substitute
from tilecore.graph.contraction import Contraction, Operand, sole_contraction
from tilecore.graph.describe import gemm_extents
from tilecore.graph.graph import Launch, TileGraph
from tilecore.graph.nodes import Access, Edge, Loop, TileOp, Work
from tilecore.graph.parameters import parameter_bytes

__all__ = [
    "Access",
    "Bindings",
    "Contraction",
    "Edge",
    "Launch",
    "Loop",
    "Operand",
    "TileGraph",
    "TileOp",
    "Work",
    "build",
    "evaluate",
    "free_vars",
    "gemm_extents",
    "parameter_bytes",
    "product",
    "sole_contraction",
    "substitute",
]
