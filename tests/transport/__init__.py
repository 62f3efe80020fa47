"""How messages travel: tests, and the helpers they share."""
