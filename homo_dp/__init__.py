"""Horizontal federated learning with differential privacy that holds."""

__version__ = "0.1.0"
