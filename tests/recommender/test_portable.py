"""Programs of users as data: traced once where that is honest, checked, and asked like at home."""

import json
from dataclasses import replace

import numpy as np
import pytest

import tilecore as tilelang
import tilecore.language as T
from recommender.errors import EmptySpace, NoClosedForm, NothingOpen
from recommender.hardware import load_profile
from recommender.open_programs import advise
from recommender.portable_tracing import portable
from recommender.program_table import tabulate
from tests.recommender import user_programs as programs
from tests.recommender.support import HOST
from tilecore.advice import question_of
from tilecore.compiler import check
from tilecore.errors import InvalidConfig, InvalidDocument, InvalidProblem, TileError
from tilecore.ir.document import digest
from tilecore.portable import parse, read_portable

H100 = load_profile("h100")
SIZES = {"M": 1000, "N": 1024, "K": 2048}
ATTENTION = {"B": 4, "H": 16, "S": 2048, "D": 128}


def ask(program, *args, target="h100", space=None, top_k=5, **given):
    return question_of(program, args, given, target=target, space=space, top_k=top_k)


def sent(program, *args, hardware=H100, **keywords):
    """Return the program as who gets it reads it."""
    made = portable(ask(program, *args, **keywords), hardware)
    found = parse(made.to_bytes())
    assert found.digest == made.digest
    return found


def table(program, problem, hardware=H100, **keywords):
    target = hardware.target or "avx512"
    return tabulate(program, program.parse_problem(problem), hardware,
                    lambda f, k: check(f, target, k), **keywords)  # fmt: skip


CASES = {
    "matmul": (programs.matmul, SIZES, {"M", "N", "K"}, ()),
    "eager_matmul": (programs.eager_matmul, SIZES, {"M", "N", "K"}, ()),
    "attention": (programs.attention, ATTENTION, {"B", "H", "S"}, ()),
    "branching": (programs.branching, SIZES, {"M", "N"}, ("block_M", "block_K")),
    "branching_inside": (programs.branching_inside, {"M": 300, "N": 400}, {"M", "N"},
                         ("block_N",)),
}  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("name", CASES)
def test_what_can_be_a_symbol_is_one_and_the_rest_has_variants(name):
    program, sizes, opened, chosen = CASES[name]
    found = sent(program, **sizes)
    assert set(found.sizes) == opened
    assert found.chosen == chosen
    assert len(found.variants) == 1 or chosen
    assert len(found.variants) <= 64


@pytest.mark.few(2)
@pytest.mark.parametrize("name", CASES)
def test_values_put_in_give_the_program_that_python_traces(name):
    program, sizes, opened, _ = CASES[name]
    question = ask(program, **sizes)
    found = sent(program, **sizes)
    for other in (sizes, {k: v * 3 if k in opened else v for k, v in sizes.items()}):
        for variant in found.variants[::7]:
            knobs = {k: 48 if "block" in k else 2 for k in question.knobs} | dict(variant.values)
            made = found.program({**other, **knobs})
            assert digest(made) == digest(question.trace({**other, **knobs}))


def test_one_document_serves_all_sizes_wherever_it_was_traced():
    first, second = (sent(programs.matmul, **{k: v * n for k, v in SIZES.items()}) for n in (1, 5))
    assert first.digest == second.digest
    other = sent(programs.matmul, **SIZES, dtype="bfloat16")
    assert other.digest != first.digest


def test_what_was_left_out_is_told():
    values = {"block_M": list(range(16, 1296, 16)), "block_N": [64, 128]}
    made = portable(ask(programs.branching, **{**SIZES, "K": 96}, space=values), H100)
    assert len(made.variants) <= 64
    first, second, third = made.notes
    assert first.startswith("a variant for each value of block_M, block_K")
    assert second.startswith("at most 64 variants: block_M 16, ")
    assert third.endswith("make no program: AssertionError: block_K divides K")


def test_positional_sizes():
    by_place = sent(programs.scaled, 1 << 16, 2.0)
    assert by_place.sizes == ("N",)
    assert by_place.digest == sent(programs.scaled, N=1 << 12, factor=2.0).digest


def test_extents_of_tensors_are_sizes():
    a, b = (np.zeros(shape, np.float16) for shape in ((64, 96), (96, 128)))
    found = sent(programs.eager_matmul, a, b)
    assert found.digest == sent(programs.eager_matmul, M=1, N=2, K=3).digest


@pytest.mark.few(1)
@pytest.mark.covering
@pytest.mark.parametrize("device", ["h100", "host"])
@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_that_of_the_program_itself(name, device):
    program, sizes, opened, _ = CASES[name]
    hardware = {"h100": H100, "host": HOST}[device]
    target = hardware.target or "avx512"
    question = ask(program, **sizes, target=device, top_k=4)
    local = advise(question, hardware, lambda f, k: check(f, target, k))
    found = sent(program, hardware=hardware, **sizes, target=device)
    made = table(found, {k: v for k, v in sizes.items() if k in opened}, hardware)
    best = [(dict(made.configs[r]), made.time_s[r]) for r in made.accepted[:4]]
    assert best == [({**r.config, **r.lowering}, pytest.approx(r.time_s)) for r in local]
    assert (made.legal, made.work_flop) == (local.legal, pytest.approx(local.work_flop))


def test_what_the_user_fixed_stays_fixed():
    found = sent(programs.matmul, **SIZES, block_K=64, space={"block_M": [64, 128]})
    assert "block_K" not in [k.name for k in found.knobs]
    made = table(found, SIZES, fixed={"block_N": 128})
    assert {c["block_N"] for c in made.configs} == {128}
    assert {c["block_M"] for c in made.configs} <= {64, 128}
    variants = sent(programs.branching, **SIZES)
    assert {c["block_M"] for c in table(variants, {"M": 1000, "N": 1024},
                                        fixed={"block_M": 64}).configs} == {64}  # fmt: skip


def test_values_that_are_too_many_to_look_at_all_are_told():
    """Of a program as data every other value of the user's was dropped without a word."""
    by_8 = tuple(range(8, 257, 8))
    space = {"block_M": by_8, "block_N": by_8, "block_K": by_8[1::4]}
    question = ask(programs.matmul, **SIZES, space=space)
    local = advise(question, H100, lambda f, k: check(f, "h100", k))
    made = table(sent(programs.matmul, **SIZES, space=space), SIZES)
    rest = 32 * 8 * 5 * 7  # block_N, block_K, stages and threads
    expected = (
        f"looked at {6 * rest:,} of {32 * rest:,} combinations of values: "
        "block_M 8, 16, 32, 64, 128, 256"
    )
    assert local.notes[:1] == made.notes[:1] == (expected,)
    assert made.enumerated == 6 * rest
    branching = {"block_M": (64, 128), "block_N": tuple(range(4, 257, 4)),
                 "block_K": by_8, "threads": tuple(range(32, 1025, 16))}  # fmt: skip
    asked = ask(programs.branching, **SIZES, space=branching)
    notes = advise(asked, H100, lambda f, k: check(f, "h100", k)).notes
    assert any(note.startswith("looked at ") for note in notes)


BAD = {
    "not a knob": (lambda p: table(p, SIZES, fixed={"block": 1}), InvalidConfig, "a knob among"),
    "not a number": (lambda p: table(p, SIZES, fixed={"block_M": "x"}), InvalidConfig, "positive"),
    "no size": (lambda p: table(p, {"M": 1}), InvalidProblem, "K: expected an integer"),
    "another size": (lambda p: table(p, {**SIZES, "Q": 1}), InvalidProblem, "unknown field"),
    "size 0": (lambda p: table(p, {**SIZES, "K": 0}), InvalidProblem, "from 1 to"),
    "a flag": (lambda p: table(p, {**SIZES, "K": True}), InvalidProblem, "found True"),
    "no legal config": (lambda p: table(p, SIZES, fixed={"block_M": 1 << 20}), EmptySpace,
                        "no legal config"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_questions(case):
    call, error, message = BAD[case]
    with pytest.raises(error, match=message):
        call(sent(programs.matmul, **SIZES))


def test_variants_that_were_not_sent():
    found = sent(programs.branching, **SIZES)
    with pytest.raises(InvalidConfig, match="variants sent"):
        table(found, {"M": 64, "N": 64}, fixed={"block_M": 17})


def test_sizes_that_a_call_finds_out():
    found = sent(programs.dynamic, 512)
    assert (found.sizes, found.call_sizes) == (("N",), ("M",))
    made = table(found, {"M": 4096, "N": 512})
    assert made.legal > 1
    assert made.time_s[0] < table(found, {"M": 65536, "N": 512}).time_s[0]
    with pytest.raises(NoClosedForm):
        advise(ask(programs.dynamic, 512), H100, lambda f, k: check(f, "h100", k))


@tilelang.jit
def größer(Länge, block_N=64):
    @T.prim_func
    def main(A: T.Tensor((Länge,), "float32"), B: T.Tensor((Länge,), "float32")):
        with T.Kernel(T.ceildiv(Länge, block_N), threads=128) as bx:
            for i in T.Parallel(block_N):
                B[bx * block_N + i] = A[bx * block_N + i] * 2.0

    return main


def test_names_of_other_letters_travel():
    """TC205: what Python takes for a name could be recommended for, but neither sent nor tuned."""
    question = ask(größer, Länge=4096)
    made = portable(question, H100)
    found = parse(made.to_bytes())
    assert (found.name, found.sizes, found.digest) == ("größer", ("Länge",), made.digest)
    assert table(found, {"Länge": 4096}).legal > 1
    for name, expected in (("2x", "a name, found 2x"), ("x" * 129, "of at most 128 characters")):
        with pytest.raises(InvalidDocument, match=expected):
            parse(json.dumps(made.to_json() | {"name": name}).encode())


def test_sizes_beyond_64_bits_are_refused():
    """An OverflowError, "unexpected" to the command line."""
    with pytest.raises(TileError, match=r"TC202.*an integer below 2\^63"):
        advise(ask(größer, Länge=10**23), H100, lambda f, k: check(f, "h100", k))


@tilelang.jit
def guessing(N, block_N=64):
    """Python that looks at the kind of a knob, which a symbol would change without a word."""
    step = block_N if isinstance(block_N, int) else 7

    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block_N), threads=128) as bx:
            for i in T.Parallel(block_N):
                B[bx * block_N + i] = A[bx * block_N + i] * step

    return main


def test_a_symbol_that_would_say_something_else_is_none():
    found = sent(guessing, 4096)
    assert (found.sizes, found.chosen) == (("N",), ("block_N",))
    assert len(found.variants) > 1


def test_the_program_s_own_faults_and_nothing_open():
    with pytest.raises(TileError, match="missing"):
        sent(programs.faulty, 512)
    with pytest.raises(NothingOpen):
        sent(programs.scaled, 512, 2.0, block_N=64)


def document(**changes):
    found = portable(ask(programs.branching, **SIZES, space={"block_M": [64, 128]}), H100).to_json()
    return {**found, **changes}


REFUSED = {
    "no object": ([], "/: expected an object"),
    "schema": ({"schema": 2}, "/schema"),
    "name": ({"name": "../x"}, "/name"),
    "two of one name": ({"sizes": ["block_M"]}, "/knobs: expected different names"),
    "no variants": ({"variants": []}, "/variants: expected at least one"),
    "a knob of the lowering": ({"lowering": {"fixed": {"nasm": 1}}}, "/lowering/fixed"),
    "values of two kinds": ({"knobs": [{"name": "a", "values": [1, "b"]}]}, "/knobs/0/values"),
    "symbols": ({"sizes": ["M", "N", "Q"]}, "/variants/0/program/vars/2"),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("case", REFUSED)
def test_malformed_programs(case):
    changes, message = REFUSED[case]
    value = document(**changes) if isinstance(changes, dict) else changes
    with pytest.raises(InvalidDocument) as caught:
        read_portable(value)
    assert message in str(caught.value)


def test_variants_must_agree_with_each_other():
    whole = document()
    one, two = whole["variants"][:2]
    with pytest.raises(InvalidDocument, match="two variants for the same"):
        read_portable({**whole, "variants": [one, one]})
    fewer = {k: v for k, v in two["values"].items() if k != "block_M"}
    with pytest.raises(InvalidDocument, match="/variants/1/program/vars/2"):
        read_portable({**whole, "variants": [one, {**two, "values": fewer}]})


TEXTS = {
    "no JSON": (b"{", "JSON in UTF-8"),
    "no UTF-8": (b"\xff\xfe", "JSON in UTF-8"),
    "twice": (b'{"schema": 1, "schema": 1}', "twice"),
    "not a number": (b'{"schema": NaN}', "NaN"),
    "deep": (b"[" * 100_000, "nesting"),
    "long": (b" " * (1 << 21), "bytes"),
    "digits": (b'{"schema": ' + b"1" * 5000 + b"}", "JSON in UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("case", TEXTS)
def test_texts_that_are_no_documents(case):
    text, message = TEXTS[case]
    with pytest.raises(InvalidDocument, match=message):
        parse(text)


def test_the_digest_forgets_places_and_spelling():
    made = portable(ask(programs.matmul, **SIZES), H100)
    pretty = json.dumps(made.to_json(), indent=3)
    assert parse(pretty).digest == made.digest
    moved = made.to_json()
    moved["variants"][0]["program"]["body"].pop("at", None)
    assert read_portable(moved).digest == made.digest
    knob = replace(made.knobs[0], default=32)
    assert replace(made, knobs=(knob, *made.knobs[1:])).digest != made.digest
