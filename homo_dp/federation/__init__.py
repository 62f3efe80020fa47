"""Parties, the aggregator, the round loop, and one file a mechanism."""
