"""Readers of foreign bytes under mutated inputs: ``make fuzz`` looks for failures,
``test_seeds.py`` repeats old ones.

A target is a function ``fuzz_<reader>(data: bytes)`` in a module ``targets*.py`` of this folder. It
gives the bytes to a reader and returns, or raises an error of ours (InputError, MessageError,
PrivacyError, TransportError); whatever else it raises, and an input that takes over ten seconds or
1 GiB more than the process had before (``RLIMIT_AS``), is a failure. A module may have ``SEEDS``, a
mapping from the name of a target to inputs, which are mutated; its reader takes the first. A failure
is kept as a file in ``seeds/<target>/``: commit it with the repair.
"""
