"""What stands in for instructions of AVX-512 and AMX: by their manual, and by a machine's own."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from tests.tilecore.x86_paths import TILES, VECTOR, is_native
from tests.tilecore.x86_probes import FLOATS, PRODUCTS, VECTORS, Probes
from tilecore import amx

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
BFLOAT = ml_dtypes.bfloat16
TINY = float(np.finfo(np.float32).tiny)
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1.0, -1.0, TINY, TINY / 8, -TINY / 2**20, 2**-149,
     3.4e38, -3.4e38, 0.75, 1.5],
    np.float32,
)  # fmt: skip
ESTIMATES = ("rcp14", "rsqrt14")


@pytest.fixture(scope="module")
def probes(tmp_path_factory):
    return Probes(tmp_path_factory.mktemp("probes"), is_emulated=True)


def any_floats(rng):
    """Floats of all exponents, infinities and NaN among them."""
    bits = rng.integers(0, 2**32, 16, dtype=np.uint64).astype(np.uint32)
    return bits.view(np.float32)


def samples(count=60):
    """Vectors of special values, of any bits, and of numbers of usual sizes."""
    rng = np.random.default_rng(5)
    yield SPECIAL
    yield SPECIAL[::-1].copy()
    for _ in range(count):
        yield any_floats(rng)
        yield (rng.standard_normal(16) * 2.0 ** rng.integers(-40, 40, 16)).astype(np.float32)


def test_powers_fractions_and_mantissas(probes):
    for x in samples():
        wide, usual = x.astype(np.float64), np.isfinite(x) & (x != 0)
        magnitude, exponent = np.frexp(np.abs(wide))  # 1/2 <= magnitude < 1
        found = probes("getexp", x)
        np.testing.assert_array_equal(found[usual], exponent[usual] - 1)
        np.testing.assert_array_equal(found[~usual], np.abs(np.where(x == 0, np.inf, x))[~usual]
                                      * np.where(x == 0, -1, 1)[~usual])  # fmt: skip
        found = probes("mantissa", x)
        above = usual & (x > 0)
        wanted = np.where(magnitude < 0.75, magnitude * 2, magnitude)
        np.testing.assert_array_equal(found[above], wanted[above])
        assert np.isnan(found[(usual & (x < 0)) | np.isnan(x) | (x == -np.inf)]).all()
        assert (found[(x == 0) | (x == np.inf)] == 1).all()
        found = probes("fraction", x)
        with np.errstate(invalid="ignore"):
            exact = np.where(np.isinf(wide), 0, wide - np.floor(wide))
        wanted = exact.astype(np.float32)  # and now down, as the manual has it: below 1
        is_above = (wanted > exact) | (wanted == 1)
        wanted = np.where(is_above, np.nextafter(wanted, np.float32(-1)), wanted)
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(
            probes("every_second", x, np.arange(16, dtype=np.float32)),
            np.where(np.arange(16) % 2 == 0, wanted, np.arange(16)),
        )


def test_scaling_rounds_once(probes):
    powers = np.random.default_rng(6).uniform(-300, 300, (200, 16)).astype(np.float32)
    powers[::3, :4] = [np.inf, -np.inf, np.nan, 1e30]
    for x, power in zip(samples(), powers, strict=False):
        with np.errstate(over="ignore", invalid="ignore"):
            wanted = x * np.exp2(np.floor(power.astype(np.float64)))
            np.testing.assert_array_equal(
                probes("scalef", x, power), wanted.astype(np.float32), err_msg=f"{x} {power}"
            )


def test_estimates_are_as_far_off_as_the_manual_allows(probes):
    errors = {name: [] for name in ESTIMATES}
    for x in samples(500):
        usual = np.isfinite(x) & (np.abs(x) > 2.0**-126) & (np.abs(x) < 2.0**126)
        exact = {"rcp14": 1 / x[usual].astype(np.float64)}
        errors["rcp14"] += list(probes("rcp14", x)[usual] / exact["rcp14"] - 1)
        usual = np.isfinite(x) & (x > 0)
        exact = 1 / np.sqrt(x[usual].astype(np.float64))
        errors["rsqrt14"] += list(probes("rsqrt14", x)[usual] / exact - 1)
    for found in errors.values():
        assert 2.0**-14 * 0.99 < max(found) < 2.0**-14
        assert -(2.0**-14) < min(found) < -(2.0**-14) * 0.99
    powers = 4.0 ** np.arange(-8, 8, dtype=np.float32)
    np.testing.assert_array_equal(probes("rcp14", powers), 1 / powers)
    np.testing.assert_array_equal(probes("rsqrt14", powers), 1 / np.sqrt(powers))
    edges = np.resize(np.array([0, -0.0, np.inf, -np.inf, np.nan, 2.0**-128, -(2.0**-149), -4],
                               np.float32), 16)  # fmt: skip
    np.testing.assert_array_equal(
        probes("rcp14", edges)[:7], [np.inf, -np.inf, 0, -0.0, np.nan, np.inf, -np.inf]
    )
    np.testing.assert_array_equal(
        probes("rsqrt14", edges)[:6], [np.inf, -np.inf, 0, np.nan, np.nan, 2.0**64]
    )


def test_lanes_go_where_the_index_says(probes):
    rng = np.random.default_rng(7)
    x, z = (rng.standard_normal(16).astype(np.float32) for _ in range(2))
    index = rng.integers(-(2**31), 2**31, 16).astype(np.int32)
    np.testing.assert_array_equal(probes("permute", x, index), x[index & 15])
    np.testing.assert_array_equal(
        probes("look_up", x, index, z), np.concatenate([x, z])[index & 31]
    )
    halves = rng.integers(0, 2**16, (2, 32)).astype(np.uint16)
    found = probes("permute_halves", *halves, dtype=np.uint16, count=32)
    np.testing.assert_array_equal(found, halves[0][halves[1] & 31])


def test_sums_of_integer_products(probes):
    rng = np.random.default_rng(8)
    for sums in (rng.integers(-(2**31), 2**31, 16), np.full(16, 2**31 - 5)):
        a, b = rng.integers(0, 256, 64).astype(np.uint8), rng.integers(-128, 128, 64)
        a[:8], b[:4], b[4:8] = 255, 127, -128
        products = (a.astype(np.int64) * b).reshape(16, 4).sum(1)
        found = probes("bytes", sums.astype(np.int32), a, b.astype(np.int8), dtype=np.int32)
        np.testing.assert_array_equal(found, (sums + products).astype(np.int32))
        half = sums[:8].astype(np.int32), a[:32], b[:32].astype(np.int8)
        found = probes("bytes_256", *half, dtype=np.int32, count=8)
        np.testing.assert_array_equal(found, (sums + products)[:8].astype(np.int32))
    x, y = rng.integers(-(2**15), 2**15, (2, 32))
    x[:2] = y[:2] = -(2**15)
    found = probes("halves", x.astype(np.int16), y.astype(np.int16), dtype=np.int32)
    np.testing.assert_array_equal(found, (x * y).reshape(16, 2).sum(1).astype(np.int32))


def test_halves_become_floats(probes):
    for first in range(0, 2**16, 16):
        x = np.arange(first, first + 16).astype(np.uint16)
        np.testing.assert_array_equal(probes("widen", x, x), x.view(np.float16).astype(np.float32))


def test_rounding_to_bfloat16(probes):
    for x in samples():
        wanted = np.where(np.abs(x) < TINY, np.copysign(np.float32(0), x), x).astype(BFLOAT)
        found = probes("round", x, dtype=BFLOAT)
        np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))
        np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))
        both = probes("round_two", -x, x, dtype=BFLOAT, count=32).astype(np.float32)
        np.testing.assert_array_equal(both, np.concatenate([found, -found]).astype(np.float32))


def flushed(x):
    return np.where(np.abs(x) < TINY, 0, x)


def test_pairs_of_bfloat16_flush_what_is_subnormal(probes):
    rng = np.random.default_rng(9)
    for scale in (1.0, 2.0**-66, 2.0**-130):
        sums = (rng.standard_normal(16) * scale**2).astype(np.float32)
        y, z = (
            (rng.standard_normal((16, 2)) * scale).astype(np.float32).astype(BFLOAT)
            for _ in range(2)
        )
        wide = [flushed(o.astype(np.float64)) for o in (y, z)]
        wanted = flushed(sums.astype(np.float64))
        for column in (1, 0):  # exact in float64 but for the last rounding
            wanted = flushed(
                (wanted + wide[0][:, column] * wide[1][:, column]).astype(np.float32)
            ).astype(np.float64)
        found = probes("pairs", sums, y, z)
        np.testing.assert_allclose(found, wanted, rtol=2**-23, atol=0)
        np.testing.assert_array_equal(found == 0, wanted == 0)


@pytest.mark.parametrize("shape", [(16, 16, 16), (5, 16, 3), (1, 7, 16), (16, 1, 1)])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_tiles(probes, name, shape):
    c, a, b, wanted = product_of_tiles(name, shape)
    found = probes.multiply(name, c, a, b, shape)
    rest = found.copy()
    m, n, _ = shape
    rest[:m, :n] = c[:m, :n]
    np.testing.assert_array_equal(rest, c)  # nothing beyond rows and columns is written
    if name == "tdpbf16ps":
        np.testing.assert_allclose(found[:m, :n], wanted, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(found[:m, :n], wanted.astype(np.int32))


def product_of_tiles(name, shape):
    """Return sums, operands and the exact result of the part that ``shape`` names."""
    rng = np.random.default_rng(sum(shape))
    m, n, k = shape
    if name == "tdpbf16ps":
        a, b = (rng.standard_normal((16, 32)).astype(np.float32).astype(BFLOAT) for _ in range(2))
        c, group = rng.standard_normal((16, 16)).astype(np.float32), 2
    else:
        low, high, kind = (-128, 128, np.int8) if name == "tdpbssd" else (0, 256, np.uint8)
        a, b = (rng.integers(low, high, (16, 64)).astype(kind) for _ in range(2))
        a[0], b[0] = low, low
        c, group = rng.integers(-(2**31), 2**31, (16, 16)).astype(np.int32), 4
    left = a.astype(np.float64).reshape(16, 16, group)[:m, :k]
    right = b.astype(np.float64).reshape(16, 16, group)[:k, :n]
    wanted = c[:m, :n] + np.einsum("mkg,kng->mn", left, right)
    return c, a, b, wanted if group == 2 else wanted.astype(np.int64)


@pytest.mark.skipif(not is_native(VECTOR), reason="this machine has no AVX-512 with BF16 and VNNI")
def test_the_machine_computes_the_same_vectors(probes, tmp_path):
    machine, rng = Probes(tmp_path, is_emulated=False), np.random.default_rng(10)
    names = [name for name in VECTORS if name not in ESTIMATES]
    for name, x in itertools.product(names, samples()):
        operands = [x, *(rng.integers(0, 2**16, 32).astype(np.uint16) for _ in range(2))]
        found, wanted = (p(name, *operands, dtype=np.uint16, count=32) for p in (probes, machine))
        if VECTORS[name][1] == FLOATS:  # which NaN it is does not matter
            found, wanted = found.view(np.float32), wanted.view(np.float32)
        np.testing.assert_array_equal(found, wanted, err_msg=name)


@pytest.mark.skipif(not is_native(TILES), reason="this machine has no tiles of AMX")
def test_the_machine_computes_the_same_tiles(probes, tmp_path):
    assert amx.request()
    machine = Probes(tmp_path, is_emulated=False)
    for name, shape in itertools.product(PRODUCTS, ((16, 16, 16), (5, 16, 3), (16, 1, 1))):
        c, a, b, _ = product_of_tiles(name, shape)
        found, wanted = (p.multiply(name, c, a, b, shape) for p in (probes, machine))
        np.testing.assert_array_equal(found.view(np.int32), wanted.view(np.int32))
