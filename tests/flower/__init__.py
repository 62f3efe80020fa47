"""Federations on a real SuperLink with real SuperNodes (make test-flower)."""
