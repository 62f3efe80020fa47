"""Tests on Flower are collected only in the environment that has it (make test-flower)."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("flwr") else ["test_*.py"]
