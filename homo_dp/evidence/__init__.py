"""Attempts to refute a claimed epsilon, and the documents that record what was claimed and
tried.
"""
