"""Tile inference for CPUs: lanes, register tiles, where tiles lie, what runs in one nest."""
