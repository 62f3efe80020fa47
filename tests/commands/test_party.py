"""The command of a party: what it must be told, and words of the operator that name a run."""

from pathlib import Path

import pytest

from homo_dp.commands.party import main
from homo_dp.core.errors import ConfigError, InputError

OWN = ["--quiet", "--params", "party.name=a,federation.run=r"]


def test_what_a_party_needs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"party\.key_file"):
        main([*OWN, "transport.kind=directory"])
    assert not list(tmp_path.rglob("*.sqlite"))


def test_a_word_names_a_run_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="names no run"):
        main(["approve", *OWN])
    with pytest.raises(InputError, match="no plan waits"):
        main(["refuse", "loans", *OWN])
    with pytest.raises(ValueError, match="run"):
        main(["approve", "../loans", *OWN])
