"""Sums of clipped per-sample gradients, and what may be trained that way."""
