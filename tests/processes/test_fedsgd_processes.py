"""DP-FedSGD between processes: every party pays for its own gradients; shares of noise never leave without masks."""

from pathlib import Path

from homo_dp.federation.protocol.ids import AGGREGATOR
from tests.processes.parts import PARTIES, Cluster, ledger_rows
from tests.processes.zygote import Zygote


def test_parties_send_gradients_and_pay_for_each(tmp_path: Path, zygote: Zygote) -> None:
    with Cluster(tmp_path, zygote=zygote) as cluster:
        cluster.change(AGGREGATOR, "privacy", mechanism="dp_fedsgd")
        cluster.change(AGGREGATOR, "train", local_steps=1)
        for party in PARTIES:
            cluster.change(party, "data", rows={party: 150})
        cluster.start_all()
        assert set(cluster.wait().values()) == {0}, cluster.log(AGGREGATOR)
    for party in PARTIES:
        assert [row.round for row in ledger_rows(tmp_path / party / "ledger.sqlite")] == [1, 2, 3]
