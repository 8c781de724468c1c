"""Random computations for hypothesis: functions of torch, their inputs, and how exact results are.

A computation is written line by line. Beside every value stands what it is in float64 and, for
each of its elements, the largest error that rounding may have brought about: first-order, with one
rounding to the element type after every function. Values that such errors could spoil are dropped,
and nothing is compared that was computed: a last bit would decide.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from hypothesis import strategies as st

EPSILON = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
TINY = {torch.float32: 1e-30, torch.float16: 2.0**-24, torch.bfloat16: 1e-30}
DTYPES = tuple(EPSILON)
LARGEST, LARGEST_SIZE = 500.0, 20_000
MOST_ERROR = 0.05  # of the largest element
FLOAT32 = EPSILON[torch.float32]
FLOAT32_OPERANDS = 0.0  # what products cut off theirs, of their size: 2**-10 of TF32, on GPUs
UNARY = (  # with the largest element that they take
    ("-{}", 1e3), ("{}.abs()", 1e3), ("torch.relu({})", 1e3), ("{}.tanh()", 1e3),
    ("torch.sigmoid({})", 1e3), ("{}.erf()", 1e3), ("torch.sin({})", 30), ("{}.cos()", 30),
    ("torch.exp({})", 4), ("{}.exp2()", 5), ("({}.abs() + 0.5).sqrt()", 1e3),
    ("torch.log({}.abs() + 0.5)", 1e3), ("({} * {} + 0.25).log2()", 20),
    ("torch.rsqrt({}.square() + 0.5)", 20), ("({}.abs() + 1).reciprocal()", 1e3),
    ("F.silu({})", 1e3), ("F.gelu({})", 1e3), ("F.gelu({}, approximate='tanh')", 8),
    ("{}.clamp(-1, 0.75)", 1e3), ("{} * 0.5 - 1.25", 1e3), ("1 - {} / 3", 1e3),
    ("2 / ({}.abs() + 1)", 1e3), ("{} ** 2", 20), ("{} ** 3", 6), ("({}.abs() + 0.5) ** -0.5", 1e3),
    ("({}.abs() + 1) ** 1.25", 60),
)  # fmt: skip
BINARY = (
    "{} + {}", "{} - {}", "{} * {}", "torch.maximum({}, {})", "torch.minimum({}, {})",
    "{} / ({}.abs() + 0.5)",
)  # fmt: skip


@dataclass
class Value:
    """A tensor of a computation: exact elements, and the errors that they may have."""

    name: str
    exact: torch.Tensor
    error: torch.Tensor
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.exact.shape)

    @property
    def largest(self) -> float:
        return float(self.exact.abs().max())


@dataclass
class Drawn:
    """A computation: its text, tensors for it, exact results and the errors allowed."""

    source: str = ""
    inputs: list[torch.Tensor] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)

    def __repr__(self) -> str:
        strides = [x.stride() if isinstance(x, torch.Tensor) else x.strides for x in self.inputs]
        pairs = zip(self.inputs, strides, strict=True)
        given = ", ".join(f"{x.dtype}{list(x.shape)}{steps}" for x, steps in pairs)
        return f"inputs: {given}\n{self.source}"


def exactly(text: str, **values: torch.Tensor) -> torch.Tensor:
    """Return what an expression gives without its conversions."""
    plain = re.sub(r"\.to\(torch\.\w+\)|, dtype=torch\.\w+", "", text)
    return eval(plain, {"torch": torch, "F": F, "math": math, **values})


class Writer:
    """Draws one computation, line by line."""

    def __init__(self, draw: Callable[..., object]) -> None:
        self.draw = draw
        self.drawn = Drawn()
        self.lines: list[str] = []
        self.values: list[Value] = []
        self.names: list[str] = []
        self.random = torch.Generator().manual_seed(self.number(0, 2**16))

    # --- drawing ------------------------------------------------------------------------------

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def choice(self, items):
        return self.draw(st.sampled_from(list(items)))

    def some(self) -> Value:
        return self.choice(self.values[-3:])

    def fits(self, fits: Callable[[Value], bool]) -> Value | None:
        found = [v for v in self.values[-8:] if fits(v)]
        return self.choice(found) if found else None

    # --- values -------------------------------------------------------------------------------

    def input(self, shape: tuple[int, ...], dtype: torch.dtype, scale: float = 1.0) -> Value:
        """Return a new input, which may be a view of a larger tensor."""
        lying = self.choice(["whole", "whole", "turned", "part"]) if shape else "whole"
        made = (shape[::-1] if lying == "turned" else (*shape[:-1], shape[-1] + 3)) if shape else ()
        made = shape if lying == "whole" else made
        tensor = (torch.rand(made, generator=self.random) * 4 - 2).mul(scale).to(dtype)
        if lying == "turned":
            tensor = tensor.permute(*reversed(range(len(shape))))
        elif lying == "part":
            tensor = tensor[..., 2:-1]
        name = f"x{len(self.names)}"
        self.names.append(name)
        self.drawn.inputs.append(tensor)
        exact = tensor.double().contiguous()
        return Value(name, exact, torch.zeros_like(exact), dtype)

    def keep(
        self, text: str, exact: torch.Tensor, error: torch.Tensor, dtype: torch.dtype
    ) -> Value | None:
        """Write a line and keep its value, if errors leave something of it; else None."""
        rounded = error + EPSILON[dtype] * exact.abs() + TINY[dtype]
        return self.store(text, exact, rounded, dtype)

    def store(
        self, text: str, exact: torch.Tensor, error: torch.Tensor, dtype: torch.dtype
    ) -> Value | None:
        largest = float(exact.abs().max())
        if exact.numel() > LARGEST_SIZE or not torch.isfinite(exact).all():
            return None
        if not largest < LARGEST or not float(error.max()) <= MOST_ERROR * max(largest, 1e-3):
            return None
        name = f"v{len(self.lines)}"
        self.lines.append(f"    {name} = {text}")
        self.values.append(Value(name, exact, error, dtype))
        return self.values[-1]

    def pointwise(self, text: str, args: list[Value], dtype: torch.dtype) -> Value | None:
        """Write a function of elements; its derivatives tell how it passes errors on."""
        names = [a.name for a in args]
        exact = exactly(text, **{a.name: a.exact for a in args})
        error = torch.zeros_like(exact)
        for place, arg in enumerate(args):
            if not arg.error.any():
                continue
            steep = torch.zeros(exact.shape, dtype=torch.float64)
            for shift in (-1.0, 0.0, 1.0):
                points = [a.exact for a in args]
                whole = (points[place] + shift * arg.error).expand(exact.shape)
                points[place] = whole.clone().requires_grad_()
                with torch.enable_grad():
                    out = exactly(text, **dict(zip(names, points, strict=True)))
                    (slope,) = torch.autograd.grad(out.sum(), points[place])
                steep = torch.maximum(steep, slope.abs())
            error = error + steep * arg.error
        inner = sum(a.exact.abs() + 1 for a in args)  # what is rounded on the way
        return self.keep(text, exact, error * 1.5 + 4 * EPSILON[dtype] * inner, dtype)

    # --- statements ---------------------------------------------------------------------------

    def unary(self) -> None:
        x = self.some()
        form, limit = self.choice(UNARY)
        if x.largest <= limit:
            self.pointwise(form.format(x.name, x.name), [x], x.dtype)

    def binary(self) -> None:
        x = self.some()
        y = self.partner(x)
        if self.number(0, 1):
            x, y = y, x
        self.pointwise(self.choice(BINARY).format(x.name, y.name), [x, y], promoted(x, y))

    def partner(self, x: Value) -> Value:
        """Return a value that broadcasts with another: one that is there, or a new input."""
        found = self.fits(lambda v: broadcasts(v.shape, x.shape) and v is not x)
        if found is not None and self.number(0, 2):
            return found
        shape = [self.choice([n, n, 1]) for n in x.shape]
        return self.input(tuple(shape[self.number(0, len(shape)) :]), self.choice(DTYPES))

    def where(self) -> None:
        """Choose by the elements of an input, which are exact."""
        x = self.some()
        y = self.partner(x)
        mask = self.partner(x) if self.number(0, 1) else x
        if mask.error.any():
            mask = self.input(x.shape, self.choice(DTYPES))
        condition = f"{mask.name} {self.choice(['>', '<=', '!='])} 0.25"
        if not broadcasts(mask.shape, y.shape):
            return
        if self.number(0, 1):
            self.pointwise(f"torch.where({condition}, {x.name}, {y.name})", [x, y, mask],
                           promoted(x, y))  # fmt: skip
        else:
            self.pointwise(f"torch.where({condition}, {x.name}, -0.5)", [x, mask], x.dtype)

    def convert(self) -> None:
        x, dtype = self.some(), self.choice(DTYPES)
        if dtype == x.dtype:
            return
        self.keep(f"{x.name}.to({dtype})", x.exact, x.error, dtype)

    def reduce(self) -> None:
        x = self.some()
        rank = len(x.shape)
        if rank == 0:
            return
        op, keepdim = self.choice(["sum", "mean", "amax", "amin"]), self.choice([True, False])
        axes = sorted({self.number(0, rank - 1) for _ in range(self.number(1, 2))})
        signed = [a - rank if self.number(0, 1) else a for a in axes]
        dim = signed[0] if len(signed) == 1 else tuple(signed)
        text = f"{x.name}.{op}({dim}, keepdim={keepdim})"
        if op in ("sum", "mean") and self.number(0, 3) == 0:
            axes, keepdim, text = list(range(rank)), False, f"{x.name}.{op}()"
        if op in ("sum", "mean"):
            count = math.prod(x.shape[a] for a in axes)
            total = (x.error + min(count, 64) * FLOAT32 * x.exact.abs()).sum(axes, keepdim)
            error = total / count if op == "mean" else total
        else:
            error = x.error.amax(axes, keepdim)
        self.keep(text, exactly(text, **{x.name: x.exact}), error, x.dtype)

    def softmax(self) -> None:
        x = self.some()
        if not x.shape:
            return
        dim, is_log = self.number(-len(x.shape), len(x.shape) - 1), self.number(0, 1)
        name = "F.log_softmax" if is_log else "torch.softmax"
        text = f"{name}({x.name}, dim={dim})"
        exact, weights = exactly(text, **{x.name: x.exact}), torch.softmax(x.exact, dim)
        below = x.error + FLOAT32 * 4 * (x.exact.abs() + x.exact.abs().amax(dim, keepdim=True))
        step = EPSILON[x.dtype] * (1 + (x.exact.abs() if is_log else 0))  # of rounded steps
        shared = ((below + step) * weights).sum(dim, keepdim=True) + step
        error = (below + shared) * 1.5 * (1 if is_log else exact)
        self.keep(text, exact, error, x.dtype)

    def norm(self) -> None:
        x = self.some()
        if not x.shape or x.largest > 100:
            return
        count = self.number(1, min(2, len(x.shape)))
        shape = x.shape[-count:]
        axes, w = list(range(-count, 0)), self.input(shape, x.dtype)
        if self.number(0, 1):
            text = f"F.rms_norm({x.name}, {shape}, {w.name}, 1e-3)"
            centred, spread = x.exact, x.error
        else:
            text = f"F.layer_norm({x.name}, {shape}, {w.name}, None, 1e-3)"
            centred = x.exact - x.exact.mean(axes, keepdim=True)
            spread = x.error + x.error.mean(axes, keepdim=True)
        step = EPSILON[x.dtype] * 2
        spread = spread + step * x.exact.abs().amax(axes, keepdim=True)
        scale = torch.rsqrt((centred * centred).mean(axes, keepdim=True) + 1e-3)
        bent = scale**3 * (centred.abs() * (spread + step * centred.abs())).mean(axes, keepdim=True)
        error = w.exact.abs() * (scale * spread + centred.abs() * bent) * 1.5
        exact = exactly(text, **{x.name: x.exact, w.name: w.exact})
        self.keep(text, exact, error + 2 * step * exact.abs(), x.dtype)

    def view(self) -> None:
        x = self.some()
        rank = len(x.shape)
        kind = self.choice(["reshape", "permute", "transpose", "slice", "chunk", "unsqueeze"])
        if kind == "unsqueeze" and rank < 5:
            text = f"{x.name}.unsqueeze({self.number(-rank - 1, rank)})"
        elif kind == "reshape" or rank == 0:
            text = f"{x.name}.reshape({self.split_up(x.exact.numel())})"
        elif kind == "permute":
            text = f"{x.name}.permute({self.draw(st.permutations(range(rank)))})"
        elif kind == "transpose":
            a, b = self.number(-rank, rank - 1), self.number(-rank, rank - 1)
            text = f"{x.name}.transpose({a}, {b})"
        elif kind == "chunk":
            dim = self.number(-rank, rank - 1)
            chunks = self.number(1, min(3, x.shape[dim]))
            part = self.number(0, -(-x.shape[dim] // -(-x.shape[dim] // chunks)) - 1)
            text = f"{x.name}.chunk({chunks}, {dim})[{part}]"
        else:
            text = f"{x.name}[{', '.join(self.index(n) for n in x.shape)}]"
        exact = exactly(text, **{x.name: x.exact})
        self.store(text, exact, exactly(text, **{x.name: x.error}), x.dtype)

    def join(self) -> None:
        """Join a value with others of its shape, or of another extent along the axis."""
        x = self.some()
        rank = len(x.shape)
        if rank == 0:
            return
        is_new = self.number(0, 1)
        axis = self.number(0, rank - 1 + is_new)
        parts = [x]
        for _ in range(self.number(1, 2)):
            shape = list(x.shape)
            if not is_new and self.number(0, 3) == 0:
                shape[axis] = self.number(1, 5)
            known = self.fits(lambda v, s=tuple(shape): (v.shape, v.dtype) == (s, x.dtype))
            parts.insert(self.number(0, 1), known or self.input(tuple(shape), x.dtype))
        given = axis - rank - is_new if self.number(0, 1) else axis
        name = "torch.stack" if is_new else "torch.cat"
        text = f"{name}([{', '.join(p.name for p in parts)}], {given})"
        exact = exactly(text, **{p.name: p.exact for p in parts})
        self.store(text, exact, exactly(text, **{p.name: p.error for p in parts}), x.dtype)

    def integers(
        self, shape: tuple[int, ...], lowest: int, highest: int
    ) -> tuple[str, torch.Tensor]:  # fmt: skip
        """Return the name of a new input of integers, and what it is."""
        name, dtype = f"x{len(self.names)}", self.choice([torch.int64, torch.int32])
        found = torch.randint(lowest, highest, shape, generator=self.random, dtype=dtype)
        self.names.append(name)
        self.drawn.inputs.append(found)
        return name, found

    def named(self) -> None:
        """Take parts along an axis which integers name."""
        x = self.some()
        if not x.shape:
            return
        axis, is_plain = self.number(0, max(len(x.shape) - 2, 0)), self.number(0, 1)
        shape = tuple(self.number(1, 9) for _ in range(1 if is_plain else self.number(1, 2)))
        extent = x.shape[axis]
        name, integers = self.integers(shape, 0 if is_plain else -extent, extent)
        text = f"{x.name}[{':, ' * axis}{name}]"
        if is_plain:
            text = f"{x.name}.index_select({axis}, {name})"
        values = {name: integers}
        exact = exactly(text, **{x.name: x.exact}, **values)
        self.store(text, exact, exactly(text, **{x.name: x.error}, **values), x.dtype)

    def added(self) -> None:
        """Add rows up where integers say."""
        x = self.some()
        if not x.shape:
            return
        count = self.number(1, 12)
        name, integers = self.integers(x.shape[:1], 0, count)
        shape = (count, *x.shape[1:])
        zeros = f"torch.zeros({shape}, dtype={x.dtype}, device={x.name}.device)"
        text = f"{zeros}.index_add(0, {name}, {x.name})"
        exact, error = (
            torch.zeros(shape, dtype=torch.float64).index_add(0, integers, of)
            for of in (x.exact, x.error + 64 * EPSILON[x.dtype] * x.exact.abs())
        )
        self.keep(text, exact, error, x.dtype)

    def split_up(self, size: int) -> tuple[int, ...]:
        """Return extents of a product."""
        shape: list[int] = []
        while size > 1 and len(shape) < 3:
            part = self.choice([n for n in range(1, size + 1) if size % n == 0])
            shape.append(part)
            size //= part
        return (*shape, size)

    def index(self, extent: int) -> str:
        first = self.number(0, extent - 1)
        last = self.number(first + 1, extent)
        return self.choice([
            ":", ":", f"{first}:{last}", f"{first}:{last}", str(first), f"None, {first}:",
            f"{first}::{self.number(2, 3)}", f"{first - extent}:",
        ])  # fmt: skip

    def product(self) -> None:
        x = self.some()
        if not x.shape:
            return
        k, n = x.shape[-1], self.number(1, 40)
        other = self.fits(lambda v: v.dtype == x.dtype and len(v.shape) == 2 and v.shape[1] == k)
        lead = x.shape[:-2] if self.number(0, 2) == 0 else ()
        kind = self.choice(["plain", "turned", "linear", "vector", "left"])
        scale = 1 / math.sqrt(k)
        if kind in ("turned", "linear"):
            w = other or self.input((n, k), x.dtype, scale)
            form = "{} @ {}.mT" if kind == "turned" else "F.linear({}, {})"
            right = w.exact.mT, w.error.mT
        else:
            shape = {"vector": (k,), "plain": (*lead, k, n), "left": (*lead, k, n)}[kind]
            w = self.input(shape, x.dtype, scale)
            form, right = "torch.matmul({}, {})", (w.exact, w.error)
        left = x.exact, x.error
        text = form.format(x.name, w.name)
        if kind == "left" and len(x.shape) >= 2:
            m = x.shape[-2]
            w = self.input((self.number(1, 30), m), x.dtype, 1 / math.sqrt(m))
            left, right, text = (w.exact, w.error), left, f"{w.name} @ {x.name}"
        self.multiplied(text, left, right, x.dtype)

    def multiplied(self, text, left, right, dtype) -> Value | None:
        (a, wrong_a), (b, wrong_b) = left, right
        size, summed = a.abs() @ b.abs(), min(a.shape[-1], 64)
        cut = summed * FLOAT32 + operands_cut(dtype)
        error = wrong_a @ b.abs() + a.abs() @ wrong_b + wrong_a @ wrong_b + cut * size
        return self.keep(text, a @ b, error, dtype)

    def einsum(self) -> None:
        x = self.fits(lambda v: len(v.shape) == 3)
        if x is None:
            return
        a, b, c = x.shape
        equation, shape = self.choice([
            ("abc,ce->aeb", (c, 7)), ("abc,ace->abe", (a, c, 5)), ("abc,bce->bae", (b, c, 6)),
            ("abc,ec->eab", (9, c)), ("abc,eac->eb", (5, a, c)),
        ])  # fmt: skip
        w = self.input(shape, x.dtype, 0.3)
        text = f"torch.einsum('{equation}', {x.name}, {w.name})"

        def of(p, q):
            return torch.einsum(equation, p, q)

        size = of(x.exact.abs(), w.exact.abs())
        error = of(x.error, w.exact.abs()) + (64 * FLOAT32 + operands_cut(x.dtype)) * size
        self.keep(text, of(x.exact, w.exact), error, x.dtype)

    def attention(self) -> None:
        """Write attention, by hand or by name, whose queries are a value."""
        q = self.fits(lambda v: len(v.shape) in (3, 4) and v.largest < 20)
        if q is None:
            return
        *lead, queries, depth = q.shape
        keys, width = self.number(1, 50), self.choice([depth, 8])
        k = self.input((*lead, keys, depth), q.dtype, 1 / math.sqrt(depth))
        v = self.input((*lead, keys, width), q.dtype)
        is_causal, mask, scale = False, None, 1 / math.sqrt(depth)
        if self.number(0, 1):
            is_causal = bool(self.number(0, 1))
            text = f"F.scaled_dot_product_attention({q.name}, {k.name}, {v.name}"
            text += f", is_causal={is_causal})"
        else:
            mask, scale = self.input(self.choice([(keys,), (queries, keys)]), q.dtype), 0.25
            text = f"({q.name} @ {k.name}.mT * 0.25 + {mask.name}).softmax(-1) @ {v.name}"
        size = q.exact.abs() @ k.exact.mT.abs()
        cut = 64 * FLOAT32 + operands_cut(q.dtype)
        wrong = q.error @ k.exact.mT.abs() + cut * size
        wrong = scale * wrong + EPSILON[q.dtype] * (scale * size + 4)  # scores may be rounded
        scores = q.exact @ k.exact.mT * scale
        if mask is not None:
            scores = scores + mask.exact
        if is_causal:
            seen = torch.ones(queries, keys, dtype=torch.bool).tril()
            scores, wrong = scores.masked_fill(~seen, -math.inf), wrong * seen
        weights = scores.softmax(-1)
        drift = weights * (wrong + (weights * wrong).sum(-1, keepdim=True) + EPSILON[q.dtype])
        drift = drift * 2 + cut * weights
        self.keep(text, weights @ v.exact, drift @ v.exact.abs(), q.dtype)

    def write(self) -> Drawn:
        statements = [
            self.unary, self.unary, self.binary, self.binary, self.where, self.convert, self.reduce,
            self.softmax, self.norm, self.view, self.view, self.view, self.product, self.product,
            self.attention, self.einsum, self.join, self.join, self.named, self.named, self.added,
        ]  # fmt: skip
        shape = [self.number(1, 33) for _ in range(self.choice([1, 2, 2, 3, 3, 4]))]
        while math.prod(shape) > LARGEST_SIZE / 4:
            shape[0 if shape[0] > 1 else 1] = 1 + self.number(0, 2) % 3
            shape[1] = min(shape[1], 7)
        self.values.append(self.input(tuple(shape), self.choice(DTYPES)))
        for _ in range(self.number(1, 9)):
            self.choice(statements)()
        results = [self.values[-1]]
        if len(self.values) > 2 and self.number(0, 1):
            results.append(self.choice(self.values[:-1]))
        self.drawn.results = results
        self.drawn.source = "\n".join([
            f"def computation({', '.join(self.names)}):", *self.lines,
            f"    return {', '.join(r.name for r in results)}",
        ])  # fmt: skip
        return self.drawn


def operands_cut(dtype: torch.dtype) -> float:
    """Return what a product may lose of what it multiplies, of its size."""
    return 2 * FLOAT32_OPERANDS if dtype == torch.float32 else 0.0


def broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Return whether shapes broadcast."""
    pairs = zip(reversed(a), reversed(b), strict=False)
    return all(m == n or 1 in (m, n) for m, n in pairs)


def promoted(x: Value, y: Value) -> torch.dtype:
    """Return the element type of a function of two values, as torch has it."""
    one, two = (torch.empty((0,) if v.shape else (), dtype=v.dtype) for v in (x, y))
    return torch.result_type(one, two)


@st.composite
def computations(draw) -> Drawn:
    """Functions of up to nine lines over tensors of up to 20,000 elements."""
    return Writer(draw).write()
