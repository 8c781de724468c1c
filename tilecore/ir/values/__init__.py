"""Values in NumPy: what expressions, folds and conversions compute, type by type."""
