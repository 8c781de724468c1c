"""Nests of independent points, reductions and scans as TIR for GPUs."""
