"""Copies on GPUs that run ahead, or that the tensor memory accelerator does."""
