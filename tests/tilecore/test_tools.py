"""Work and traffic of programs, pictures of layouts."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import tilecore.language as T
from tilecore import kernels
from tilecore.errors import TypeMismatch
from tilecore.ir.layout import panels, row_major
from tilecore.profiler import TensorSupplyType
from tilecore.tools import Analyzer, plot_layout


def test_a_gemm_is_analysed() -> None:
    gemm = kernels.get("gemm")
    problem = gemm.parse_problem({"m": 256, "n": 384, "k": 512})
    knobs = {**gemm.default_config(), "block_M": 128, "block_N": 128, "block_K": 32}
    found = Analyzer.analysis(gemm.program(problem, knobs))
    assert found.total_flops == 2 * 256 * 384 * 512
    # Every block row reads all of B, every block column all of A.
    assert found.read_bytes == 4 * (256 * 512 * 3 + 512 * 384 * 2)
    assert found.write_bytes == 4 * 256 * 384
    assert found.total_global_bytes == found.read_bytes + found.write_bytes


def test_dynamic_shapes_and_other_things_are_refused() -> None:
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 8)) as b:
            s = T.alloc_shared((8,), "float32")
            T.copy(A[b * 8], s)
            T.copy(s, A[b * 8])

    with pytest.raises(TypeMismatch, match="static shapes"):
        Analyzer.analysis(main)
    with pytest.raises(TypeMismatch, match="a program"):
        Analyzer.analysis(lambda: None)


def test_a_picture_shows_every_offset(tmp_path: Path) -> None:
    layout = panels((4, 12), 1, 8)
    path = plot_layout(layout, tmp_path / "pictures", "b")
    assert path == tmp_path / "pictures" / "b.svg"
    root = ET.parse(path).getroot()
    texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert len(list(root.iter("{http://www.w3.org/2000/svg}rect"))) == 48
    assert texts[-48:] == [str(o) for o in layout.table.ravel()]
    assert layout.describe() in (texts[0] or "")
    with pytest.raises(TypeMismatch, match="at most 4096"):
        plot_layout(row_major((100, 100)), tmp_path)
    with pytest.raises(TypeMismatch, match="a layout"):
        plot_layout([1, 2], tmp_path)


def test_a_tensor_for_anything_with_a_shape_and_a_dtype() -> None:
    from types import SimpleNamespace

    import torch

    from tilecore.utils.tensor import get_tensor_supply

    made = get_tensor_supply(TensorSupplyType.One)(SimpleNamespace(shape=(4, 8), dtype="int8"))
    assert torch.equal(made, torch.ones(4, 8, dtype=torch.int8))


@pytest.mark.parametrize(
    ("kind", "mean", "deviation", "largest"),
    [("Auto", 0, 3**-0.5, 1), ("Uniform", 0, 3**-0.5, 1), ("Normal", -1, 1, 7), ("Randn", 0, 1, 6)],
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_supplied_floats_have_the_distributions_of_tilelang(
    kind: str, mean: float, deviation: float, largest: float, dtype: str
) -> None:
    """Its tests of products with sums in float16 hold for these inputs only."""
    from types import SimpleNamespace

    from tilecore.utils.tensor import get_tensor_supply

    made = get_tensor_supply(TensorSupplyType[kind])(SimpleNamespace(shape=(300, 200), dtype=dtype))
    assert abs(made.double().mean().item() - mean) < 0.03
    assert abs(made.double().std().item() - deviation) < 0.03
    assert made.double().abs().max().item() <= largest
