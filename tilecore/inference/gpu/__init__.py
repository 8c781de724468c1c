"""Tile inference for GPUs: who holds what, where shared tiles lie, which instructions run."""
