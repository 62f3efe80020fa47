"""Randomness that privacy rests on: the cryptographic generator, normals, the grid of releases."""
