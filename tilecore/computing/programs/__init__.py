"""Kernels of computations as text: tile programs of elements, rows, products and attention."""
