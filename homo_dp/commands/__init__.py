"""Commands whose name in the package is a function of the Python API: ``homo_dp.stats`` and others."""
