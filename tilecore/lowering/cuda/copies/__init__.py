"""Copies that run ahead of their use, and those of the tensor memory accelerator, as TIR."""
