"""Programs of library kernels as GPUs want them, where the CPU's structure does not suit."""
