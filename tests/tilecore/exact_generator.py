"""Random computations of small integers in every element type, for hypothesis: results are exact.

Nothing is rounded, so that comparisons, conversions and counts of what was computed have one right
answer. Values that an element type does not hold are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import torch
from hypothesis import strategies as st

from tests.tilecore.computation_generator import Drawn

MOST = {
    torch.float32: 2**24, torch.float64: 2**53, torch.float16: 2**11, torch.bfloat16: 2**8,
    torch.int8: 2**7 - 1, torch.uint8: 2**8 - 1, torch.int16: 2**15 - 1, torch.int32: 2**31 - 1,
    torch.int64: 2**53, torch.bool: 1,
}  # fmt: skip
LARGEST_SIZE = 40_000
EXTENTS = (1, 2, 3, 4, 7, 8, 12, 16, 17, 32, 33, 64, 96, 128)
OF_ELEMENTS = (
    "-{x}", "{x}.abs()", "torch.relu({x})", "{x}.sign()", "{x} * 2", "{x} + 1", "3 - {x}",
    "{x} // 2", "{x} % 3", "{x}.clamp(-1, 2)", "{x} > 0", "{x} == 1", "{x} != 0", "{x} <= 1.5",
    "~{x}", "{x}.square()", "torch.where({x} > 0, {x}, 0)", "{x}.masked_fill({x} > 1, 0)",
    "{x}.logical_not()", "{x} & 1", "{x}.to(torch.{dtype})",
    "{x}.to(torch.{dtype})", "{x}.bool()", "{x}.long()", "torch.zeros_like({x}) + {x}",
)  # fmt: skip
OF_TWO = (
    "{x} + {y}", "{x} - {y}", "{x} * {y}", "torch.maximum({x}, {y})", "torch.minimum({x}, {y})",
    "{x} == {y}", "{x} > {y}", "{x} != {y}", "torch.where({x} > {y}, {x}, {y})", "{x} & {y}",
    "{x} | {y}", "{x} ^ {y}", "torch.logical_and({x}, {y})", "torch.where({x} != 0, {y}, 1)",
)  # fmt: skip
FOLDS = (
    "{x}.sum({dim})", "{x}.sum({dim}, keepdim=True)", "{x}.amax({dim})", "{x}.amin({dim})",
    "{x}.any({dim})", "{x}.all({dim})", "{x}.count_nonzero({dim})", "{x}.max({dim}).values",
    "{x}.cumsum({dim})", "{x}.sum()", "{x}.max()", "{x}.any()", "({x} > 0).sum({dim})",
    "{x}.amax({dim}, keepdim=True)", "{x}.sum({dim}, dtype=torch.{dtype})",
    "{x}.float().sum({dim})", "{x}.cummax({dim}).values", "{x}.norm(1, {dim})",
)  # fmt: skip
VIEWS = (
    "{x}.transpose(0, -1)", "{x}.flatten()", "{x}[..., ::2]", "{x}[1:]", "{x}[None]",
    "{x}.unsqueeze({dim})", "{x}.flip({dim})", "{x}.roll(1, {dim})", "{x}.contiguous()",
    "{x}.select({dim}, -1)", "torch.cat([{x}, {x}[:1]])", "torch.stack([{x}, {x}], {dim})",
    "{x}.repeat_interleave(2, {dim})", "{x}.narrow({dim}, 0, 1)", "{x}.movedim(0, -1)",
    "torch.stack([{x}], {dim})", "{x}.diff(dim={dim})", "{x}[torch.arange({rows}) // 2]",
    "torch.tril({x})", "{x}.reshape(-1, 2)",
)  # fmt: skip
PRODUCTS = ("{x} @ {y}.transpose(-1, -2)", "{x} @ {y}", "{x}.transpose(0, 1) @ {y}")
MOST_OF_NUMPY = {
    np.dtype(str(dtype).removeprefix("torch.")): most
    for dtype, most in {**MOST, torch.uint16: 2**16 - 1, torch.uint64: 2**53}.items()
    if dtype is not torch.bfloat16
}
OF_NUMPY = {
    "elements": (
        "-{x}", "np.abs({x})", "np.maximum({x}, 0)", "np.sign({x})", "{x} * 2", "{x} + 1",
        "3 - {x}", "{x} // 2", "{x} % 3", "np.clip({x}, -1, 2)", "{x} > 0", "{x} == 1", "{x} != 0",
        "~{x}", "np.square({x})", "{x} ** 2", "np.where({x} > 0, {x}, 0)", "{x} & 1",
        "{x}.astype(np.dtype('{dtype}'))", "{x}.astype(bool)", "np.zeros_like({x}) + {x}",
        "{x} + np.float32(1)", "{x} * 1.0", "{x} + np.int64(2)", "np.logical_not({x})",
        "np.floor({x})", "np.ones({x}.shape, '{dtype}') + {x}", "np.array({x}, dtype='{dtype}')",
        "np.rint({x})", "np.full({x}.shape, 2) * {x}", "np.where({x} > 0, np.float32(2), {x})",
    ),
    "two": (
        "{x} + {y}", "{x} - {y}", "{x} * {y}", "np.maximum({x}, {y})", "np.minimum({x}, {y})",
        "{x} == {y}", "{x} > {y}", "np.where({x} > {y}, {x}, {y})", "{x} & {y}", "{x} | {y}",
        "{x} ^ {y}", "np.logical_and({x}, {y})", "np.where({x} != 0, {y}, 1)",
        "np.add({x}, {y}, dtype=np.float64)", "np.where({x}, {y}, {x})",
    ),
    "folds": (
        "{x}.sum({dim})", "{x}.sum(axis={dim}, keepdims=True)", "{x}.max({dim})",
        "{x}.min(axis={dim})", "{x}.any({dim})", "{x}.all({dim})",
        "np.count_nonzero({x}, axis={dim})", "np.cumsum({x}, axis={dim})", "{x}.sum()",
        "{x}.max()", "({x} > 0).sum({dim})", "np.sum({x}, axis={dim}, dtype='{dtype}')",
        "np.prod({x}, axis={dim})", "np.ptp({x}, axis={dim})", "{x}.argmax({dim})",
        "np.add.reduce({x}, axis={dim})", "np.maximum.accumulate({x}, axis={dim})",
        "np.linalg.norm({x}, 1, {dim})", "{x}.sum(where={x} > 0)", "np.sort({x}, axis={dim})",
    ),
    "views": (
        "np.swapaxes({x}, 0, -1)", "{x}.ravel()", "{x}[..., ::2]", "{x}[1:]", "{x}[None]",
        "np.expand_dims({x}, {dim})", "np.flip({x}, {dim})", "np.roll({x}, 1, {dim})",
        "np.concatenate([{x}, {x}[:1]])", "np.stack([{x}, {x}], {dim})", "{x}.T",
        "np.repeat({x}, 2, axis={dim})", "np.take({x}, -1, axis={dim})", "np.tril({x})",
        "np.stack([{x}], {dim})", "np.diff({x}, axis={dim})", "{x}[np.arange({rows}) // 2]",
        "{x}.reshape(-1, 2)", "np.squeeze({x})", "np.array([{x}, {x}])", "np.pad({x}, 1)",
        "np.eye({rows}, dtype='{dtype}')[{x}.argmax(0)]", "np.tile({x}, 2)", "{x}.copy()",
        "np.arange({rows})[{x}.argmin(0)]", "np.hstack([{x}, {x}])",
    ),
    "products": ("{x} @ {y}.T", "{x} @ {y}", "{x}.T @ {y}", "np.outer({x}[0], {y}[0])"),
}  # fmt: skip
REFUSALS = (RuntimeError, TypeError, ValueError, IndexError, AttributeError, NotImplementedError)


class ExactWriter:
    """Draws one computation, line by line.

    Attributes:
        kinds: forms of lines, of which folds and products are to be exact on the way.
        names: what lines may call.
    """

    kinds = (OF_ELEMENTS, OF_TWO, OF_TWO, FOLDS, FOLDS, VIEWS, PRODUCTS)
    rounding = (FOLDS, PRODUCTS)
    names: Mapping[str, object] = MappingProxyType({"torch": torch})
    most: Mapping[object, int] = MappingProxyType(MOST)

    def __init__(self, draw: Callable[..., object]) -> None:
        self.draw = draw
        self.generator = torch.Generator().manual_seed(self.number(0, 2**16))
        self.values: list[tuple[str, torch.Tensor]] = []
        self.lines: list[str] = []
        self.drawn = Drawn()
        self.extents = [self.choice(EXTENTS) for _ in range(2)]

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def choice(self, items):
        return self.draw(st.sampled_from(list(items)))

    def input(self) -> None:
        rows, columns = self.extents
        shape = self.choice([(rows, columns), (rows, columns), (columns,), (rows, 1), (2, rows, 4)])
        dtype = self.choice(self.most)
        is_small = str(dtype).removeprefix("torch.") in ("bool", "uint8")
        low, high = (0, 2) if is_small else (-1, 3)
        made = torch.randint(low, high, shape, generator=self.generator)
        if self.choice([False, False, True]):
            made = made.transpose(0, -1).contiguous().transpose(0, -1)
        given = self.converted(made, dtype)
        self.values.append((f"x{len(self.drawn.inputs)}", given))
        self.drawn.inputs.append(given)

    def converted(self, made: torch.Tensor, dtype):
        return made.to(dtype)

    def wide(self, value):
        """Return the sizes of elements in float64."""
        return value.double().abs()

    def step(self) -> None:
        kind = self.choice(self.kinds)
        (name, x), (other, y) = self.choice(self.values), self.choice(self.values)
        form, dim = self.choice(kind), self.number(0, max(x.ndim - 1, 0))
        dtype = str(self.choice(self.most)).removeprefix("torch.")
        rows = x.shape[0] if x.ndim else 1
        text = form.format(x=name, y=other, dim=dim, dtype=dtype, rows=rows)
        try:
            found = eval(text, {**self.names, **dict(self.values)})
            largest = self.wide(found).max()
            if kind in self.rounding:  # no partial sum is rounded, nor wraps around
                wide = form.format(x="x", y="y", dim=dim, dtype="float64", rows=rows)
                sizes = {"x": self.wide(x), "y": self.wide(y)}
                largest = max(largest, eval(wide, {**self.names, **sizes}).max())
        except REFUSALS:
            return
        is_small = 0 < math.prod(found.shape) <= LARGEST_SIZE
        if is_small and found.dtype in self.most and largest <= self.most[found.dtype]:
            self.values.append((f"v{len(self.lines)}", found))
            self.lines.append(f"v{len(self.lines)} = {text}")

    def write(self) -> Drawn:
        for _ in range(self.number(1, 3)):
            self.input()
        for _ in range(self.number(2, 8)):
            self.step()
        made = self.values[len(self.drawn.inputs) :] or self.values
        results = [name for name, _ in made[-self.choice([1, 2, 3]) :]]
        params = ", ".join(f"x{n}" for n in range(len(self.drawn.inputs)))
        body = "\n    ".join(self.lines) or "pass"
        returned = ", ".join(results)
        self.drawn.source = f"def function({params}):\n    {body}\n    return {returned},\n"
        return self.drawn


class NumpyWriter(ExactWriter):
    """Draws one of NumPy's arrays."""

    kinds = (
        OF_NUMPY["elements"], OF_NUMPY["two"], OF_NUMPY["two"], OF_NUMPY["folds"],
        OF_NUMPY["folds"], OF_NUMPY["views"], OF_NUMPY["products"],
    )  # fmt: skip
    rounding = (OF_NUMPY["folds"], OF_NUMPY["products"])
    names = MappingProxyType({"np": np})
    most = MappingProxyType(MOST_OF_NUMPY)

    def converted(self, made: torch.Tensor, dtype):
        return abs(made.numpy()).astype(dtype) if dtype.kind == "u" else made.numpy().astype(dtype)

    def wide(self, value):
        return np.abs(value.astype(np.float64))


@st.composite
def exact_computations(draw: Callable[..., object]) -> Drawn:
    """A computation of small integers."""
    return ExactWriter(draw).write()


@st.composite
def exact_numpy_computations(draw: Callable[..., object]) -> Drawn:
    """A computation of small integers in arrays of NumPy."""
    return NumpyWriter(draw).write()
