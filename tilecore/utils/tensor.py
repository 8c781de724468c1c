"""``tilelang.utils.tensor``: comparing tensors, and supplying them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tilecore.ir.dtype import DType
from tilecore.ir.expr import as_expr
from tilecore.ir.nodes import Buffer
from tilecore.profiler import TensorSupplyType, supply

__all__ = ["TensorSupplyType", "get_tensor_supply", "is_float8_dtype", "torch_assert_close"]


def is_float8_dtype(dtype: torch.dtype) -> bool:
    """Return whether a torch dtype has eight bits and a fraction."""
    return str(dtype).startswith("torch.float8")


def get_tensor_supply(
    supply_type: TensorSupplyType = TensorSupplyType.Integer, seed: int = 0
) -> Callable[[Any], Any]:
    """Return a function that makes a tensor for anything with a shape and a dtype."""
    rng = np.random.default_rng(seed)
    return lambda param: supply(_as_buffer(param), supply_type, rng)


def _as_buffer(param: Any) -> Buffer:
    if isinstance(param, Buffer):
        return param
    return Buffer("param", tuple(as_expr(extent) for extent in param.shape), DType(param.dtype))


def torch_assert_close(
    tensor_a: torch.Tensor,
    tensor_b: torch.Tensor,
    rtol: float = 1e-2,
    atol: float = 1e-3,
    max_mismatched_ratio: float = 0.001,
    verbose: bool = False,
    equal_nan: bool = True,
    check_dtype: bool = True,
    base_name: str = "LHS",
    ref_name: str = "RHS",
    **options: Any,
) -> bool:
    """Compare two tensors and let a share of the elements differ.

    Args:
        tensor_a: what was found.
        tensor_b: what was expected, of the same shape.
        rtol: relative tolerance.
        atol: absolute tolerance.
        max_mismatched_ratio: share of the elements that may differ by more.
        verbose: print how many differ.
        equal_nan: NaN equals NaN.
        check_dtype: expect the same dtype.
        base_name: name of the first tensor in messages.
        ref_name: name of the second.
        options: checks of device, layout and stride, which CPU tensors always pass.

    Raises:
        AssertionError: the tensors differ.
    """
    _ = options
    if tensor_a.shape != tensor_b.shape:
        raise AssertionError(
            f"expected the shape of {ref_name} {tuple(tensor_b.shape)}, found "
            f"{tuple(tensor_a.shape)} in {base_name}"
        )
    if check_dtype and tensor_a.dtype != tensor_b.dtype:
        raise AssertionError(f"expected {tensor_b.dtype} as in {ref_name}, found {tensor_a.dtype}")
    a, b = tensor_a.double(), tensor_b.double()
    wrong = ~torch.isclose(a, b, rtol=rtol, atol=atol, equal_nan=equal_nan)
    count, allowed = int(wrong.sum()), int(a.numel() * max_mismatched_ratio)
    if verbose:
        print(f"{count} of {a.numel()} elements differ, {allowed} may")
    if count > allowed:
        first = tuple(int(i) for i in wrong.nonzero()[0])
        raise AssertionError(
            f"{count} of {a.numel()} elements of {base_name} and {ref_name} differ by more than "
            f"atol={atol}, rtol={rtol} ({allowed} may); at {first}: expected {b[first].item():.6g},"
            f" found {a[first].item():.6g}"
        )
    return True
