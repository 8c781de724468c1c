"""``tilelang.carver.roller``: names that programs import."""
