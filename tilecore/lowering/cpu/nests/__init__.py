"""Parallel nests on CPUs: vectors along their last axis, and special forms of them."""
