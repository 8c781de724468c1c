"""Names of arguments, which may be what programs call something of their own."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import randn

import tilecore
from tests.tilecore.x86_paths import TILES, here
from tilecore.computing.programs.text import RESERVED


def ends(rows: int, groups: int) -> torch.Tensor:
    return torch.arange(1, groups + 1).mul(rows // groups).int()


def rotated(x: Any, c: Any, s: Any) -> Any:
    return x * c + torch.cat([-x[..., 16:], x[..., :16]], -1) * s


def attention(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)


HALVES = (randn(20, 64).bfloat16(), randn(48, 64).bfloat16())
CODES = (torch.randint(-9, 9, (48, 64), dtype=torch.int8), randn(48))
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "product": (lambda x, w, y: F.gelu(x @ w + y), (randn(20, 64), randn(64, 48), randn(48))),
    "products": (lambda x, w: x @ w, (randn(3, 20, 64), randn(3, 64, 48))),
    "transpose": (F.linear, HALVES),
    "codes": (lambda x, w, s: F.linear(x, w.to(x.dtype) * s[:, None]), (randn(20, 64), *CODES)),
    "unpacked": (lambda x, w, s: F.linear(x, w.to(x.dtype) * s[:, None]), (randn(600, 64), *CODES)),
    "gated": (
        lambda x, w, u: F.silu(x @ w) * (x @ u), (randn(20, 64), randn(64, 48), randn(64, 48))
    ),
    "groups": (
        lambda x, w, y: F.grouped_mm(x, w, offs=y),
        (randn(64, 32).bfloat16(), randn(8, 32, 48).bfloat16(), ends(64, 8)),
    ),
    "many groups": (
        lambda x, w, y: F.grouped_mm(x, w, offs=y),
        (randn(160, 32).bfloat16(), randn(80, 32, 48).bfloat16(), ends(160, 80)),
    ),
    "attention": (attention, (*(randn(1, 2, 40, 32) for _ in range(3)), randn(40, 40))),
    "decoding": (attention, (randn(1, 8, 1, 32), randn(1, 2, 600, 32), randn(1, 2, 600, 32))),
    "rows": (lambda x: (x * 2).softmax(-1), (randn(20, 300),)),
    "long rows": (lambda x: (x * 2).softmax(-1), (randn(4, 40000),)),
    "columns": (lambda x: (x * x).sum(0), (randn(200, 300),)),
    "images": (lambda x: x.mean((0, 2, 3)), (randn(4, 8, 9, 9),)),
    "parts": (rotated, (randn(2, 4, 20, 32), randn(20, 32), randn(20, 32))),
    "loss": (F.cross_entropy, (randn(20, 300), torch.randint(0, 300, (20,)))),
    "added": (
        lambda w, x: torch.zeros(9, 32).index_add(0, w, x),
        (torch.randint(0, 9, (30,)), randn(30, 32)),
    ),
    "results": (lambda x, y: (x - y * 0.1, x * 0.9 + y), (randn(20, 300), randn(20, 300))),
    "windows": (lambda x: F.max_pool2d(x * 2, 2), (randn(2, 3, 8, 8),)),
}  # fmt: skip


@pytest.mark.parametrize("target", [here(TILES), "h100"])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.covering("target name")
def test_no_argument_has_a_name_of_its_program(name: str, target: str) -> None:
    function, args = PROGRAMS[name]
    for text in tilecore.compute(function, target=target).programs(*args):
        (program,) = [
            node for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef) and node.name.endswith("_program")
        ]  # fmt: skip
        given = {argument.arg for argument in program.args.args}
        read = {node.id for node in ast.walk(program) if isinstance(node, ast.Name)}
        assert read - given <= set(RESERVED)


def test_arguments_may_be_called_so() -> None:
    x, w = randn(64, 32).bfloat16(), randn(8, 32, 48).bfloat16()
    computation = tilecore.compute(lambda a8, t, e: F.grouped_mm(a8, t, offs=e))
    exact = torch.cat([x[n * 8 : n * 8 + 8].double() @ w[n].double() for n in range(8)])
    error = (computation(x, w, ends(64, 8)).double() - exact).abs().max() / exact.abs().max()
    assert error < 1e-2
