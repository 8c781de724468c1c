"""Arithmetic with a stated rounding (T.ieee_add and its kin), beside exact rational numbers.

A result is right if the exact value lies between it and its neighbour on the side that the mode
allows: nothing here computes a rounded value itself.
"""

import itertools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import tilecore.language as T
from tests.tilecore.cuda.emulated import lowered, run_emulated
from tests.tilecore.rocm.llvm_on_cpu import run_text
from tilecore.amd_compiler import lower_amd
from tilecore.codegen.cubin import read_features
from tilecore.codegen.nvrtc import compile_cuda
from tilecore.errors import TypeMismatch
from tilecore.interpreter import run as interpret
from tilecore.target import parse_target

OPS = {
    "add": (T.ieee_add, 2), "sub": (T.ieee_sub, 2), "mul": (T.ieee_mul, 2),
    "div": (T.ieee_fdiv, 2), "fma": (T.ieee_fmaf, 3), "rcp": (T.ieee_frcp, 1),
    "sqrt": (T.ieee_fsqrt, 1),
}  # fmt: skip
EXACT = {
    "add": lambda x, y, z: x + y, "sub": lambda x, y, z: x - y, "mul": lambda x, y, z: x * y,
    "div": lambda x, y, z: x / y, "fma": lambda x, y, z: x * y + z, "rcp": lambda x, y, z: 1 / x,
}  # fmt: skip
NAMES = [*OPS]


def program(mode, dtype, n, names=NAMES):
    @T.prim_func
    def main(X: T.Tensor((3, n), dtype), Y: T.Tensor((len(names), n), dtype)):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(n):
                for k, name in enumerate(names):
                    op, count = OPS[name]
                    Y[k, i] = op(*[X[j, i] for j in (0, 1, 2)[:count]], mode)

    return main


def given(dtype, count, seed):
    """Return operands: special pairs, random bits, values near each other, cancellation."""
    rng = np.random.default_rng(seed)
    info = np.finfo(dtype)
    tiny, big = info.smallest_subnormal, info.max
    edges = [0.0, -0.0, 1.0, -1.0, 3.0, np.inf, -np.inf, np.nan, tiny, -tiny, big, -big,
             info.tiny, 1 + info.eps, 1 - info.epsneg, info.tiny * 1.5]  # fmt: skip
    code = {"float32": np.uint32, "float64": np.uint64}[dtype]
    special = np.array(list(itertools.product(edges, repeat=2)), dtype).T
    special = np.stack([*special, np.resize(np.array(edges, dtype), special.shape[1])])
    bits = rng.integers(0, np.iinfo(code).max, (3, count), code, endpoint=True).view(dtype)
    near = (1 + rng.integers(-9, 9, (3, count)) * info.eps).astype(dtype)
    normal = rng.standard_normal((3, count)).astype(dtype)
    small = normal * 2.0 ** rng.integers(info.minexp - info.nmant, info.minexp // 2, (3, count))
    half = info.minexp // 2
    halves = normal * 2.0 ** rng.integers(half - info.nmant, half + 4, (3, count))
    with np.errstate(all="ignore"):
        found = [special, bits, near, normal, small.astype(dtype), halves.astype(dtype)]
        for group in (near, normal, halves):
            x, y, _ = group.astype(dtype)
            found.append(np.stack([x, y, -(x * y)]))
            found.append(np.stack([x, y, tiny * rng.integers(-3, 4, count)]))
        wide = normal * 2.0 ** rng.integers(-info.nmant - 3, info.nmant + 3, (3, count))
        found.append(wide)
        x = np.resize(info.max, count) * rng.uniform(0.4, 1, count)
        found.append(np.stack([x, rng.uniform(0.9, 2.5, count), -x * rng.uniform(0, 1, count)]))
    return np.concatenate([f.astype(dtype) for f in found], axis=1)


def near_ties(dtype):
    """Return x, y, z of which x * y + z is next to halves between two numbers."""
    p = np.finfo(dtype).nmant + 1
    eps, half = 2.0 ** (1 - p), 2.0**-p
    columns = []
    for sign, less in itertools.product((1, -1), (0, half, -half, 2.0 ** (-p // 2))):
        # Half the last place of z and a little more or less, beside an odd z and an even one.
        columns += [(half * (1 + sign * less * 2), 1 + eps, z * sign) for z in (1, 1 + eps, 1.5)]
        columns += [(2.0 ** (-p // 2) * less, sign * 2.0 ** (-p - 7), z) for z in (1, 1 + eps)]
        columns += [(1 + eps, 1 + half * 2**k, sign * less) for k in range(1, 4)]
    return np.array(columns, dtype).T


def is_right(name, mode, values, found):
    """Return whether a result is the exact one, rounded."""
    x, y, z = values
    if (name == "sqrt" and x < 0) or (name == "div" and y == 0) or (name == "rcp" and x == 0):
        return True
    if name == "sqrt":
        # The square tells on which side the root lies.
        return found == x or is_rounded(lambda v: v * abs(v), Fraction(x), mode, found)
    exact = EXACT[name](*(Fraction(v) for v in (x, y, z)))
    return found == 0 if exact == 0 else is_rounded(lambda v: v, exact, mode, found)


def is_rounded(measure, exact, mode, found):
    """Return whether ``measure`` of no other number is nearer on the side that the mode allows."""
    kind = type(found)
    with np.errstate(over="ignore"):
        lower, upper = (np.nextafter(found, kind(way * np.inf)) for way in (-1, 1))

    def place(number):
        return number if np.isinf(number) else measure(Fraction(float(number)))

    if np.isnan(found):
        return False
    if mode == "rn":
        return is_nearest(exact, *(finite(kind, v) for v in (lower, found, upper)), found)
    if mode == "ru" or (mode == "rz" and exact < 0):
        return place(lower) < exact <= place(found)
    return place(found) <= exact < place(upper)


def finite(kind, number):
    """Return a number; an infinity counts as what would come next."""
    beyond = Fraction(2) ** (int(np.finfo(kind).maxexp))
    return Fraction(float(number)) if np.isfinite(number) else beyond * int(np.sign(number))


def is_nearest(exact, lower, value, upper, found):
    rest, others = abs(value - exact), (abs(lower - exact), abs(upper - exact))
    is_odd = int(found.view(f"u{found.itemsize}")) % 2
    least = min(o for o, v in zip(others, (lower, upper), strict=True) if v != value)
    return rest < least or (rest == least and not is_odd)


def check(names, mode, x, y):
    for row, name in zip(y, names, strict=True):
        count = OPS[name][1]
        for column in range(x.shape[1]):
            values = [float(v) for v in x[:, column]]
            if all(map(math.isfinite, values[:count])):
                fine = [v if math.isfinite(v) else 0.0 for v in values]
                assert is_right(name, mode, fine, row[column]), (name, mode, values, row[column])


def same(a, b):
    """Assert that results are alike to the sign of a zero."""
    np.testing.assert_array_equal(a, b)
    numbers = ~np.isnan(a)
    np.testing.assert_array_equal(np.signbit(a)[numbers], np.signbit(b)[numbers])


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", ["rz", "ru", "rd", "rn"])
def test_every_target_rounds_the_exact_value(run_both, mode, dtype):
    x = np.concatenate([given(dtype, 60, 5), near_ties(dtype)], axis=1)
    names = NAMES if mode != "rn" else ["add", "sub", "mul", "fma"]
    func = program(mode, dtype, x.shape[1], names)
    empty = np.zeros((len(names), x.shape[1]), dtype)
    (compiled,) = run_both(func, [x], [empty], rtol=0, atol=0)
    check(names, mode, x, compiled)
    meant = empty.copy()
    interpret(func, x, meant)
    same(meant, compiled)
    for run, target in ((run_emulated, "h100"), (run_emulated, "gfx942"), (run_text, "gfx942")):
        found = empty.copy()
        run(func, target, [x, found])
        same(found, compiled)


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", ["rz", "ru", "rd"])
def test_signs_of_zeros_and_overflow(run_both, mode, dtype):
    info = np.finfo(dtype)
    x = np.array([[0, 0, -0.0, 1, -1, info.max, -info.max, info.tiny, -info.tiny, np.inf],
                  [0, -0.0, -0.0, -1, 1, info.max, info.max, info.tiny, info.tiny, 1],
                  [0, 0, 0, 1, 1, 0, 0, 0, 0, 1]], dtype)  # fmt: skip
    names = ["add", "mul", "fma"]
    empty = np.zeros((3, x.shape[1]), dtype)
    (found,) = run_both(program(mode, dtype, x.shape[1], names), [x], [empty], rtol=0, atol=0)
    less = -0.0 if mode == "rd" else 0.0
    big, least, inf = info.max, info.smallest_subnormal, np.inf
    above = {"ru": inf, "rz": big, "rd": big}[mode]
    below = {"ru": -big, "rz": -big, "rd": -inf}[mode]
    up, down = (least if mode == "ru" else 0.0), (-least if mode == "rd" else -0.0)
    same(found[0, :6], np.array([0, less, -0.0, less, less, above], dtype))
    same(found[1, :3], np.array([0, -0.0, 0], dtype))
    same(found[1, 5:], np.array([above, below, up, down, inf], dtype))
    same(found[2, :5], np.array([0, less, 0, less, less], dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_multiply_add_is_rounded_once(run_both, dtype):
    """x * y + z above a tie by less than a sum in twice the digits keeps."""
    p = np.finfo(dtype).nmant + 1
    eps = 2.0 ** (1 - p)
    # x * y = half the last place of z, and less than 2 ** -2p more; z is odd, or even.
    x = np.array([[1 + eps, 1 + eps, 2.0**-70, 1 + eps], [eps / 2, eps / 2, 2.0**-70, -eps / 2],
                  [1.0, 1 + eps, 1.0, 1 + eps]], dtype)  # fmt: skip
    func = program("rn", dtype, 4, ["fma"])
    (found,) = run_both(func, [x], [np.zeros((1, 4), dtype)], rtol=0, atol=0)
    same(found[0], np.array([1 + eps, 1 + 2 * eps, 1.0, 1.0], dtype))


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_multiply_add_of_16_bits_is_rounded_once(run_both, dtype):
    kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 2**16, (3, 400), np.uint16)
    codes[2, :200] = rng.integers(0, 4, 200)  # least numbers behind a product
    x = codes.view(kind)
    func = program("rn", dtype, 400, ["fma"])
    (found,) = run_both(func, [x], [np.zeros((1, 400), kind)], rtol=0, atol=0)
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float64)
    for i in range(400):
        if np.isfinite(wide[:, i]).all():
            exact = Fraction(wide[0, i]) * Fraction(wide[1, i]) + Fraction(wide[2, i])
            rest = abs(beside(found[0, i], kind) - exact)
            assert all(rest <= abs(beside(v, kind) - exact) for v in neighbours(found[0, i], kind))
    for run, target in ((run_emulated, "h100"), (run_text, "gfx942")):
        again = np.zeros((1, 400), kind)
        run(func, target, [x, again])
        same(again.astype(np.float64), found.astype(np.float64))


def neighbours(value, kind):
    code = int(np.asarray(value).view(np.uint16))
    others = [c for c in (code - 1, code + 1) if 0 <= c < 2**16]
    found = np.array(others, np.uint16).view(kind)
    with np.errstate(invalid="ignore"):
        return [v for v in found if not np.isnan(v)]


def beside(value, kind):
    """Return a number; an infinity counts as what would come next."""
    limit = 2.0 ** (16 if kind is np.float16 else 128)
    return Fraction(float(np.clip(np.float64(value), -limit, limit)))


@pytest.mark.parametrize(("dtype", "text"), [("float32", "__fadd_rz"), ("float64", "__dadd_rz")])
def test_nvidia_gpus_have_an_instruction(dtype, text):
    *_, source = lowered(program("rz", dtype, 64), "h100")
    assert text in source.text


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_round_to_nearest_only(dtype):
    with pytest.raises(TypeMismatch, match="Only rounding mode 'rn' is available for half"):
        T.ieee_add(T.Cast(dtype, 1.0), T.Cast(dtype, 2.0), "rz")
    with pytest.raises(ValueError, match="Invalid rounding mode"):
        T.ieee_fsqrt(4.0, "up")


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_product_that_is_added_is_rounded_before(run_both, dtype):
    """No compiler contracts x * y with the sum, though each may do so with a plain one."""
    n = 200
    x = np.random.default_rng(3).standard_normal((3, n)).astype(dtype)

    @T.prim_func
    def main(X: T.Tensor((3, n), dtype), Y: T.Tensor((4, n), dtype)):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(n):
                a, b, c = X[0, i], X[1, i], X[2, i]
                Y[0, i] = T.ieee_add(a * b, c, "ru")
                Y[1, i] = T.ieee_add(a * b, c)
                Y[2, i] = T.ieee_mul(a, b) + c
                Y[3, i] = T.ieee_sub(c, T.ieee_mul(a, b))

    empty = np.zeros((4, n), dtype)
    (found,) = run_both(main, [x], [empty], rtol=0, atol=0)
    product = x[0] * x[1]
    check(["add"], "ru", np.stack([product, x[2], x[2]]), found[:1])
    same(found[1:], np.stack([product + x[2], product + x[2], x[2] - product]))
    again = empty.copy()
    run_text(main, "gfx942", [x, again])
    same(again, found)
    if dtype == "float64":
        *_, code = lower_amd(main, parse_target("gfx942"))
        (kernel,) = code.kernels.values()
        assert kernel.opcodes["v_mul_f64"] > 0
        assert not [name for name in kernel.opcodes if name.startswith("v_fma")]


def test_nvidias_compiler_contracts_no_stated_product():
    @T.prim_func
    def main(X: T.Tensor((3, 64), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                Y[i] = T.ieee_add(T.ieee_mul(X[0, i], X[1, i]), X[2, i])

    *_, source = lowered(main, "h100")
    (features,) = read_features(compile_cuda(source.text, source.arch).data, source.arch).values()
    assert features.opcodes["FMUL"] > 0
    assert features.opcodes["FADD"] > 0
    assert "FFMA" not in features.opcodes
