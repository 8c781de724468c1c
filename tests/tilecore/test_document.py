"""Tile IR as JSON: nothing is lost, one program has one digest, and damage is refused."""

import ast
import dataclasses
import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import tilecore.language as T
from tests.recommender import user_programs
from tests.tilecore.document_faults import damaged, flipped, generator, parsed
from tests.tilecore.program_generator import programs
from tilecore import compiler, interpreter, kernels
from tilecore.errors import InvalidDocument, ShapeMismatch, TileError, TypeMismatch
from tilecore.ir import nodes
from tilecore.ir.document import canonical_bytes, digest, read, write
from tilecore.ir.document.checks import Limits
from tilecore.ir.document.grammar import STATEMENTS
from tilecore.ir.expr import Binary, Const, Var, const
from tilecore.ir.layout import Layout
from tilecore.ir.nodes import PrimFunc, Stmt
from tilecore.ir.printer import format_func
from tilecore.ir.verifier import faults
from tilecore.jit import compile as build
from tilecore.target import parse_target


def library(name, kind="cpu"):
    definition = kernels.get(name)
    needed = {f.name: 256 for f in definition.fields if f.default is None}
    problem = definition.parse_problem(needed)
    return definition.program(problem, dict(definition.default_config(kind)))


def again(func, **keywords):
    """Return what is read of what is written of a program."""
    return read(json.loads(canonical_bytes(write(func, **keywords))))[0]


def same(a, b):
    assert format_func(a) == format_func(b)
    assert digest(a) == digest(b)
    assert canonical_bytes(write(a)) == canonical_bytes(write(b))


@pytest.mark.parametrize("name", kernels.KERNELS)
def test_library_kernels_come_back_whole(name):
    for kind in ("cpu", "cuda"):
        func = library(name, kind)
        same(again(func), func)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["softmax", "dequant_gemm"])
def test_what_comes_back_is_lowered_to_the_same_code(name):
    func, target = library(name), parse_target("llvm")
    first, second = (str(compiler.lower(f, target, {})[1]) for f in (func, again(func)))
    assert first == second


def test_programs_of_users_come_back_whole():
    sizes = {"M": 192, "N": 256, "K": 320}
    knobs = {"block_M": 64, "block_N": 64, "block_K": 32}
    made = [
        user_programs.matmul.program(**sizes, **knobs),
        user_programs.eager_matmul.program(**sizes, **knobs),
        user_programs.attention.program(2, 4, 256, 64, 64, 64),
    ]
    for func in made:
        same(again(func), func)


def check_generated(tmp_path_factory, program):
    path = tmp_path_factory.mktemp("program") / "generated.py"
    path.write_text(program.source)
    names = {}
    exec(compile(program.source, str(path), "exec"), {"T": T}, names)
    func = next(v for v in names.values() if isinstance(v, PrimFunc))
    found = again(func)
    same(found, func)
    outputs = [np.zeros_like(x) for x, _ in program.outputs]
    arrays = [[x.copy() for x in (*program.inputs, *outputs)] for _ in range(2)]
    for one, into in zip((func, found), arrays, strict=True):
        interpreter.run(one, *into)
    for a, b in zip(*arrays, strict=True):
        assert a.tobytes() == b.tobytes()


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_generated_programs_come_back_whole_and_mean_the_same(tmp_path_factory, program):
    check_generated(tmp_path_factory, program)


@pytest.mark.exhaustive
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_more_generated_programs_come_back_whole_and_mean_the_same(tmp_path_factory, program):
    check_generated(tmp_path_factory, program)


def test_every_statement_and_every_field_has_a_form():
    kinds = {k for k in vars(nodes).values() if isinstance(k, type) and issubclass(k, Stmt)}
    # CUDA source does not travel: whoever receives a program cannot check what it does.
    assert {form.kind for form in STATEMENTS.values()} == kinds - {Stmt, nodes.SourceLaunch}
    for form in STATEMENTS.values():
        assert {f.name for f in dataclasses.fields(form.kind)} == {*form.fields, "span"}
    described = set(read.__globals__["BUFFER_MEMBERS"]) - {"at"}
    assert described == {f.name for f in dataclasses.fields(nodes.Buffer)} - {"span"}


@T.prim_func
def swizzled(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64, 64), "float32"), n: T.int32):
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((64, 64), "float32")
        T.annotate_layout({tile: lambda i, j: i * 64 + (j + i) % 64})
        T.use_swizzle(4)
        T.copy(A, tile)
        for i, j in T.Parallel(64, 64):
            tile[i, j] = T.if_then_else(tile[i, j] > T.infinity("float32"), 0.0, tile[i, j] * n)
        T.print(tile[0, 0], msg="first")
        T.copy(tile, B)


def test_tiles_of_vectors_come_back():
    @T.prim_func
    def main(A: T.Tensor((8, 4), "float32")):
        with T.Kernel(1):
            tile = T.alloc_shared((8,), "float32x4")
            T.copy(A, tile)
            tile[0] = tile[1] + 1.0
            T.copy(tile, A)

    same(again(main), main)
    described = write(main)
    (tile,) = (b for b in described["buffers"] if b.get("lanes"))
    assert tile["lanes"] == 4
    for lanes in (0, 2, 129, True):
        with pytest.raises(TileError, match="/lanes"):
            read(
                json.loads(
                    json.dumps(described).replace('"lanes": 4', f'"lanes": {json.dumps(lanes)}')
                )
            )


def test_layouts_hints_and_odd_numbers():
    found = again(swizzled)
    same(found, swizzled)

    def layout(func):
        notes = [s for s in walk(func.body) if isinstance(s, nodes.Annotate)]
        return next(v for s in notes if s.key == "layout" for v in s.value.values())

    def walk(stmt):
        yield stmt
        for child in getattr(stmt, "stmts", ()) or [getattr(stmt, "body", None)]:
            if child is not None:
                yield from walk(child)

    assert isinstance(layout(found), Layout)
    assert layout(found).equals(layout(swizzled))


def test_products_with_factors():
    @T.prim_func
    def scaled(A: T.Tensor((128, 128), "float8_e5m2"), C: T.Tensor((128, 128), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((128, 128), "float8_e5m2")
            words, c = T.alloc_shared((128, 2), "uint32"), T.alloc_fragment((128, 128), "float32")
            T.copy(A, a)
            T.fill(words, 0x38383838)
            T.clear(c)
            T.mma_gemm_blockscaled(
                a, a, c, words, words, transpose_B=True, k_start=0, sf_a_granularity_k=16,
                sf_b_granularity_k=32, sf_layout="blockscaled_chunk_kmajor",
            )  # fmt: skip
            T.copy(c, C)

    document = write(scaled)
    same(again(scaled), scaled)
    (product,) = (s for s in document["body"]["stmts"][0]["body"]["stmts"] if s["node"] == "gemm")
    assert product["sharing"] == [16, 32]
    for changes, message in (
        ({"factors": product["factors"][:1]}, "no factors, or those of a and of b"),
        ({"sharing": [16]}, "no factors, or those of a and of b"),
        ({"factors": [], "sharing": []}, "factors in chunks"),
        ({"pairs_of": "int4"}, "pairs_of"),
        ({"factor_type": "float16"}, "factor_type"),
    ):
        kept = dict(product)
        product.update(changes)
        with pytest.raises(InvalidDocument, match=message):
            read(document)
        product.clear()
        product.update(kept)
    product["sharing"] = [16, 24]
    with pytest.raises(TypeMismatch, match="a multiple of 16 elements that share a factor"):
        read(document)


def test_factors_in_tensor_memory():
    @T.prim_func
    def scaled(A: T.Tensor((128, 128), "float8_e5m2"), C: T.Tensor((128, 128), "float32")):
        with T.Kernel(1, threads=128):
            a, words = T.alloc_shared((128, 128), "float8_e5m2"), T.alloc_shared((128,), "uint32")
            c, factors = T.alloc_tmem((128, 128), "float32"), T.alloc_tmem((128, 4), "uint32")
            T.copy(A, a)
            T.fill(words, 0x7F7F7F7F)
            T.tcgen05_cp_warpx4(words, factors)
            T.tcgen05_gemm_blockscaled(
                a, a, c, factors, factors, transpose_B=True, clear_accum=True, k_start=0,
                sf_a_granularity_k=32, sf_b_granularity_k=64,
            )  # fmt: skip
            T.copy(c, C)

    document = write(scaled)
    same(again(scaled), scaled)
    stmts = {s["node"]: s for s in document["body"]["stmts"][0]["body"]["stmts"]}
    kept = dict(stmts["gemm"])
    stmts["gemm"] |= {"factors": [], "sharing": []}
    with pytest.raises(InvalidDocument, match="factors in lanes"):
        read(document)
    stmts["gemm"] |= kept
    stmts["chunk_copy"]["src"] = stmts["chunk_copy"]["dst"]
    with pytest.raises(ShapeMismatch, match="128 rows of 4 columns for each chunk"):
        read(document)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), -0.0, 1e-45, 0.1])
def test_numbers_keep_every_bit(value):
    func = filled(Const(value, T.float32(1.0).dtype))
    stored = next(s for s in again(func).body.stmts[0].body.stmts if isinstance(s, nodes.Fill))
    assert np.float64(stored.value.value).tobytes() == np.float64(value).tobytes()


def filled(value):
    out = nodes.Buffer("out", (const(8),), T.float32(1.0).dtype)
    box = nodes.Region(out, (const(0),), (const(8),))
    launch = nodes.KernelLaunch(
        (Var("bx"),), (const(1),), (const(1),), nodes.Seq((nodes.Fill(box, value),))
    )
    return PrimFunc("main", (out,), nodes.Seq((launch,)))


def test_the_digest_forgets_where_the_source_stands_and_the_document_does_not():
    moved = dataclasses.replace(swizzled, span=dataclasses.replace(swizzled.span, line=4000))
    assert digest(moved) == digest(swizzled)
    document = write(swizzled)
    assert document["files"] == ["test_document.py"]  # without its folder
    assert digest(library("gemm")) != digest(library("gemm_epilogue"))


def test_an_error_names_the_place_in_the_source():
    document = write(swizzled)
    launch = next(s for s in document["body"]["stmts"] if s["node"] == "launch")
    copy = next(s for s in launch["body"]["stmts"] if s["node"] == "copy")
    copy["dst"][2] = [64, 32]
    with pytest.raises(ShapeMismatch) as caught:
        read(document)
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1)
                if "T.copy(A, tile)" in text)  # fmt: skip
    assert str(caught.value.span) == f"<test_document.py>:{line}:9"
    assert f"<test_document.py>:{line}:9" in str(caught.value)


def test_a_file_that_a_document_names_is_never_read():
    document = write(swizzled)
    document["files"] = [Path(ast.__file__).name]
    document["body"]["stmts"] = document["body"]["stmts"] * 2  # a launch whose block index is twice
    for stmt in document["body"]["stmts"]:
        stmt["grid"] = [0.5]
    with pytest.raises(TileError) as caught:
        read(document)
    assert "|" not in str(caught.value)  # no excerpt
    with pytest.raises(InvalidDocument, match="/files/0"):
        read({**document, "files": ["/etc/passwd"]})


def change(path, value):
    document = write(library("gemm"))
    at = document
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return document


LAUNCH = ("body", "stmts", 0)
FIRST = (*LAUNCH, "body", "stmts", 0)
BAD = {
    "no object": ([], "/: expected an object, found a list of 0"),
    "another schema": (change(("schema",), 2), "/schema: expected 1, found 2"),
    "a strange member": (change(("extra",), 1), "'extra'"),
    "no name": (change(("name",), "a b"), "/name: expected a name"),
    "a name as code": (change(("name",), 'x"; system("id'), "/name: expected a name"),
    "unknown node": (change((*FIRST, "node"), "goto"), "/body/stmts/0/body/stmts/0/node"),
    "missing member": (change(FIRST, {"node": "fill"}), "a member `dst` of fill, found none"),
    "wrong arity": (change((*LAUNCH, "grid"), [["add", 1]]), "/grid/0: expected 2 operands of add"),
    "unknown operator": (change((*LAUNCH, "grid"), [["eval", 1, 2]]), "expected one of var, const"),
    "ill-typed": (change((*LAUNCH, "grid"), [["add", 1, 0.5]]), "two values of one type for `add`"),
    "division by nothing": (change((*LAUNCH, "grid"), [["mod", 1, 0]]), "a divisor other than 0"),
    "dangling var": (change((*LAUNCH, "grid"), [["var", 99]]), "/grid/0/1: expected one of"),
    "dangling buffer": (change((*FIRST, "buffer"), -1), "expected one of"),
    "a circle": (change(("buffers", 0, "base"), 0), "/buffers/0/base: expected one of 0 buffers"),
    "too large a number": (change((*LAUNCH, "grid"), [2**40]), "/grid/0: expected a number"),
    "no such type": (change(("buffers", 0, "dtype"), "float12"), "/buffers/0/dtype"),
    "a text for a number": (change(("params",), "A"), "/params: expected a list"),
    "the same tensor twice": (change(("params",), [{"buffer": 0}] * 2), "each parameter once"),
    "outputs": (change(("attrs",), {"out_idx": [7]}), "/attrs/out_idx: expected positions"),
    "a place in no file": (change((*FIRST, "at"), [3, 1, 1]), "/at/0: expected one of"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_malformed_documents_are_refused_by_place(case):
    document, message = BAD[case]
    with pytest.raises(InvalidDocument) as caught:
        read(document)
    assert message in str(caught.value)
    assert caught.value.code == "TC205"


def test_what_the_verifier_refuses_is_refused():
    document = write(library("gemm"))
    alloc = document["body"]["stmts"][0]["body"]["stmts"].pop(0)
    assert alloc["node"] == "alloc"
    with pytest.raises(TileError) as caught:
        read(document)
    assert caught.value.code in ("TC104", "TC203")


def nested(levels):
    expr = 1
    for _ in range(levels):
        expr = ["add", expr, 1]
    return change((*LAUNCH, "grid"), [expr])


def test_limits():
    with pytest.raises(InvalidDocument, match="at most 96 levels"):
        read(nested(500))
    with pytest.raises(InvalidDocument, match="at most 50 nodes"):
        read(write(library("gemm")), Limits(nodes=50))
    shared = const(1)
    for _ in range(40):  # a tree of 2**40 leaves, from 40 nodes
        shared = Binary("add", shared, shared, shared.dtype)
    with pytest.raises(InvalidDocument, match="at most 100000 expressions"):
        write(filled(shared))


def test_hints_that_have_no_form_are_refused_where_they_are_written():
    note = nodes.Annotate("thing", object())
    func = PrimFunc("main", (), nodes.Seq((note,)))
    with pytest.raises(InvalidDocument, match="found object"):
        write(func)


def test_damaged_documents_are_refused_or_well_formed():
    documents = [write(library(n)) for n in ("gemm", "attention", "dequant_gemm", "softmax")]
    documents += [write(swizzled), write(user_programs.eager_matmul.program(M=64, N=64, K=64))]
    texts = [canonical_bytes(d) for d in documents]
    began, accepted, refused = time.process_time(), 0, []
    for seed in range(1500):
        rng, which = generator(seed), seed % len(documents)
        if seed % 4:
            document = damaged(documents[which], rng)
        else:
            document = parsed(flipped(texts[which], rng))
        try:
            found, _ = read(document)
        except TileError as error:
            refused.append(error)
            continue
        accepted += 1
        assert not faults(found)
        if accepted % 4 == 0:
            same(again(found), found)
    assert all(e.code.startswith("TC") and len(str(e)) < 20_000 for e in refused)
    assert accepted > 50  # a comment moved, a constant changed: still a program
    assert time.process_time() - began < 60


def test_a_kernel_from_a_document_computes():
    func = again(user_programs.matmul.program(64, 48, 32, block_M=32, block_N=16, block_K=16))
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((64, 32), (32, 48)))
    found = np.asarray(build(func)(a, b)).astype(np.float32)
    np.testing.assert_allclose(found, a.astype(np.float32) @ b, atol=0.05)


def test_the_order_of_an_atomic_update():
    @T.prim_func
    def main(N: T.Tensor((1,), "int32"), Y: T.Tensor((2,), "int32")):
        with T.Kernel(2, threads=1) as bx:
            Y[bx] = T.atomic_add(N[0], 1, memory_order="acq_rel", return_prev=True)
            T.atomic_add(N[0], 1)

    found = again(main)
    same(found, main)
    text = format_func(found)
    assert "atomic add acq_rel N[0], 1" in text
    assert "atomic add N[0], 1" in text
