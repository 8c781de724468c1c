"""Random numbers as cuRAND's Philox4x32-10 gives them: T.rng_init, T.rng_rand, T.rng_rand_float.

Number k of a stream is a function of seed, sequence and k alone (Salmon, Moraes, Dror and Shaw,
"Parallel random numbers: as easy as 1, 2, 3", SC11), so a kernel keeps nothing but its place in the
stream. Integers and uniform numbers have the bits of cuRAND's; normal ones differ from it by the
rounding of sine, cosine and logarithm.

A call in T.Parallel draws for all iterations, the last loop variable fastest, whether or not an
``if`` lets one of them use its number.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

from tilecore.errors import ScopeError, TypeMismatch
from tilecore.frontend.builder import Builder, Frame, current
from tilecore.ir.dtype import DType
from tilecore.ir.expr import Expr, ExprLike, Load, Var, binary, call, cast, const, select
from tilecore.ir.nodes import Alloc, Buffer, Let, Stmt, Store
from tilecore.language.kernel import launch_of
from tilecore.language.thread import get_block_binding, get_thread_binding, get_thread_extent

__all__ = ["rng_init", "rng_rand", "rng_rand_float"]

GENERATOR = "curandStatePhilox4_32_10_t"
U64 = DType("uint64")
MULTIPLIERS, WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
WORD = 0xFFFFFFFF
ZERO = (const(0),)


@dataclass(frozen=True, slots=True)
class _Stream:
    """The variables of a kernel that hold what T.rng_init was given, and the place reached."""

    seed: Buffer
    sequence: Buffer
    at: Buffer


def rng_init(
    seed: ExprLike, seq: ExprLike | None = None, off: ExprLike = 0, generator: str = GENERATOR
) -> None:
    """Choose the stream of random numbers of a thread.

    Args:
        seed: key of the streams.
        seq: number of the stream; without it that of the thread in the grid.
        off: numbers to skip.
        generator: "curandStatePhilox4_32_10_t".

    Raises:
        TypeMismatch: another generator (TC202).
        ScopeError: outside T.Kernel, or inside T.Parallel (TC104).
    """
    if generator != GENERATOR:
        raise TypeMismatch(expected=f'generator="{GENERATOR}"', found=repr(generator))
    launch, builder = launch_of("rng_init"), current()
    if builder.find("parallel") is not None:
        raise ScopeError(message="T.rng_init stands inside T.Parallel", hint="move it before")
    if seq is None:
        seq = get_block_binding() * get_thread_extent() + get_thread_binding()
    if launch.random is None:
        launch.random = _Stream(*(_variable(name) for name in ("seed", "sequence", "at")))
        top = builder.find("kernel") or builder.frames[0]
        made = (launch.random.seed, launch.random.sequence, launch.random.at)
        top.stmts[:0] = [s for v in made for s in (Alloc(v, builder.span), _set(v, const(0, U64)))]
    stream = launch.random
    for variable, value in zip(
        (stream.seed, stream.sequence, stream.at), (seed, seq, off), strict=True
    ):
        builder.emit(_set(variable, cast(value, U64)))


def _variable(name: str) -> Buffer:
    return Buffer(name, (const(1),), U64, "local", is_var=True, span=current().span)


def _set(variable: Buffer, value: Expr) -> Stmt:
    return Store(variable, ZERO, value, current().span)


def rng_rand() -> Expr:
    """Return the next 32 random bits of the stream, as a uint32.

    Raises:
        ScopeError: no T.rng_init in this kernel, or a loop inside T.Parallel (TC104).
    """
    draw = _draws(1, 1, "rng_rand")
    return current().let("random", cast(draw(0), "uint32"))


def rng_rand_float(bit: int = 32, dist: str = "uniform") -> Expr:
    """Return a random number: uniform in (0, 1], or normal.

    Args:
        bit: 32 or 64, for float32 or float64, which takes twice as much of the stream.
        dist: "uniform" or "normal". Normal numbers come in pairs; a call outside T.Parallel uses
            one of its pair.

    Raises:
        TypeMismatch: another width or distribution (TC202).
        ScopeError: see rng_rand (TC104).
    """
    if bit not in (32, 64) or dist not in ("uniform", "normal"):
        raise TypeMismatch(expected='bit 32 or 64, dist "uniform" or "normal"', found=(bit, dist))
    words = bit // 32
    if dist == "uniform":
        draw = _draws(words, 1, "rng_rand_float")
        return current().let("random", _uniform(draw, 0, bit, const(1.0, f"float{bit}")))
    return _normal(_draws(2 * words, 2, "rng_rand_float"), bit)


def _normal(draw: Callable[[int], Expr], bit: int) -> Expr:
    kind, words = DType(f"float{bit}"), bit // 32
    builder = current()
    radius = binary("mul", const(-2.0, kind), call("log", _uniform(draw, 0, bit, const(1.0, kind))))
    length = builder.let("length", call("sqrt", radius))
    turn = const(2 * math.pi, kind)
    angle = builder.let("angle", _uniform(draw, words, bit, turn))
    which = binary("eq", draw(-1), const(0, U64))
    side = select(which, call("sin", angle), call("cos", angle))
    return builder.let("random", binary("mul", length, side))


def _uniform(draw: Callable[[int], Expr], first: int, bit: int, top: Expr) -> Expr:
    """Return a number in (0, top] from one word of the stream, or from two."""
    bits, size = draw(first), 32
    if bit == 64:
        bits, size = binary("bitxor", bits, binary("shl", draw(first + 1), 21)), 53
    kind = DType(f"float{bit}")
    step = float(top.value) * 2.0**-size  # type: ignore[attr-defined]  # a literal
    scaled = binary("mul", cast(bits, kind), const(step, kind))
    return binary("add", scaled, const(step / 2, kind))


# --- the stream ----------------------------------------------------------------------------------


def _draws(words: int, values: int, what: str) -> Callable[[int], Expr]:
    """Advance the stream; return a function that gives word i of what the caller may use.

    Args:
        words: how many words of the stream make
        values: so many values; word -1 tells which of them is wanted.
        what: the primitive.

    Raises:
        ScopeError: see rng_rand (TC104).
    """
    launch, builder = launch_of(what), current()
    if launch.random is None:
        raise ScopeError(
            message=f"T.{what} in a kernel without T.rng_init", hint="call T.rng_init(seed) before"
        )
    stream: _Stream = launch.random
    nests = [f for f in builder.frames if f.kind == "parallel"]
    number: Expr = const(0, U64)
    if not nests:
        total: Expr = const(words, U64)
        start = _advance(builder, stream, total, builder.stmts)
    else:
        number, count = _iteration(builder, nests)
        groups = binary("floordiv", binary("add", count, values - 1), values)
        around = next(
            f
            for f in reversed(builder.frames[: builder.frames.index(nests[0])])
            if f.kind != "python"
        )
        start = _advance(builder, stream, binary("mul", groups, words), around.stmts)
    own = binary("mul", binary("floordiv", number, values), words)
    first = builder.let("draw", binary("add", start, own))
    keys = [builder.let(n, Load(v, ZERO, U64)) for n, v in
            (("seed", stream.seed), ("sequence", stream.sequence))]  # fmt: skip
    found = [_word(keys, binary("add", first, i)) for i in range(words)]
    which = binary("mod", number, values)
    return lambda i: which if i < 0 else found[i]


def _advance(builder: Builder, stream: _Stream, total: Expr, stmts: list[Stmt]) -> Var:
    """Move the place in the stream past ``total`` words; return where it was."""
    start = Var("start", U64)
    stmts.append(Let(start, Load(stream.at, ZERO, U64), builder.span))
    stmts.append(_set(stream.at, binary("add", start, total)))
    return start


def _iteration(builder: Builder, nests: list[Frame]) -> tuple[Expr, Expr]:
    """Return the number of the iteration of parallel nests, and how many there are."""
    inside = builder.frames[builder.frames.index(nests[0]) + 1 :]
    if any(f.kind in ("loop", "while") for f in inside):
        raise ScopeError(
            message="random numbers are drawn in a loop inside T.Parallel",
            hint="make the loop an axis of T.Parallel",
        )
    number, count = const(0, U64), const(1, U64)
    for var, extent in (axis for nest in nests for axis in nest.axes):
        size = cast(extent, U64)
        number = binary("add", binary("mul", number, size), cast(var, U64))  # type: ignore[assignment]
        count = binary("mul", count, size)  # type: ignore[assignment]
    return number, count


def _word(keys: list[Var], place: Expr) -> Expr:
    """Return a word of the stream: one of the four of a counter."""
    builder = current()
    counter = builder.let("counter", binary("shr", place, 2))
    key, sequence = ((_low(k), _high(k)) for k in keys)
    words = philox((_low(counter), _high(counter), *sequence), key)
    which = builder.let("which", binary("bitand", place, 3))
    pairs = enumerate(words[:-1])
    return functools.reduce(
        lambda rest, pair: select(binary("eq", which, pair[0]), pair[1], rest), pairs, words[-1]
    )


def _low(value: Expr) -> Expr:
    return binary("bitand", value, const(WORD, U64))


def _high(value: Expr) -> Expr:
    return binary("shr", value, 32)


def philox(counter: tuple[Expr, ...], key: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Return the four words (uint64 below 2^32) of Philox4x32-10 for a counter and a key."""
    builder = current()
    words = counter
    for number in range(ROUNDS):
        products = [
            builder.let("product", binary("mul", words[2 * i], const(MULTIPLIERS[i], U64)))
            for i in (0, 1)
        ]
        keys = [_low(binary("add", k, const(number * WEYL[i] & WORD, U64)))
                for i, k in enumerate(key)]  # fmt: skip
        mixed = [
            builder.let("word", binary("bitxor", binary("bitxor", _high(p), word), k))
            for p, word, k in zip(reversed(products), (words[1], words[3]), keys, strict=True)
        ]
        words = (mixed[0], _low(products[1]), mixed[1], _low(products[0]))
    return words
