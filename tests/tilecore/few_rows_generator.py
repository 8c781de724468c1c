"""Random products of few rows with weights as (K, N), as programs for GPUs have them.

One to three products of a block share their rows; weights are plain, of 8 or 4 bits with scales, or
as (N, K). Sums are split along K or not, then finished by statements of which some keep columns
apart and others do not, and stored in all kinds of ways: by rows, parts, elements, onto what is
there. Numbers are small and whole, so that sums of them are exact in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from tilecore.ir.dtype import DType

TILES = ("c0", "d", "e")  # of rows and columns
NARROW = ("bfloat16", "float16")


@dataclass
class Product:
    """A program's text, its tensors, and what is known of them."""

    source: str = ""
    inputs: list[np.ndarray] = field(default_factory=list)
    outputs: list[np.ndarray] = field(default_factory=list)
    is_exact: bool = True  # all tiles that statements set are float32

    def __repr__(self) -> str:
        shapes = ", ".join(f"{x.dtype}{list(x.shape)}" for x in (*self.inputs, *self.outputs))
        return f"{shapes}\n{self.source}"


class Writer:
    """Draws one program, line by line."""

    def __init__(self, draw: Callable[..., object]) -> None:
        self.draw = draw
        self.product = Product()
        self.rng = np.random.default_rng(self.number(0, 2**16))
        self.params: list[str] = []
        self.outputs: list[str] = []
        self.head: list[str] = []
        self.body: list[str] = []
        of_call = self.choice([False, False, True])  # the number of rows
        self.m, self.n, self.k = self.number(1, 20), self.number(17, 200), self.number(1, 80)
        self.m = self.m if of_call else -(-self.m // 3)
        self.block_m = self.choice([self.m, 4, 8, 16])
        self.block_n, self.block_k = self.choice([16, 32]), self.choice([16, 32])
        self.splits = self.choice([1, 1, 1, 2, 3])
        self.dtype = self.choice(["float32", "float32", *NARROW])
        self.rows = "m" if of_call else str(self.m)
        self.columns = self.choice([str(self.n), str(self.n), "n"])
        self.tiles = list(TILES)
        self.narrow: set[str] = set()  # tiles of another type than float32
        self.is_plain = self.choice([True, True, True, False])  # columns stand on their own

    @property
    def has_one_row_of_blocks(self) -> bool:
        """Whether what no row tells apart is stored by one block alone."""
        return self.rows != "m" and self.m <= self.block_m

    # --- drawing ------------------------------------------------------------------------------

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def choice(self, items):
        return self.draw(st.sampled_from(list(items)))

    def emit(self, *lines: str) -> None:
        self.body += ["        " + line for line in lines]

    def tensor(self, name: str, shape: str, dtype: str, array: np.ndarray) -> None:
        self.params.append(f'{name}: T.Tensor(({shape},), "{dtype}")')
        self.product.inputs.append(array)

    def whole(self, *shape: int, dtype: str = "float32", low: int = -3, high: int = 4):
        return self.rng.integers(low, high, shape).astype(DType(dtype).numpy)

    # --- products -----------------------------------------------------------------------------

    def weights(self, number: int, form: str) -> list[str]:
        """Declare weights and tiles; return what a step along K does with them."""
        w, q, c, scale = f"W{number}", f"q{number}", f"c{number}", f"S{number}"
        n, k, columns, dtype = self.n, self.k, self.columns, self.dtype
        bk = self.block_k
        first = "bz * SPLIT + ko * BK"
        tile = f'w{number} = T.alloc_shared((BK, BN), "{dtype}")'
        copy, gemm = f"T.copy({w}[{first}, bx * BN], w{number})", f"T.gemm(a, w{number}, {c})"
        nest = "for kk, j in T.Parallel(BK, BN):"
        self.head.append(f'{c} = T.alloc_fragment((BM, BN), "float32")')
        if form == "plain":
            self.tensor(w, f"{k}, {columns}", dtype, self.whole(k, n, dtype=dtype))
            self.head.append(tile)
            return [copy, gemm]
        if form == "transposed":
            self.tensor(w, f"{columns}, {k}", dtype, self.whole(n, k, dtype=dtype))
            self.head.append(f'w{number} = T.alloc_shared((BN, BK), "{dtype}")')
            copy = f"T.copy({w}[bx * BN, {first}], w{number})"
            return [copy, f"T.gemm(a, w{number}, {c}, transpose_B=True)"]
        if form == "bytes":  # with a scale per column, or per column and group along K
            group = self.choice([0, 16])
            self.tensor(w, f"{k}, {columns}", "int8", self.whole(k, n, dtype="int8"))
            groups = -(-k // group) if group else 1
            self.tensor(scale, f"{groups}, {columns}", dtype, self.whole(groups, n, dtype=dtype))
            self.head += [tile, f'{q} = T.alloc_shared((BK, BN), "int8")']
            row = f"({first} + kk) // {group}" if group else "0"
            value = f"T.cast({q}[kk, j], '{dtype}') * {scale}[{row}, bx * BN + j]"
            return [copy.replace(f"w{number}", q), nest, f"    w{number}[kk, j] = {value}", gemm]
        packed = self.choice(["rows", "columns"])
        self.head.append(tile)
        if packed == "rows":  # two neighbours along K in a byte
            array = self.whole(-(-k // 2), n, dtype="uint8", low=0, high=256)
            self.tensor(w, f"{-(-k // 2)}, {columns}", "uint8", array)
            self.head.append(f'{q} = T.alloc_shared(({bk // 2}, BN), "uint8")')
            copy = f"T.copy({w}[({first}) // 2, bx * BN], {q})"
            byte = f"{q}[kk // 2, j] >> T.cast(kk % 2 * 4, 'uint8')"
        else:  # two neighbours along N
            half = self.columns if self.columns == "n" else str(-(-n // 2))
            array = self.whole(k, n if half == "n" else -(-n // 2), dtype="uint8", low=0, high=256)
            self.tensor(w, f"{k}, {half}", "uint8", array)
            self.head.append(f'{q} = T.alloc_shared((BK, {self.block_n // 2}), "uint8")')
            copy = f"T.copy({w}[{first}, bx * {self.block_n // 2}], {q})"
            byte = f"{q}[kk, j // 2] >> T.cast(j % 2 * 4, 'uint8')"
        value = f"T.cast(T.cast(({byte}) & 15, 'int32') - 8, '{dtype}')"
        return [copy, nest, f"    w{number}[kk, j] = {value}", gemm]

    def products(self) -> None:
        """Write the loop over K."""
        self.tensor("A", f"{self.rows}, {self.k}", self.dtype,
                    self.whole(self.m, self.k, dtype=self.dtype))  # fmt: skip
        forms = [
            "plain",
            *self.draw(
                st.lists(
                    st.sampled_from(["plain", "plain", "bytes", "nibbles", "transposed"]),
                    max_size=2,
                )
            ),
        ]
        steps = ["T.copy(A[by * BM, bz * SPLIT + ko * BK], a)"]
        if self.choice([True, True, False]):
            order = list(range(len(forms)))
        else:
            order = list(range(len(forms)))[::-1]
        for number in order:
            steps += self.weights(number, forms[number])
        self.tiles += [f"c{i}" for i in range(1, len(forms))]
        self.emit(*(f"T.clear(c{i})" for i in range(len(forms))))
        self.emit(f"for ko in T.Pipelined(SPLIT // BK, num_stages={self.number(0, 3)}):")
        self.emit(*("    " + step for step in steps))

    # --- what is done with sums ---------------------------------------------------------------

    def value(self, busy: set[str], depth: int = 2) -> str:
        """Draw a value at (i, j) that reads tiles in ``busy`` at that place alone."""
        kind = self.number(0, 9) if depth else 0
        if kind < 6:
            return self.leaf(busy)
        one, other = self.value(busy, depth - 1), self.value(busy, depth - 1)
        if kind == 9:
            return f"T.if_then_else({self.condition()}, {one}, {other})"
        return f"T.max({one}, {other})" if kind == 8 else f"({one} {'+-'[kind % 2]} {other})"

    def leaf(self, busy: set[str]) -> str:
        tile = self.choice(self.tiles)
        near = [f"{tile}[i, j]"] * 5 + ["s[j]", "r[i]", "S[bx * BN + j]", "S[bx * BN + j]", "x"]
        far = ["T.cast(bx * BN + j, 'float32')", "T.cast(j, 'float32')", "T.cast(bx, 'float32')",
               "S[j]", "S[bx * BN + (j ^ 1)]", "S[bx]", "T.cast(i, 'float32')", "s[(j + 1) % BN]",
               "S[bx * BN + j + 3]", "S[2 * (bx * BN + j)]", "r[0]"]  # fmt: skip
        if tile not in busy:
            far += [f"{tile}[i, (j + 1) % BN]", f"{tile}[i, BN - 1 - j]", f"{tile}[i, 0]",
                    f"{tile}[(i + 1) % BM, j]", f"{tile}[0, j]", f"{tile}[i, j // 2]"]  # fmt: skip
        return self.choice(near if self.is_plain or self.number(0, 3) else far)

    def condition(self) -> str:
        near = ["bx * BN + j < 37", "(bx * BN + j) % 3 == 1", "i < 2", "by * BM + i < 3",
                "S[bx * BN + j] > 0"]  # fmt: skip
        return self.choice(near if self.is_plain else [*near, "j < 5", "bx == 0"])

    def nest(self) -> None:
        """One to three stores to tiles, under a condition or not."""
        targets = [self.choice(self.tiles) for _ in range(self.number(1, 3))]
        lines = []
        for target in targets:
            value = self.value(set(targets))
            if self.choice([True, False, False]):
                lines.append(f"named = {value}")
                value = "named + 1"
            lines.append(f"{target}[i, j] = {value}")
        if self.choice([True, False, False, False]):
            lines = [f"if {self.condition()}:", *("    " + line for line in lines)]
        head = ["for i, j in T.Parallel(BM, BN):"]
        if self.choice([True, False, False, False]):
            head = ["for i in T.Parallel(BM):", "    for j in T.Parallel(BN):"]
        deep = "    " * len(head)
        self.emit(*head, *(deep + line for line in lines))

    def vector(self) -> None:
        tile = self.choice(self.tiles)
        near = [
            ("T.copy(S[bx * BN], s)",), ("T.copy(R[by * BM], r)",), ("T.clear(r)",),
            ("for j in T.Parallel(BN):", "    s[j] = S[bx * BN + j] * 2"),
            ("for j in T.Parallel(BN):", f"    s[j] = {tile}[0, j] + x"),
            ("for i in T.Parallel(BM):", "    r[i] = R[by * BM + i] + i"), ("x = S[1] + 2",),
        ]  # fmt: skip
        far = [
            ("T.copy(S[0:BN], s)",), ("for i in T.Parallel(BM):", f"    r[i] = {tile}[i, 0] + i"),
            ("x = S[bx]",), ("T.fill(s, bx)",),
        ]  # fmt: skip
        self.emit(*self.choice(near if self.is_plain else near + far))

    def fold(self) -> None:
        tile, clear = self.choice(self.tiles), self.choice([True, False])
        op = self.choice(["sum", "max", "absmax"])
        into = ("s", 0) if self.is_plain else self.choice([("r", 1), ("s", 0)])
        clear = clear or op == "absmax"
        self.emit(f"T.reduce_{op}({tile}, {into[0]}, dim={into[1]}, clear={clear})")

    def scan(self) -> None:
        one, other = self.choice(self.tiles), self.choice(self.tiles)
        reverse = self.choice([True, False])
        axis = 0 if self.is_plain else self.number(0, 1)
        self.emit(f"T.cumsum({one}, {other}, dim={axis}, reverse={reverse})")

    def move(self) -> None:
        one, other = self.choice(self.tiles), self.choice(self.tiles)
        half = self.block_n // 2
        forms = [f"T.fill({one}, {self.number(-2, 2)})", f"T.fill({one}[0:1, :], x)"]
        if one != other:
            forms += [f"T.copy({one}, {other})"] * 3
            forms.append(f"T.copy({one}[0:1, :], {other}[0:1, :])")
        if not self.is_plain:
            forms.append(f"T.fill({one}[:, 0:{half}], 1)")
        if one != other and not self.is_plain:
            forms.append(f"T.copy({one}[:, 0:{half}], {other}[:, {half}:])")
        self.emit(self.choice(forms))

    def view(self) -> None:
        tile, name = self.choice(self.tiles), f"view{len(self.body)}"
        self.emit(f"{name} = T.reshape({tile}, (BM * BN,))", "for t in T.Parallel(BM * BN):")
        self.emit(f"    {name}[t] = {name}[t] + t % 5")

    def repeat(self) -> None:
        tile = self.choice(self.tiles)
        step = self.choice([f"{tile}[i, j] + t", f"{tile}[i, j] * 2 - S[bx * BN + j]"])
        self.emit("for t in T.serial(3):", "    for i, j in T.Parallel(BM, BN):",
                  f"        {tile}[i, j] = {step}")  # fmt: skip

    def branch(self) -> None:
        near, far = ["by == 0", "S[0] > 0", "x > 1"], ["bx == 0", "bx % 2 == 1"]
        cond = self.choice(near if self.is_plain else near + far)
        tile = self.choice(self.tiles)
        self.emit(f"if {cond}:", "    for i, j in T.Parallel(BM, BN):",
                  f"        {tile}[i, j] = {self.value({tile}, 1)}")  # fmt: skip

    def wide(self) -> list[str]:
        return [tile for tile in self.tiles if tile not in self.narrow]

    def again(self) -> None:
        """A product of sums with more weights."""
        tile, u, g = self.choice(self.wide()), f"U{len(self.params)}", f"g{len(self.params)}"
        self.tensor(u, f"{self.block_n}, 16", "float32", self.whole(self.block_n, 16))
        self.head += [f'{g} = T.alloc_fragment((BM, 16), "float32")',
                      f'{g}u = T.alloc_shared((BN, 16), "float32")']  # fmt: skip
        self.emit(f"T.copy({u}, {g}u)", f"T.clear({g})", f"T.gemm({tile}, {g}u, {g})",
                  "for i, j in T.Parallel(BM, BN):",
                  f"    {tile}[i, j] = {tile}[i, j] + {g}[i, j % 16] % 64")  # fmt: skip

    def outer(self) -> None:
        """Columns by columns: the diagonal of what each column makes of each."""
        one, other = self.choice(self.wide()), self.choice(self.wide())
        if one == other:
            return
        g, target = f"o{len(self.body)}", self.choice(self.tiles)
        self.head += [f'{g} = T.alloc_fragment((BN, BN), "float32")']
        self.emit(f"T.clear({g})", f"T.gemm({one}, {other}, {g}, transpose_A=True)")
        if self.choice([True, False]):
            self.emit("for i, j in T.Parallel(BM, BN):",
                      f"    {target}[i, j] = {g}[j, j] % 64")  # fmt: skip
        elif self.splits == 1 and self.has_one_row_of_blocks:
            name = f"Y{len(self.outputs)}"
            self.output(name, (self.n, self.n), f"{self.columns}, {self.columns}")
            self.emit(f"T.copy({g}, {name}[bx * BN, bx * BN])")

    # --- outputs ------------------------------------------------------------------------------

    def output(self, name: str, shape: tuple[int, ...], text: str, dtype: str = "float32") -> None:
        self.outputs.append(f'{name}: T.Tensor(({text},), "{dtype}")')
        self.product.outputs.append(self.whole(*shape, dtype=dtype))

    def store(self) -> None:
        """Store a tile to a tensor of its own."""
        usual = ["box", "box", "elements", "guarded", "rows"]
        near = ["some", "shifted", "before", "short", "turned"]
        far = ["half", "onto itself", "added", "by blocks"]
        if self.has_one_row_of_blocks:
            near.append("columns")
        wild = usual + near + ([] if self.is_plain else far)
        form = self.choice(wild if self.number(0, 1) else usual)
        tile, name = self.choice(self.tiles), f"Y{len(self.outputs)}"
        shape, axes, lines = self.stored(form, tile, name)
        if self.splits > 1 and form != "added":
            shape, axes = (self.splits, *shape), [str(self.splits), *axes]
        self.output(name, shape, ", ".join(axes))
        self.emit(*lines)

    def stored(self, form: str, tile: str, name: str) -> tuple[tuple[int, ...], list[str], list]:
        """Return an output's shape, the same as text, and how a tile gets there."""
        lead = f"{name}[bz, " if self.splits > 1 else f"{name}["
        shift, half, live = self.number(0, 20), self.block_n // 2, self.number(1, self.block_m)
        shape, axes = (self.m, self.n), [self.rows, self.columns]
        box, each = f"{lead}by * BM, bx * BN]", "for i, j in T.Parallel(BM, BN):"
        place, value = f"{lead}by * BM + i, bx * BN + j]", f"{tile}[i, j]"
        match form:
            case "elements":
                return shape, axes, [each, f"    {place} = {self.value(set())}"]
            case "guarded":
                inside = f"    if bx * BN + j < {self.columns} and i < {live}:"
                return shape, axes, [each, inside, f"        {place} = {value}"]
            case "some":
                return shape, axes, [each, f"    if {self.condition()}:",
                                     f"        {place} = {value}"]  # fmt: skip
            case "rows":
                return shape, axes, [f"T.copy({tile}[0:{live}, :], {box})"]
            case "half":
                return shape, axes, [f"T.copy({tile}[:, 0:{half}], {box})"]
            case "onto itself":
                return shape, axes, [each, f"    {place} = {place} * 2 + {value}"]
            case "added":
                own = f"{name}[by * BM + i, bx * BN + j]"
                return shape, axes, [each, f"    T.atomic_add({own}, {value})"]
            case "shifted":
                shape, axes = (self.m, self.n + shift), [self.rows, f"{self.columns} + {shift}"]
                return shape, axes, [f"T.copy({tile}, {lead}by * BM, bx * BN + {shift}])"]
            case "before":
                return shape, axes, [each, f"    {place[:-1]} - {shift}] = {value}"]
            case "short":
                return (self.m, 16), [self.rows, "16"], [f"T.copy({tile}, {box})"]
            case "turned":
                turned = f"{lead}bx * BN + j, by * BM + i]"
                return (
                    (self.n, self.m),
                    [self.columns, self.rows],
                    [each, f"    {turned} = {value}"],
                )
            case "by blocks":
                counts = -(-self.m // self.block_m), -(-self.n // self.block_n)
                rows = "(m + BM - 1) // BM" if self.rows == "m" else str(counts[0])
                columns = "(n + BN - 1) // BN" if self.columns == "n" else str(counts[1])
                shape = (*counts, self.block_m, self.block_n)
                return shape, [rows, columns, "BM", "BN"], [f"T.copy({tile}, {lead}by, bx, 0, 0])"]
            case "columns":
                return (self.n,), [self.columns], [f"T.copy(s, {lead}bx * BN])"]
            case _:
                return shape, axes, [f"T.copy({tile}, {box})"]

    # --- the whole ----------------------------------------------------------------------------

    def write(self) -> Product:
        split = -(-self.k // (self.splits * self.block_k)) * self.block_k
        self.tensor("S", str(2 * self.n + 70), "float32", self.whole(2 * self.n + 70))
        self.tensor("R", self.rows, "float32", self.whole(self.m))
        self.products()
        for tile in ("d", "e"):
            dtype = self.choice(["float32", "float32", self.dtype])
            self.product.is_exact &= dtype == "float32"
            self.narrow |= {tile} if dtype != "float32" else set()
            self.head.append(
                f'{tile} = T.alloc_{self.choice(["shared", "fragment"])}((BM, BN), "{dtype}")'
            )
            self.emit(self.choice([f"T.copy(c0, {tile})", f"T.fill({tile}, {self.number(0, 3)})"]))
        self.emit("T.copy(S[bx * BN], s)", "T.copy(R[by * BM], r)")
        kinds = [self.nest, self.nest, self.nest, self.vector, self.vector, self.fold, self.scan,
                 self.move, self.move, self.repeat, self.branch]  # fmt: skip
        kinds += [] if self.is_plain else [self.view, self.again, self.outer]
        for _ in range(self.number(0, 3)):
            self.choice(kinds)()
        for _ in range(self.number(1, 2)):
            self.store()
        dimensions = [f'{d} = T.dynamic("{d}")' for d in ("m", "n")
                      if d in (self.rows, self.columns)]  # fmt: skip
        grid = [f"T.ceildiv({self.columns}, BN)", f"T.ceildiv({self.rows}, BM)"]
        names = ["bx", "by"]
        if self.splits > 1:
            grid, names = [*grid, str(self.splits)], [*names, "bz"]
        lines = [
            *dimensions, f"BM, BN, BK = {self.block_m}, {self.block_n}, {self.block_k}",
            f"SPLIT = {split}",
            "@T.prim_func", f"def main({', '.join([*self.params, *self.outputs])}):",
            f"    with T.Kernel({', '.join(grid)}, threads=128) as ({', '.join(names)}):",
            *([] if self.splits > 1 else ["        bz = 0"]),
            f'        a = T.alloc_shared((BM, BK), "{self.dtype}")',
            '        s = T.alloc_fragment((BN,), "float32")',
            '        r = T.alloc_fragment((BM,), "float32")',
            '        x = T.alloc_var("float32", init=1.0)',
            *("        " + line for line in self.head), *self.body,
        ]  # fmt: skip
        self.product.source = "\n".join(lines) + "\n"
        return self.product


@st.composite
def products(draw) -> Product:
    """Programs of one to three products, up to three statements and two outputs."""
    return Writer(draw).write()
