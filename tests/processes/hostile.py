"""A party process in this process, over a shared folder, with an aggregator that sends whatever
plan a test crafts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from homo_dp.config.load import load_config
from homo_dp.config.schema import Config
from homo_dp.console.options import Screen
from homo_dp.core.errors import InputError, TransportError
from homo_dp.data.public_encoding import public_encoding
from homo_dp.federation.mechanisms.base import Weights
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import KINDS, Message, encode
from homo_dp.federation.protocol.transport import Transport
from homo_dp.federation.sessions.build import build_mechanism, noise_source, trained_model
from homo_dp.federation.sessions.crash_state import RunFolder
from homo_dp.federation.sessions.plan import PlanJson, facts_for_aggregator, make_plan
from homo_dp.federation.sessions.stages import stage_of
from homo_dp.privacy.errors import PrivacyError
from homo_dp.runs import party_process
from homo_dp.runs.party_process import PartyProcess
from homo_dp.runs.processes import aggregator_sealer, open_transport
from homo_dp.transport.keys import new_key_pair, write_key_pair

RUN, PARTY = "run-1", "a"
JOB = {
    "train.rounds": 1,
    "train.local_steps": 1,
    "train.sample_rate": 0.5,
    "privacy.target_epsilon": 2.0,
}


@dataclass
class Heard:
    """What the aggregator heard, and what the party's own operator was told."""

    messages: list[tuple[Any, ...]]
    screen: str
    error: str | None
    # the numbers of each update, one tensor after the other
    released: list[torch.Tensor] = field(default_factory=list)

    @property
    def words(self) -> list[str]:
        return [message[3] for message in self.messages if message[0] == "refused"]


def job(columns: Mapping[str, Any], **overrides: Any) -> Config:
    """An aggregator's config; keys with __ for the dots. What a batch or epoch is, replaces what
    JOB says.
    """
    keys = {name.replace("__", "."): value for name, value in overrides.items()}
    for one, other in (("batch_size", "sample_rate"), ("local_epochs", "local_steps")):
        if f"train.{one}" in keys:
            keys = {f"train.{other}": None} | keys
    if "privacy.noise_multiplier" in keys:
        keys = {"privacy.target_epsilon": None} | keys
    return load_config(None, JOB | {"data.columns": dict(columns)} | keys)


def plan_of(config: Config, rows: int | None = None) -> PlanJson:
    stage = stage_of(config, {PARTY: rows})
    return make_plan(config, {PARTY: rows}, public_encoding(stage.config).to_json())


def rounds_of(config: Config) -> int:
    """How many rounds an aggregator asks, those of other sums than the update included."""
    stage = stage_of(config, {PARTY: None})
    if stage.estimating:
        return config.train.rounds + len(stage.estimates)
    if not config.privacy.asks_raw_values and config.metrics.release != "noised":
        return config.train.rounds
    facts = facts_for_aggregator(config, plan_of(config, 40), 1)
    return build_mechanism(config, facts, noise_source(config)).run.count


def weights_of(config: Config) -> Weights:
    """What a run starts from that reads rows by this config."""
    encoding = public_encoding(config)
    model = trained_model(config, encoding.input_shape, encoding.classes)
    return {name: tensor.clone() for name, tensor in model.module.state_dict().items()}


class Hostile:
    """Runs a party with a table and a plan, each time in a folder of its own."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys
        # hundreds of runs, and none has to outlive the power
        monkeypatch.setattr("os.fsync", lambda _: None)
        self.pairs = {name: new_key_pair(name) for name in (AGGREGATOR, PARTY)}
        for pair in self.pairs.values():
            write_key_pair(pair, folder / "keys")
        self.runs = 0

    def hear(
        self,
        table: str,
        config: Config,
        own: Mapping[str, Any],
        *,
        to_end: bool = False,
        later: str | None = None,
        found: Sequence[Message] = (),
    ) -> Heard:
        """All that the aggregator hears.

        Args:
            table: the party's table.
            config: what the aggregator asks.
            own: keys of the party's own config.
            to_end: let the party come to its end and write its outputs.
            later: the table from when the party has joined; None: it stays the same.
            found: what is sent once the last estimate of a run was answered.

        Returns:
            The messages, and what the party's operator sees.
        """
        self.runs += 1
        place = self.folder / str(self.runs)
        place.mkdir()
        (place / "table.csv").write_text(table, errors="surrogateescape")
        aggregator = self._aggregator(place)
        stage = stage_of(config, {PARTY: None})
        weights, estimated = weights_of(stage.reading), len(stage.estimates)
        seen: list[tuple[Any, ...]] = []
        released: list[torch.Tensor] = []
        rounds = rounds_of(config)

        def on_sent(message: Message) -> None:
            seen.append(_seen(message))
            if message.kind == "update":
                tensors = [tensor for _, tensor in sorted(message.tensors.items())]
                released.append(torch.cat([tensor.double().flatten() for tensor in tensors]))
            if message.kind == "join" and later is not None:
                (place / "table.csv").write_text(later, errors="surrogateescape")
            if message.kind == "update" and estimated and message.round == estimated:
                for each in found:
                    aggregator.send(each)
            elif message.kind == "update" and message.round < rounds:
                aggregator.send(
                    Message(RUN, message.round + 1, AGGREGATOR, PARTY, "weights", weights)
                )
            elif message.kind == "update" and to_end:
                aggregator.send(Message(RUN, message.round, AGGREGATOR, PARTY, "finished", weights))
            elif message.kind == "update":
                raise _HeardAll

        aggregator.send(Message(RUN, 0, AGGREGATOR, PARTY, "plan", {}, {"plan": plan_of(config)}))
        aggregator.send(Message(RUN, 1, AGGREGATOR, PARTY, "weights", weights))
        self.monkeypatch.setattr(
            party_process,
            "open_transport",
            lambda own, sealer, state: _Watched(open_transport(own, sealer, state), on_sent),
        )
        error = None
        try:
            PartyProcess(self._own(place, own), Screen()).run()
        except (InputError, PrivacyError, TransportError) as problem:
            error = f"{type(problem).__name__}: {problem}"
        except _HeardAll:
            pass
        finally:
            aggregator.close()
        captured = self.capsys.readouterr()
        return Heard(seen, captured.out + captured.err, error, released)

    def process(self, table: str, own: Mapping[str, Any]) -> tuple[PartyProcess, RunFolder]:
        """A party that is not yet in a run, and the folder of the run."""
        place = self.folder / "alone"
        place.mkdir()
        (place / "table.csv").write_text(table)
        process = PartyProcess(self._own(place, own), Screen(quiet=True))
        return process, RunFolder(place / "state", RUN)

    def _own(self, place: Path, own: Mapping[str, Any]) -> Config:
        return load_config(None, self._common(place) | self._of_party(place) | dict(own))

    def _common(self, place: Path) -> dict[str, Any]:
        names = ("predict", "indicator", "model")
        out = {f"output.{name}FileName": str(place / "out" / name) for name in names}
        transport = {"transport.kind": "directory", "transport.directory": str(place / "exchange")}
        return {"federation.run": RUN, "tracking.enabled": False} | out | transport

    def _of_party(self, place: Path) -> dict[str, Any]:
        return {
            "data.files": {PARTY: str(place / "table.csv")},
            "data.test_fraction": 0.0,
            "privacy.ledger": str(place / "ledger.sqlite"),
            "party.name": PARTY,
            "party.key_file": str(self.folder / "keys" / f"{PARTY}.key"),
            "party.aggregator_key": self.pairs[AGGREGATOR].public.line,
            "party.state_dir": str(place / "state"),
            "party.patience": 5.0,
        }

    def _aggregator(self, place: Path) -> Transport:
        keys = {
            "federation.key_file": str(self.folder / "keys" / f"{AGGREGATOR}.key"),
            "federation.parties": {PARTY: self.pairs[PARTY].public.line},
        }
        config = load_config(None, self._common(place) | keys)
        return open_transport(config, aggregator_sealer(config, KINDS), self.folder)


class _HeardAll(Exception):
    """The last update has come: what a party writes after it, nobody hears."""


class _Watched:
    """A transport that tells what was sent."""

    def __init__(self, inner: Transport, on_sent: Any) -> None:
        self._inner, self._on_sent = inner, on_sent

    def send(self, message: Message) -> None:
        self._inner.send(message)
        self._on_sent(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _seen(message: Message) -> tuple[Any, ...]:
    """Kind, round, fields, words, sizes: all of a message but noised numbers and hashes."""
    head = message.info.get("ledger_head")
    words: Sequence[Any] = [message.info.get(name) for name in ("reason", "rows", "releases")]
    shapes = [
        (name, tuple(tensor.shape), str(tensor.dtype))
        for name, tensor in sorted(message.tensors.items())
    ]
    count = head["count"] if isinstance(head, dict) else head
    return (
        message.kind,
        message.round,
        sorted(message.info),
        *words,
        count,
        shapes,
        len(encode(message)),
    )
