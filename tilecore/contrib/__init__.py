"""``tilelang.contrib``: what programs ask of the CUDA toolchain."""
