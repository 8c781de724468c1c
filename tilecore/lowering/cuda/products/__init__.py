"""Matrix products as TIR for GPUs, one module for each kind of matrix unit."""
