"""Dispatch tables: which configs serve a distribution of shapes."""
