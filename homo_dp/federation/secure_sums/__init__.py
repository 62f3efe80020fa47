"""How an aggregator learns the sum of the parties' integers and nothing else (Bonawitz et al. 2017,
store and forward).

The protocol as a state machine that knows no transport: ``party`` and ``aggregator`` hold the two
sides, ``roster`` who takes part and the thresholds, ``agreement`` the keys of a run, ``masks`` the
keystreams, ``shares`` the secret sharing, ``round_keys`` what is opened of a party that is missing.
"""
