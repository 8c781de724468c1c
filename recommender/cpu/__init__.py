"""The analytic model of CPUs: what the lowering will choose, and what that costs."""
