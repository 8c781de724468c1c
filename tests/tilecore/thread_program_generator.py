"""Random programs written per thread, and what they give: all threads in step, in NumPy.

Threads share tiles in branches that the thread index, data or a number decide, in loops that they
run differently often or leave early. A statement writes an element at most once, so that one order
of statements is the meaning of a program, whatever runs it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
NUMBER = 21  # a parameter of the programs
TILES = ("s0", "s1", "s2")
VARIABLES = ("v0", "v1", "v2")


@dataclass(slots=True)
class ThreadProgram:
    """A program as text, its input and its outputs.

    ``source`` defines ``main``, with parameters A, B, C (integers of ``threads`` elements) and k.
    """

    threads: int
    source: str
    a: npt.NDArray[np.int32]
    b: npt.NDArray[np.int32]
    c: npt.NDArray[np.int32]


@dataclass(slots=True)
class _Run:
    """The state of a block: everything by thread, but for tiles."""

    threads: int
    a: Ints
    tiles: dict[str, Ints]
    values: dict[str, Ints]
    b: Ints
    c: Ints
    gone: Ints  # threads that have left the turn of the innermost loop: 1 for its turn, 2 for it

    def value(self, text: str) -> Ints:
        """Return an expression in each thread."""
        names = {"tx": np.arange(self.threads), "A": self.a, "k": NUMBER, "n": self.threads}
        found = eval(text, {"__builtins__": {}}, {**names, **self.tiles, **self.values})
        return np.broadcast_to(np.asarray(found, np.int64), (self.threads,))


Node = tuple  # (kind, ...)


@dataclass(slots=True)
class _Writer:
    """Draws statements."""

    rng: random.Random
    threads: int
    lines: list[str] = field(default_factory=list)
    loops: int = 0

    def pick(self, *choices: str) -> str:
        return self.rng.choice(choices)

    def element(self) -> str:
        """Return an index that is another one in each thread."""
        n, c = self.threads, self.rng.randrange(self.threads)
        odd = self.rng.choice([f for f in (3, 5, 7, 11) if np.gcd(f, n) == 1])
        return self.pick("tx", f"{n - 1} - tx", f"(tx + {c}) % {n}", f"(tx * {odd} + {c}) % {n}")

    def place(self, names: tuple[str, ...]) -> str:
        """Return any index."""
        n, c = self.threads, self.rng.randrange(1, self.threads)
        some = [self.element(), f"tx // {c}", str(c), f"(tx * {c}) % {n}", f"(A[tx] + {c}) % {n}"]
        some += [f"({name} + tx) % {n}" for name in names]
        return self.rng.choice(some)

    def expr(self, names: tuple[str, ...]) -> str:
        """Return a small number that follows from what a thread has."""
        a, b = (self.rng.choice([*VARIABLES, *names, "A[tx]", "tx", "k"]) for _ in range(2))
        return self.pick(f"({a} + {b}) % 97", f"({a} * 3 - {b}) % 89", f"{a} % 50", f"{b} % 61 + 1")

    def cond(self, names: tuple[str, ...]) -> str:
        """Return a condition, or two of which both must hold."""
        n, c = self.threads, self.rng.randrange(1, self.threads)
        some = [
            f"tx < {c}", f"tx >= {c}", f"tx % {self.rng.choice([2, 3, 4])} == 0", "tx < k",
            f"tx == {c}", f"A[tx] > {c % 40}", f"{self.rng.choice(VARIABLES)} % 3 == 1",
            f"tx // 32 == {n // 32 - 1}", "(tx + k) % 5 < 3", "k > 20",
        ]  # fmt: skip
        some += [f"tx % 4 == {name} % 4" for name in names]
        one = self.rng.choice(some)
        return f"({one}) & ({self.rng.choice(some)})" if self.rng.random() < 0.3 else one

    def block(self, depth: int, names: tuple[str, ...], tiles: tuple[str, ...]) -> list[Node]:
        """Return some statements that touch only some tiles."""
        return [self.stmt(depth, names, tiles) for _ in range(self.rng.randrange(1, 5))]

    def stmt(self, depth: int, names: tuple[str, ...], tiles: tuple[str, ...]) -> Node:
        """Return a statement."""
        kind = self.rng.random()
        if depth > 2:
            kind *= 0.62
        tile = self.rng.choice(tiles)
        if kind < 0.2:
            return "store", tile, self.element(), self.expr(names)
        if kind < 0.42:
            return "load", self.rng.choice(VARIABLES), tile, self.place(names)
        if kind < 0.48:
            return "add", tile, self.place(names), self.expr(names)
        if kind < 0.53:
            return "set", self.rng.choice(VARIABLES), self.expr(names)
        if kind < 0.56 and "loop" in "".join(names):
            return "leave", self.cond(names), self.pick("break", "continue")
        if kind < 0.62:
            return "out", self.pick("B", "C"), self.rng.choice(VARIABLES)
        if kind < 0.85:
            cut = self.rng.randrange(1, len(tiles)) if len(tiles) > 1 else 0
            then = self.block(depth + 1, names, tiles[:cut] or tiles)
            has_other = cut and self.rng.random() < 0.5
            other = self.block(depth + 1, names, tiles[cut:]) if has_other else []
            return "if", self.cond(names), then, other
        self.loops += 1
        name = f"loop{self.loops}"
        n, part = self.threads, self.rng.choice([4, 32] if self.threads <= 64 else [32])
        head = self.pick(
            "T.serial(3)", "T.serial(2, 5)", "T.unroll(2)", "T.serial(tx % 3 + 1)",
            f"T.serial(tx // {part} + 1)", f"T.serial(tx, {2 * n - 5}, {n})",
            f"T.serial(tx, k + {n}, {n})",
        )  # fmt: skip
        return "for", name, head, self.block(depth + 1, (*names, name), tiles)

    # --- as text and as arrays ------------------------------------------------------------------

    def write(self, stmts: list[Node], indent: int) -> None:
        """Write statements down."""
        pad = "    " * indent
        for stmt in stmts:
            match stmt:
                case ("store", tile, index, value):
                    self.lines.append(f"{pad}{tile}[{index}] = {value}")
                case ("load", name, tile, index):
                    self.lines.append(f"{pad}{name} = {tile}[{index}]")
                case ("add", tile, index, value):
                    self.lines.append(f"{pad}T.atomic_add({tile}[{index}], {value})")
                case ("set", name, value):
                    self.lines.append(f"{pad}{name} = {value}")
                case ("leave", cond, word):
                    self.lines.append(f"{pad}if {cond.replace(' & ', ' and ')}:")
                    self.lines.append(f"{pad}    {word}")
                case ("out", tensor, name):
                    self.lines.append(f"{pad}{tensor}[tx] = {name}")
                case ("if", cond, then, other):
                    self.lines.append(f"{pad}if {cond.replace(' & ', ' and ')}:")
                    self.write(then, indent + 1)
                    if other:
                        self.lines.append(f"{pad}else:")
                        self.write(other, indent + 1)
                case ("for", name, head, body):
                    self.lines.append(f"{pad}for {name} in {head}:")
                    self.write(body, indent + 1)


def _run(stmts: list[Node], run: _Run, here: npt.NDArray[np.bool_]) -> None:
    """Run statements in the threads of a mask."""
    for stmt in stmts:
        some = here & (run.gone == 0)
        if not some.any():
            continue
        match stmt:
            case ("store", tile, index, value):
                run.tiles[tile] = run.tiles[tile].copy()
                run.tiles[tile][run.value(index)[some]] = run.value(value)[some]
            case ("load", name, tile, index):
                found = run.tiles[tile][np.where(some, run.value(index), 0)]
                run.values[name] = np.where(some, found, run.values[name])
            case ("add", tile, index, value):
                run.tiles[tile] = run.tiles[tile].copy()
                np.add.at(run.tiles[tile], run.value(index)[some], run.value(value)[some])
            case ("set", name, value):
                run.values[name] = np.where(some, run.value(value), run.values[name])
            case ("leave", cond, word):
                run.gone[some & run.value(cond).astype(bool)] = 2 if word == "break" else 1
            case ("out", tensor, name):
                out = run.b if tensor == "B" else run.c
                out[some] = run.values[name][some]
            case ("if", cond, then, other):
                taken = run.value(cond).astype(bool)
                _run(then, run, some & taken)
                _run(other, run, some & ~taken)
            case ("for", name, head, body):
                _loop(name, head, body, run, some)


def _loop(name: str, head: str, body: list[Node], run: _Run, here: npt.NDArray[np.bool_]) -> None:
    given = head.partition("(")[2][:-1].split(", ")
    start, stop, step = {1: ["0", *given, "1"], 2: [*given, "1"], 3: given}[len(given)]
    at, stop_at, by = (run.value(text).copy() for text in (start, stop, step))
    outer, run.gone = run.gone, np.zeros(run.threads, np.int64)
    while True:
        some = here & (run.gone != 2) & (at < stop_at)
        if not some.any():
            break
        run.gone[run.gone == 1] = 0
        run.values[name] = at
        _run(body, run, some)
        at = np.where(some, at + by, at)
    run.values.pop(name, None)
    run.gone = outer


def thread_program(seed: int) -> ThreadProgram:
    """Return a random program."""
    rng = random.Random(seed)
    threads = rng.choice([32, 64, 64, 96, 128])
    writer = _Writer(rng, threads)
    stmts = [writer.stmt(0, (), TILES) for _ in range(rng.randrange(2, 6))]
    writer.write(stmts, 3)
    begin = "\n".join(f"            {t}[tx] = A[tx] % {10 + i}" for i, t in enumerate(TILES))
    tiles = "\n".join(f'            {t} = T.alloc_shared(({threads},), "int32")' for t in TILES)
    names = "\n".join(f'            {v} = T.alloc_var("int32")' for v in VARIABLES)
    sets = "\n".join(f"            {v} = A[tx] % {7 + i}" for i, v in enumerate(VARIABLES))
    ends = "\n".join(f"            C[tx] = C[tx] + {v} * {i + 1}" for i, v in enumerate(VARIABLES))
    last = "\n".join(f"            B[tx] = B[tx] + {t}[{threads - 1} - tx]" for t in TILES)
    tensor = f'T.Tensor(({threads},), "int32")'
    source = f"""@T.prim_func
def main(A: {tensor}, B: {tensor}, C: {tensor}, k: T.int32):
    with T.Kernel(1, threads={threads}):
        if True:
            tx = T.get_thread_binding()
{tiles}
{names}
{begin}
{sets}
{chr(10).join(writer.lines)}
{last}
{ends}
"""
    a = np.random.default_rng(seed).integers(0, 100, threads)
    run = _Run(
        threads, a, {t: a % (10 + i) for i, t in enumerate(TILES)},
        {v: a % (7 + i) for i, v in enumerate(VARIABLES)},
        np.zeros(threads, np.int64), np.zeros(threads, np.int64), np.zeros(threads, np.int64),
    )  # fmt: skip
    _run(stmts, run, np.ones(threads, bool))
    run.b += sum(run.tiles[t][::-1] for t in TILES)
    run.c += sum(run.values[v] * (i + 1) for i, v in enumerate(VARIABLES))
    small = (x.astype(np.int32) for x in (a, run.b, run.c))
    return ThreadProgram(threads, source, *small)
