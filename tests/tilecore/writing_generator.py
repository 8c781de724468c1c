"""Random functions of views and of writes to them, for hypothesis: torch runs each line as drawn.

All numbers are small integers, so that results are exact in whichever order they are computed.
Lines that torch refuses are dropped, and those that write to an argument where none is to be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from hypothesis import strategies as st

NAMES = {"torch": torch, "F": F}
VIEWS = (
    "{x}.reshape({flat})", "{x}.view({flat})", "{x}.flatten()", "{x}.contiguous()", "{x}.clone()",
    "{x}.permute({order})", "{x}.transpose(0, -1)", "{x}[{index}]", "{x}[{index}]", "{x}.mT",
    "{x}.unsqueeze({axis})", "{x}.squeeze()", "{x}.chunk(2, {axis})[-1]", "{x}.unbind({axis})[0]",
    "{x}.narrow({axis}, 0, 1)", "{x}.select({axis}, -1)", "{x}.detach()", "{x}.float()", "{x}",
    "{x}.movedim(0, -1)", "{x}.expand(2, *{x}.shape)", "{x}.diagonal(0, 0, -1)",
    "{x}.to(torch.float32)", "F.dropout({x}, 0.5, training=False)", "{x}.reshape({x}.shape[::-1])",
)  # fmt: skip
NEW = (
    "{x} + 1", "{x} - {same}", "{x}.clamp(-3, 4)", "-{x}", "torch.zeros_like({x})",
    "torch.cat([{x}, {same}], {axis})", "torch.stack([{same}, {x}], {axis})",
    "torch.ones({x}.shape)", "torch.full_like({x}, 2.0)", "{x}.sum({axis}, keepdim=True) % 8",
    "{x}.new_zeros({x}.shape)", "torch.where({x} > 0, {x}, {same})", "{x}.flip({axis})",
    "torch.arange(float({x}.numel())).view({x}.shape)",
)  # fmt: skip
WRITES = (
    "{x} += 1", "{x} -= {same}", "{x}.mul_(-1)", "{x}.clamp_(-2, 3)", "{x}.add_({same}, alpha=2)",
    "{x}[{index}] = {number}", "{x}[{index}] = {other}", "{x}[{index}] += 1",
    "{x}[{index}].neg_()", "{x}.copy_({other})", "{x}.copy_({same})", "{x}.fill_({number})",
    "{x}.zero_()", "F.relu({x}, inplace=True)", "{x}[{x} > 1] = {number}",
    "{x}.masked_fill_({same} > 0, {number})", "{x}[[0, -1]] = {number}",
    "{x}[torch.tensor([0])] = {x}[-1:]", "{x}.index_fill_({axis}, torch.tensor([0]), {number})",
    "{x}.index_add_({axis}, torch.arange({x}.shape[{axis}]), {same})", "{x}.unsqueeze_({axis})",
    "{x}.transpose_(0, -1)", "{x}[..., ::2] = {number}", "{x}[..., 1::2] = {x}[..., :1]",
    "{x}[..., : {x}.shape[-1] // 2] = {number}", "{x}[..., {x}.shape[-1] // 2 :] += 2",
    "{x}.T.mul_(2)", "{x}.flatten().add_(3)", "{x}.view(-1)[1:].add_(3)",
)  # fmt: skip


@dataclass
class Writing:
    """A function: its text, arguments for it, what torch returned, and made of the arguments."""

    source: str = ""
    inputs: list[torch.Tensor] = field(default_factory=list)
    results: tuple[torch.Tensor, ...] = ()
    after: list[torch.Tensor] = field(default_factory=list)

    def __repr__(self) -> str:
        given = ", ".join(f"{list(x.shape)}{x.stride()}" for x in self.inputs)
        return f"inputs: {given}\n{self.source}"


class Writer:
    """Draws one function, line by line."""

    def __init__(self, draw: Callable[..., object], writes_arguments: bool) -> None:
        self.draw, self.writes_arguments = draw, writes_arguments
        self.values: dict[str, torch.Tensor] = {}
        self.lines: list[str] = []
        self.given: list[torch.Tensor] = []

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def choice(self, items):
        return self.draw(st.sampled_from(list(items)))

    def index(self, shape: tuple[int, ...]) -> str:
        parts = []
        for extent in shape[: self.number(1, len(shape))]:
            first = self.number(0, extent - 1)
            parts.append(self.choice([
                ":", f"{first}:", f"{first}:{extent}", f": {first + 1}", "::2", str(first),
                "None, :", "-1",
            ]))  # fmt: skip
        return ", ".join(parts)

    def filled(self, form: str, name: str) -> str:
        """Return a line with names and numbers in its places."""
        x = self.values[name]
        same = [n for n, v in self.values.items() if v.shape == x.shape and v.dtype == x.dtype]
        order = self.draw(st.permutations(range(x.ndim)))
        rows = self.choice([n for n in range(1, x.numel() + 1) if x.numel() % n == 0])
        return form.format(
            x=name, same=self.choice(same), other=self.choice(self.values), order=tuple(order),
            axis=self.number(0, max(x.ndim - 1, 0)), index=self.index(tuple(x.shape) or (1,)),
            number=float(self.number(-4, 4)), flat=self.choice([-1, f"{rows}, -1"]),
        )  # fmt: skip

    def is_given(self, x: torch.Tensor) -> bool:
        """Return whether an argument has the memory of a tensor."""
        memory = x.untyped_storage().data_ptr()
        return any(memory == g.untyped_storage().data_ptr() for g in self.given)

    def line(self) -> None:
        kind = self.choice([WRITES, VIEWS, WRITES, NEW, VIEWS])
        known = list(self.values)
        if kind is WRITES and not self.writes_arguments:
            known = [n for n in known if not self.is_given(self.values[n])]
        last = known[:2] if self.writes_arguments and self.number(0, 2) == 0 else known[-5:]
        name = self.choice(last)
        text, made = self.filled(self.choice(kind), name), f"v{len(self.values)}"
        text = text if kind is WRITES else f"{made} = {text}"
        before = {n: v.clone() for n, v in self.values.items()}
        known = dict(self.values)
        try:
            exec(text, dict(NAMES), known)
        except (RuntimeError, IndexError, TypeError, ValueError):
            for n, v in self.values.items():
                if v.shape == before[n].shape:
                    v.copy_(before[n]) if not torch.equal(v, before[n]) else None
            return
        new = known[made] if kind is not WRITES else known[name]
        is_kept = 0 < new.numel() <= 400 and new.ndim <= 4 and new.dtype == torch.float32
        if kind is not WRITES and not is_kept:
            return
        self.values = {n: v for n, v in known.items() if n[0] in "vx"}
        self.lines.append(f"    {text}")

    def write(self) -> Writing:
        random = torch.Generator().manual_seed(self.number(0, 2**16))
        shape = [self.choice([3, 4, 2, 1]) for _ in range(self.choice([2, 3, 1]))]
        for at in range(2):
            x = torch.randint(-4, 5, shape, generator=random).float()
            if self.number(0, 2) == 0:
                x = (
                    x.permute(*reversed(range(x.ndim)))
                    .contiguous()
                    .permute(*reversed(range(x.ndim)))
                )
            self.values[f"x{at}"] = x
        self.given = list(self.values.values())
        inputs = [x.clone() for x in self.given]
        for text in ("v2 = x0 + 1", "v3 = x1 - x0"):
            exec(text, dict(NAMES), self.values)
            self.lines.append(f"    {text}")
        for _ in range(self.number(3, 12)):
            self.line()
        last = list(self.values)[2:]
        names = [last[-1], *(n for n in last[:-1] if self.number(0, 1))] if last else ["x0"]
        if self.writes_arguments and self.number(0, 3) == 0:
            names.append("x0")
        source = "\n".join(
            ["def function(x0, x1):", *self.lines, f"    return {', '.join(names)},"]
        )
        results = tuple(self.values[n].clone() for n in names)
        return Writing(source, inputs, results, [x.clone() for x in self.given])


@st.composite
def writings(draw, writes_arguments: bool = False) -> Writing:
    """Functions of up to twelve lines over tensors of up to 400 small integers."""
    return Writer(draw, writes_arguments).write()
