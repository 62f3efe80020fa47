"""Puts the parts together for one job: simulation, processes, dry run, sweeps, outputs."""
