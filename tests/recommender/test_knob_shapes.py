"""Features that trees learn from: products of knobs, powers of two."""

import numpy as np

from recommender.knob_shapes import shapes


def test_shapes_tell_products_and_powers_of_two():
    values = np.array([[16, 1.0], [32, 1], [32, 2], [64, 2]])  # the second has two: no size
    np.testing.assert_allclose(shapes(values), [[16, 1, 4], [32, 1, 5], [32, 2, 5], [64, 2, 6]])
    assert shapes(np.array([[3.0]])).tolist() == [[3.0]]
    sizes = np.array([[0.0, 4], [6, 8], [3, 12]])
    found = [[0, 4, 2, 0, 2], [6, 8, np.log2(7) + 3, 1, 3], [3, 12, 2 + np.log2(12), 0, 2]]
    np.testing.assert_allclose(shapes(sizes), found, rtol=1e-6)
