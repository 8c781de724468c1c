"""What surrogates learn from: products of knobs, powers of two, places in a cube."""

import numpy as np

from recommender.knob_shapes import places, shapes


def test_shapes_tell_products_and_powers_of_two():
    values = np.array([[16, 1.0], [32, 1], [32, 2], [64, 2]])  # the second has two: no size
    np.testing.assert_allclose(shapes(values), [[16, 1, 4], [32, 1, 5], [32, 2, 5], [64, 2, 6]])
    assert shapes(np.array([[3.0]])).tolist() == [[3.0]]
    sizes = np.array([[0.0, 4], [6, 8], [3, 12]])
    found = [[0, 4, 2, 0, 2], [6, 8, np.log2(7) + 3, 1, 3], [3, 12, 2 + np.log2(12), 0, 2]]
    np.testing.assert_allclose(shapes(sizes), found, rtol=1e-6)


def test_places_tell_sizes_by_their_logarithm_and_how_often_2_divides_them():
    values = np.array([[16, 1, 5, 0], [96, 2, 5, 1], [64, 4, 5, 1], [256, 8, 5, 0.0]])
    sizes = [0, np.log2(6) / 4, 0.5, 1]
    twos = [0, 0.25, 0.5, 1]  # of 16, 32 (96 = 3 * 32), 64, 256
    powers = [0, 1 / 3, 2 / 3, 1]  # the second column says the same by both
    np.testing.assert_allclose(places(values).T, [sizes, twos, powers, [0, 1, 1, 0]], atol=1e-12)
    assert places(np.array([[3.0], [3.0]])).tolist() == [[0.0], [0.0]]
    np.testing.assert_allclose(places(np.array([[-4.0], [0], [4]])), [[0], [0.5], [1]])
