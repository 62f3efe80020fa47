"""From a node to its party: which party a run belongs to, and one word where it cannot be asked."""

from pathlib import Path

import pytest

from homo_dp.core.errors import ConfigError
from homo_dp.transport.flower.envelopes import SealedQuestion
from homo_dp.transport.flower.relay import PartyPlace, carry, socket_of

CONFIG = "party: {{name: bank_a, state_dir: {folder}{serve}}}\nfederation: {{run: {run}}}\n"


def config(folder: Path, run: str, serve: str = "") -> str:
    path = folder / "party.yaml"
    path.write_text(CONFIG.format(folder=folder, run=run, serve=serve))
    return str(path)


def test_a_party_of_one_run_answers_no_other(tmp_path: Path) -> None:
    place = PartyPlace.of(config(tmp_path, "loans"), "loans")
    assert place.socket == tmp_path / "loans" / "party.sock"
    assert place.layer is None
    with pytest.raises(ConfigError, match="the ServerApp runs cards"):
        PartyPlace.of(config(tmp_path, "loans"), "cards")


def test_a_party_that_serves_has_a_process_a_run_for_its_askers(tmp_path: Path) -> None:
    serve = ", serve: {askers: [{aggregator_key: k, runs: ['loans-*']}], approve: ask, at_once: 2}"
    place = PartyPlace.of(config(tmp_path, "null", serve), "loans-7")
    assert (place.socket.parent, place.at_once) == (tmp_path / "loans-7", 2)
    assert place.layer is not None
    assert b"run: loans-7" in place.layer
    with pytest.raises(ConfigError, match="none of them may start run cards"):
        PartyPlace.of(config(tmp_path, "null", serve), "cards")


def test_a_party_that_serves_without_bound_is_not_started(tmp_path: Path) -> None:
    """A SuperNode starts a process for each run, so it needs what `--serve` needs."""
    with pytest.raises(ConfigError, match=r"privacy\.lifetime_epsilon: is not given"):
        PartyPlace.of(config(tmp_path, "null", ", serve: {approve: always}"), "loans-7")


def test_a_socket_without_a_party_is_one_word(tmp_path: Path) -> None:
    assert carry(SealedQuestion("loans"), PartyPlace(tmp_path / "none.sock")).state == "failed"
    assert socket_of("/run/p.sock", tmp_path, "r") == Path("/run/p.sock")
