"""Passes over a target on its way to bytes: quantize, strip, lower, plan memory, hold it against budgets."""
