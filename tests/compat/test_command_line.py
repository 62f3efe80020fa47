"""The keys that a command line sets; what it describes is tested with the options that it reads."""

import argparse

from homo_dp.compat.command_line import overridden_keys


def test_keys_of_both_forms_and_of_pairs_are_listed() -> None:
    given = argparse.Namespace(
        params=[["predictFileName:STRING:0:p.csv", "train.rounds=3"]],
        cfg=["theirs.yaml", "nbafl.mu", "0.1"],
    )
    assert overridden_keys(given) == {"output.predictFileName", "train.rounds", "nbafl.mu"}
