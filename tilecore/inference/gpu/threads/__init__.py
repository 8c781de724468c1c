"""Threads of a block: which branches they take together, and where they must meet."""
