"""Attempts to refute a claimed epsilon, and the papers that record what was claimed and tried."""
