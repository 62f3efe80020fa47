"""Plots and the privacy report of a run, made of its own files."""
