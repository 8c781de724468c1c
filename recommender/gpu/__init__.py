"""The analytic model of GPUs: blocks, registers, shared memory, limits."""
