"""Flower as a transport, without Flower: the two ends, and a fleet that loses what it carries."""
