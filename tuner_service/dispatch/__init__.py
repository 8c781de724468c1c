"""Dispatch tables: which config serves which shape, from the log or from tuning."""
