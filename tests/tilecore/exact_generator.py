"""Random computations of small integers in every element type, for hypothesis: results are exact.

Nothing is rounded, so that comparisons, conversions and counts of what was computed have one right
answer. Values that an element type does not hold are dropped.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import strategies as st

from tests.tilecore.computation_generator import Drawn, Value

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
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
REFUSALS = (RuntimeError, TypeError, IndexError, NotImplementedError)


class ExactWriter:
    """Draws one computation, line by line."""

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
        dtype = self.choice(MOST)
        low, high = (0, 2) if dtype in (torch.bool, torch.uint8) else (-1, 3)
        made = torch.randint(low, high, shape, generator=self.generator).to(dtype)
        if self.choice([False, False, True]):
            made = made.transpose(0, -1).contiguous().transpose(0, -1)
        self.values.append((f"x{len(self.drawn.inputs)}", made))
        self.drawn.inputs.append(made)

    def step(self) -> None:
        kind = self.choice([OF_ELEMENTS, OF_TWO, OF_TWO, FOLDS, FOLDS, VIEWS, PRODUCTS])
        (name, x), (other, y) = self.choice(self.values), self.choice(self.values)
        form, dim = self.choice(kind), self.number(0, max(x.ndim - 1, 0))
        dtype = str(self.choice(MOST)).removeprefix("torch.")
        rows = x.shape[0] if x.ndim else 1
        text = form.format(x=name, y=other, dim=dim, dtype=dtype, rows=rows)
        try:
            found = eval(text, {"torch": torch, **dict(self.values)})
            most = found.abs().max() if found.dtype in INTEGERS else found.double().abs().max()
            if kind in (FOLDS, PRODUCTS):  # no partial sum is rounded, nor wraps around
                wide = form.format(x="x", y="y", dim=dim, dtype="float64", rows=rows)
                sizes = {"x": x.double().abs(), "y": y.double().abs()}
                most = max(most, eval(wide, {"torch": torch, **sizes}).max())
        except REFUSALS:
            return
        is_small = 0 < found.numel() <= LARGEST_SIZE
        if is_small and found.dtype in MOST and most <= MOST[found.dtype]:
            self.values.append((f"v{len(self.lines)}", found))
            self.lines.append(f"v{len(self.lines)} = {text}")

    def write(self) -> Drawn:
        for _ in range(self.number(1, 3)):
            self.input()
        for _ in range(self.number(2, 8)):
            self.step()
        made = self.values[len(self.drawn.inputs) :] or self.values
        for name, value in made[-self.choice([1, 2, 3]) :]:
            exact = value.double()
            self.drawn.results.append(Value(name, value, torch.zeros_like(exact), value.dtype))
        params = ", ".join(f"x{n}" for n in range(len(self.drawn.inputs)))
        body = "\n    ".join(self.lines) or "pass"
        returned = ", ".join(value.name for value in self.drawn.results)
        self.drawn.source = f"def function({params}):\n    {body}\n    return {returned},\n"
        return self.drawn


@st.composite
def exact_computations(draw: Callable[..., object]) -> Drawn:
    """A computation of small integers."""
    return ExactWriter(draw).write()
