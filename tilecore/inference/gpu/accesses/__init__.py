"""Accesses of memory on GPUs: how many neighbours move at once, and which banks conflict."""
