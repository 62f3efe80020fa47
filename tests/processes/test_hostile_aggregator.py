"""An aggregator with a valid key that wants more from a party's process than the party's ledger
shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from homo_dp.config.load import load_config
from homo_dp.console.options import Screen
from homo_dp.federation.mechanisms.base import Weights
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.federation.protocol.messages import KINDS, Message
from homo_dp.federation.sessions.plan import make_plan
from homo_dp.runs.aggregator_process import AggregatorProcess
from homo_dp.runs.processes import aggregator_sealer, open_transport
from tests.processes.parts import PARTIES, RUN, Cluster, ledger_rows
from tests.processes.zygote import Zygote

NAME = PARTIES[0]


class Hostile:
    """Speaks to one party's process as the aggregator, over the shared folder."""

    def __init__(self, cluster: Cluster, **train: Any) -> None:
        cluster.change(AGGREGATOR, "train", **train)
        path = cluster.folder / "aggregator.yaml"
        path.write_text(yaml.safe_dump(cluster.configs[AGGREGATOR]))
        config = load_config([str(path)])
        honest = AggregatorProcess(config, Screen())
        self.weights: Weights = {
            name: tensor.clone() for name, tensor in honest.model.module.state_dict().items()
        }
        self.plan = make_plan(config, dict.fromkeys(PARTIES), honest.encoding.to_json())
        self.transport = open_transport(config, aggregator_sealer(config, KINDS), cluster.folder)
        self.cluster = cluster
        self.process = cluster.start(NAME)
        assert self.heard().kind == "join"
        self.send(0, "plan", info={"plan": self.plan})

    def send(
        self,
        number: int,
        kind: str = "weights",
        info: dict[str, Any] | None = None,
        **changed: float,
    ) -> None:
        tensors = self.weights if kind == "weights" else {}
        for name, value in changed.items():
            found = next(key for key in tensors if key.endswith(name))
            tensors = {**tensors, found: torch.full_like(tensors[found], value)}
        self.transport.send(Message(RUN, number, AGGREGATOR, NAME, kind, tensors, info or {}))

    def heard(self) -> Message:
        message = self.transport.receive(60)
        assert message is not None, self.cluster.log(NAME)[-2000:]
        self.transport.done(message)
        return message

    @property
    def charged(self) -> list[int]:
        return [row.round for row in ledger_rows(self.cluster.folder / NAME / "ledger.sqlite")]

    @property
    def fitted(self) -> list[str]:
        return sorted(
            path.name for path in (self.cluster.folder / NAME / "state" / RUN).glob("fit-*")
        )


@pytest.fixture
def cluster(tmp_path: Path, zygote: Zygote) -> Iterator[Cluster]:
    with Cluster(tmp_path, zygote=zygote) as made:
        yield made


def test_weights_that_overflow_buy_no_fits_and_one_message_a_round_is_answered(
    cluster: Cluster,
) -> None:
    hostile = Hostile(cluster, momentum=0.9, weight_decay=0.5)
    for number in range(5):
        hostile.send(1, bias=3.3e38 - number * 1e36)
        assert (hostile.heard().kind, hostile.charged, hostile.fitted) == ("refused", [], [])
    hostile.send(0)
    assert (hostile.heard().kind, hostile.charged, hostile.fitted) == ("refused", [], [])
    hostile.send(1)
    first = hostile.heard()
    assert (first.kind, hostile.charged, hostile.fitted) == ("update", [1], ["fit-1.safetensors"])
    hostile.send(1, bias=0.5)
    assert (hostile.heard().kind, hostile.charged, hostile.fitted) == (
        "refused",
        [1],
        ["fit-1.safetensors"],
    )
    hostile.process.send_signal(9)
    hostile.process.wait()
    cluster.start(NAME)
    assert hostile.heard().kind == "join"
    hostile.send(1, bias=0.25)
    assert hostile.heard().kind == "refused"
    assert hostile.charged == [1]


def test_a_learning_rate_that_overflows_is_refused_with_the_plan(cluster: Cluster) -> None:
    hostile = Hostile(cluster, learning_rate=6e37)
    assert hostile.heard().kind == "refused"
    assert hostile.process.wait(60) == 3
    assert "party.caps.max_rate=1000" in cluster.log(NAME)
    assert hostile.charged == []
