"""The front end: what Python means inside a tile program, and where errors point."""

from __future__ import annotations

import inspect
import pickle

import numpy as np
import pytest

import tilecore.language as T
from tilecore import interpreter
from tilecore.errors import (
    ProgramError,
    ScopeError,
    SourceUnavailable,
    TypeMismatch,
    UnknownPrimitive,
    UnsupportedSyntax,
)
from tilecore.ir import nodes
from tilecore.ir.nodes import PrimFunc
from tilecore.ir.verifier import verify
from tilecore.ir.visitor import walk

N = 8


def execute(program: PrimFunc, *arrays: np.ndarray, seed: int = 0) -> list[np.ndarray]:
    return interpreter.run(verify(program), *arrays, seed=seed)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_block_index_forms() -> None:
    @T.prim_func
    def program(Out: T.Tensor((3, 4), "int32")):
        with T.Kernel(3) as bx:
            Out[bx, 0] = bx
        with T.Kernel(3) as (b,):
            Out[b, 1] = b * 2
        with T.Kernel(3, 2, threads=(32, 2)) as (p, q):
            Out[p, 2 + q] = p + q * 10

    (out,) = execute(program)
    np.testing.assert_array_equal(out, [[0, 0, 0, 10], [1, 2, 1, 11], [2, 4, 2, 12]])
    launches = [s for s in walk(program.body) if isinstance(s, nodes.KernelLaunch)]
    assert [[v.name for v in s.block_vars] for s in launches] == [["bx"], ["b"], ["p", "q"]]
    assert [len(s.threads) for s in launches] == [1, 1, 2]


def test_ternary_logic_and_chains() -> None:
    @T.prim_func
    def program(A: T.Tensor((N,), "int32"), Out: T.Tensor((N, 5), "int32")):
        with T.Kernel(1):
            for i in T.Parallel(N):
                Out[i, 0] = 1 if A[i] > 0 else -1
                Out[i, 1] = 1 if 0 <= A[i] < 3 else 0
                Out[i, 2] = 1 if A[i] > 0 and not A[i] == 2 else 0  # noqa: SIM201
                Out[i, 3] = 1 if A[i] < 0 or A[i] >= 3 else 0
                Out[i, 4] = 5 if N == 8 and True else 6

    a = np.arange(-4, 4, dtype=np.int32)
    (out,) = execute(program, a)
    np.testing.assert_array_equal(out[:, 0], np.where(a > 0, 1, -1))
    np.testing.assert_array_equal(out[:, 1], (a >= 0) & (a < 3))
    np.testing.assert_array_equal(out[:, 2], (a > 0) & (a != 2))
    np.testing.assert_array_equal(out[:, 3], (a < 0) | (a >= 3))
    assert (out[:, 4] == 5).all()


def test_if_on_values_folds_and_on_expressions_branches() -> None:
    flag = False

    @T.prim_func
    def program(Out: T.Tensor((4,), "int32")):
        with T.Kernel(4) as b:
            if flag:
                Out[b] = 100
            elif b == 0:
                Out[b] = 1
            elif b < 3:
                Out[b] = 2
            else:
                Out[b] = 3

    (out,) = execute(program)
    assert out.tolist() == [1, 2, 2, 3]
    assert "100" not in str(program)


def test_variables_store_and_names_are_values() -> None:
    @T.prim_func
    def program(Out: T.Tensor((6,), "int32")):
        with T.Kernel(1):
            x = T.alloc_var("int32", init=1)
            y = T.alloc_var(T.int32, 10)
            z: T.int32 = 7
            before = x  # the value now
            x += 4
            x, y = y, x
            z = z + 1
            n = x  # a new value, not the variable
            x = T.alloc_var("int32", 3)  # a new variable
            total = T.alloc_var("int32")  # starts at 0
            total += 1
            x += total - 1
            Out[0], Out[1], Out[2], Out[3], Out[4] = before, n, y, z, x
            Out[-1] = Out[0] + Out[1]

    (out,) = execute(program, np.zeros(6, np.int32))
    assert out.tolist() == [1, 10, 5, 8, 3, 11]


def test_an_annotated_name_before_the_kernel_is_a_size() -> None:
    """It was a variable, which has no place there."""

    @T.prim_func
    def program(Out: T.Tensor((6,), "int32")):
        total: T.int32 = 2 * 3
        with T.Kernel(T.ceildiv(total, 4)) as b:
            place: T.int32 = b * 4
            for i in T.serial(4):
                if place < total:
                    Out[place] = total - i
                place += 1

    (out,) = execute(program, np.zeros(6, np.int32))
    assert out.tolist() == [6, 5, 4, 3, 6, 5]


def test_swap_of_elements() -> None:
    @T.prim_func
    def program(A: T.Tensor((2,), "int32")):
        with T.Kernel(1):
            A[0], A[1] = A[1], A[0]

    a = ints(1, 2)
    execute(program, a)
    assert a.tolist() == [2, 1]


def test_loops_of_all_kinds() -> None:
    @T.prim_func
    def program(Out: T.Tensor((7,), "int32"), n: T.int32):
        with T.Kernel(1):
            T.fill(Out, 0)
            for i in range(n):
                Out[0] += i
            for i in T.serial(1, 10, 3):
                Out[1] += i
            for i in T.unroll(2, 4):
                Out[2] += i
            for i, j in T.grid(3, 4):
                Out[3] += i * 10 + j
            for _ in T.vectorized(4):
                Out[4] += 1
            for i in T.Pipelined(1, 4, num_stages=2):
                Out[5] += i
            k = T.alloc_var("int32", init=0)
            while k < n and k < 100:
                k += 2
            Out[6] = k

    (out,) = execute(program, np.zeros(7, np.int32), 5)
    assert out.tolist() == [10, 12, 5, 138, 4, 6, 6]


def test_python_metaprogramming_runs_while_tracing() -> None:
    shapes = {"a": 2, "b": 3}
    scale = lambda x: x * 2

    @T.macro
    def put(target, index, value):
        if index > 1:  # noqa: SIM108
            doubled = scale(value)
        else:
            doubled = value
        target[index] = doubled

    @T.prim_func
    def program(Out: T.Tensor((5,), "int32")):
        with T.Kernel(1):
            tiles = [T.alloc_local((k,), "int32") for k in shapes.values()]
            total = 0
            for position, name in enumerate(shapes):  # a Python loop
                if name == "zzz":
                    continue
                T.fill(tiles[position], shapes[name])
                total += shapes[name]
                if total > 100:
                    break
            for index in (0, 1, 2, 3):
                put(Out, index, index + 1)
            Out[4] = tiles[0][1] * 100 + tiles[1][2] * 10 + total

    (out,) = execute(program)
    assert out.tolist() == [1, 2, 6, 8, 235]
    assert [t.shape[0].value for t in _tiles(program)] == [2, 3]


def _tiles(program: PrimFunc) -> list[nodes.Buffer]:
    return [s.buffer for s in walk(program.body) if isinstance(s, nodes.Alloc)]


def test_macro_returns_variables_and_values() -> None:
    @T.macro
    def counter(start):
        return T.alloc_var("int32", init=start)

    @T.prim_func
    def program(Out: T.Tensor((1,), "int32")):
        with T.Kernel(1):
            c = counter(4)
            c += 1
            Out[0] = c

    assert execute(program)[0].tolist() == [5]


def test_slices_and_attributes_of_buffers() -> None:
    @T.prim_func
    def program(A: T.Tensor((6, 4), "float32"), Out: T.Tensor((6, 4), "float32")):
        rows, columns = A.shape
        assert rows == 6, "known while tracing"
        with T.Kernel(rows // 2) as b:
            tile = T.alloc_shared((2, columns), A.dtype)
            T.copy(A[b * 2 : (b + 1) * 2, :], tile)
            tile[:, 0:1] = 0.5
            T.copy(tile, Out[b * 2, 0])

    a = np.arange(24, dtype=np.float32).reshape(6, 4)
    (out,) = execute(program, a)
    expected = a.copy()
    expected[:, 0] = 0.5
    np.testing.assert_array_equal(out, expected)
    copies = [s for s in walk(program.body) if isinstance(s, nodes.Copy)]
    assert [str(e) for e in copies[0].src.extents] == ["2", "4"]


def test_names_of_tiles_follow_the_source() -> None:
    @T.prim_func
    def program(Out: T.Tensor((4,), "float32")):
        with T.Kernel(1):
            accumulator = T.alloc_fragment((4,), "float32")
            T.clear(accumulator)
            T.copy(accumulator, Out)

    assert [b.name for b in _tiles(program)] == ["accumulator"]


def line_of(marker: str, fn: object) -> int:
    lines, first = inspect.getsourcelines(fn)
    return first + next(i for i, text in enumerate(lines) if marker in text)


def test_errors_point_at_the_statement() -> None:
    def build() -> PrimFunc:
        @T.prim_func
        def program(A: T.Tensor((8, 8), "float32")):
            with T.Kernel(1):
                s = T.alloc_shared((4, 4), "float32")
                T.clear(s)
                if A.shape[0] == 8:
                    T.copy(A, s)  # the wrong line

        return program

    with pytest.raises(Exception, match=r"T\.copy from `A` to `s`") as caught:
        build()
    span = caught.value.span
    assert span.file == __file__
    assert (span.line, span.column) == (line_of("# the wrong line", build), 21)
    assert "T.copy(A, s)" in str(caught.value)
    assert "^" in str(caught.value)


def test_python_errors_keep_their_type_and_get_a_place() -> None:
    def build() -> PrimFunc:
        @T.prim_func
        def program(A: T.Tensor((8,), "float32")):
            with T.Kernel(1):
                A[0] = {"a": 1}["b"]  # no such key

        return program

    with pytest.raises(KeyError) as caught:
        build()
    assert isinstance(caught.value, ProgramError)
    assert str(caught.value).startswith("TC105 python-error: KeyError: 'b'")
    assert f"{__file__}:{line_of('# no such key', build)}" in str(caught.value)
    assert type(pickle.loads(pickle.dumps(caught.value))) is ProgramError


def test_error_in_a_macro_points_into_the_macro() -> None:
    @T.macro
    def wrong(tile):
        T.gemm(tile, tile, 3)

    def build() -> PrimFunc:
        @T.prim_func
        def program(A: T.Tensor((8,), "float32")):
            with T.Kernel(1):
                s = T.alloc_shared((4, 4), "float32")
                wrong(s)

        return program

    with pytest.raises(TypeMismatch) as caught:
        build()
    assert caught.value.span is not None
    assert caught.value.span.line == line_of("T.gemm(tile, tile, 3)", wrong.fn)


def test_loop_carried_names_are_refused() -> None:
    with pytest.raises(ScopeError, match=r"`total` is read and then rebound in a loop"):

        @T.prim_func
        def program(Out: T.Tensor((4,), "int32")):
            with T.Kernel(1):
                total = 0
                for i in T.serial(4):
                    total = total + i
                Out[0] = total


def test_names_bound_in_a_branch_end_with_it() -> None:
    with pytest.raises(ScopeError, match=r"`n` was bound inside the body"):

        @T.prim_func
        def program(Out: T.Tensor((4,), "int32")):
            with T.Kernel(4) as b:
                n = 1
                if b == 0:
                    n = 2
                Out[b] = n


def test_a_name_may_be_reused_in_later_loops() -> None:
    @T.prim_func
    def program(A: T.Tensor((4,), "int32"), Out: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            for i in T.serial(4):
                x = A[i] + 1
                Out[i] = x
            for i in T.serial(4):
                x = Out[i] * 2
                Out[i] = x

    assert execute(program, ints(1, 2, 3, 4), np.zeros(4, np.int32))[0].tolist() == [4, 6, 8, 10]


def test_value_of_an_expression_is_no_python_bool() -> None:
    def is_positive(x):
        return 1 if x > 0 else 0  # plain Python: not rewritten

    with pytest.raises(TypeMismatch, match="known while the program is traced"):

        @T.prim_func
        def program(A: T.Tensor((4,), "int32")):
            with T.Kernel(4) as b:
                A[b] = is_positive(A[b])


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("try:\n    x = 1\nfinally:\n    pass", "`try`"),
        ("for i in T.Parallel(4):\n    break", "`break`"),
        ("for i in T.serial(4):\n    pass\nelse:\n    pass", "`for ... else`"),
        ("if b == 0:\n    return", "`return` inside a body"),
        ("del b", "`del`"),
        ("A[0:4:2] = 1", "step 2"),
        ("x = (y := 3)", "an assignment expression"),
    ],
)
def test_unsupported_syntax_is_named(body: str, found: str, tmp_path) -> None:
    indented = "\n".join("            " + line for line in body.splitlines())
    path = tmp_path / "program.py"
    path.write_text(
        "import tilecore.language as T\ndef build():\n    @T.prim_func\n"
        "    def program(A: T.Tensor((8,), 'int32')):\n        with T.Kernel(4) as b:\n"
        f"{indented}\n    return program\n"
    )
    namespace: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    with pytest.raises(UnsupportedSyntax) as caught:
        namespace["build"]()
    assert found in caught.value.message
    assert caught.value.span is not None
    assert caught.value.span.file == str(path)
    assert 6 <= caught.value.span.line <= 8


def test_source_that_cannot_be_read() -> None:
    code = "import tilecore.language as T\n@T.prim_func\ndef f(A: T.Tensor((1,), 'int32')): pass\n"
    with pytest.raises(SourceUnavailable, match="define the kernel in a file"):
        exec(code, {})


def test_names_that_no_program_means_are_missing_attributes() -> None:
    assert hasattr(T, "gemm")
    assert not hasattr(T, "torch")
    nameless = type("Nameless", (), {"__module__": None})()
    assert (
        pickle.whichmodule(nameless, "nameless") == "__main__"
    )  # asks all modules that are loaded


def test_unknown_primitives_say_why() -> None:
    with pytest.raises(UnknownPrimitive, match=r"names an instruction or descriptor of NVIDIA"):
        T.tma_load_2sm  # noqa: B018
    for name in ("tma_load_2sm", "tma_store", "tma_scatter4"):
        with pytest.raises(
            UnknownPrimitive, match=r"write T\.tma_copy\(A\[\.\.\.\], tile, barrier"
        ):
            getattr(T, name)
    with pytest.raises(UnknownPrimitive, match="shares no memory with another argument"):
        T.annotate_restrict_buffers  # noqa: B018
    with pytest.raises(UnknownPrimitive, match=r"did you mean `T.alloc_shared`\?"):
        T.alloc_sharde  # noqa: B018
    with pytest.raises(UnknownPrimitive, match="this element type is not implemented yet"):
        T.float6_e2m3fn  # noqa: B018


def test_primitives_need_a_program_and_a_kernel() -> None:
    with pytest.raises(ScopeError, match="outside a tile program"):
        T.alloc_shared((4,), "float32")
    with pytest.raises(ScopeError, match=r"outside T\.Kernel"):

        @T.prim_func
        def program(A: T.Tensor((4,), "float32")):
            A[T.get_thread_binding()] = 0.0

    def helper(tensor):
        tensor[0] = 1.0  # plain Python: not rewritten

    with pytest.raises(ScopeError, match=r"decorate the helper with @T\.macro"):

        @T.prim_func
        def calls_helper(A: T.Tensor((4,), "float32")):
            with T.Kernel(1):
                helper(A)

    with pytest.raises(ScopeError, match="inside another"):

        @T.prim_func
        def nested(A: T.Tensor((4,), "float32")):
            with T.Kernel(1), T.Kernel(2):
                T.clear(A)


def test_a_macro_may_call_itself_down_to_a_python_value() -> None:
    @T.macro
    def count_down(target, n: int):
        if n > 0:
            target[n] = n
            count_down(target, n - 1)

    @T.prim_func
    def program(Out: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            Out[0] = 7
            count_down(Out, 3)

    out = np.zeros(4, np.int32)
    interpreter.run(verify(program), out)
    np.testing.assert_array_equal(out, [7, 1, 2, 3])
