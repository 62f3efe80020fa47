"""Images between processes, by somebody who names no model: what one process does with them,
each party does too.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from homo_dp.config.load import load_config
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.models.files import read_card
from homo_dp.privacy.ledger import LedgerRow
from homo_dp.runs.simulation import Simulation
from tests.processes.parts import PARTIES, Cluster, ledger_rows
from tests.processes.zygote import Zygote

ROWS, CLASSES = 200, [0, 1, 2]
JOB: dict[str, Any] = {
    "model": {},
    "privacy": {"target_epsilon": 4.0},
    "train": {"auto": True, "rounds": 6},
}


def write_images(path: Path, rows: int, seed: int) -> Path:
    """Grey images with no stripes, stripes down and stripes across, under noise."""
    rng = np.random.default_rng(seed)
    labels, images = np.arange(rows) % 3, rng.integers(0, 100, (rows, 16, 16), dtype=np.uint8)
    images[labels == 1, :, ::3] += 150
    images[labels == 2, ::3, :] += 150
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, x=images, y=labels)
    return path


def test_parties_with_images_run_what_one_process_runs(tmp_path: Path, zygote: Zygote) -> None:
    files = {
        name: write_images(tmp_path / name / "train.npz", ROWS, at)
        for at, name in enumerate(PARTIES)
    }
    test = write_images(tmp_path / "test.npz", 60, 9)
    with Cluster(tmp_path, zygote=zygote) as cluster:
        cluster.configs[AGGREGATOR] |= JOB | {
            "data": {"classes": CLASSES, "image": {"shape": [1, 16, 16]}}
        }
        for name, path in files.items():
            data = {
                "files": {name: str(path)},
                "test_file": {name: str(test)},
                "rows": {name: ROWS},
            }
            cluster.configs[name] |= {"data": data}
        cluster.start_all()
        assert set(cluster.wait().values()) == {0}, cluster.log(AGGREGATOR)
    alone = {
        "data.files": {name: str(path) for name, path in files.items()},
        "data.classes": CLASSES,
    }
    alone |= {
        "data.rows": dict.fromkeys(PARTIES, ROWS),
        "privacy.ledger": str(tmp_path / "alone.sqlite"),
    }
    run = Simulation(load_config(None, {**JOB, **alone}), lambda row, numbers: None)
    outcome = run.run()
    together = ledger_rows(tmp_path / "alone.sqlite")
    for name in PARTIES:
        own = json.loads((tmp_path / name / "out" / "indicator.json").read_text())
        assert own["privacy"]["epsilon"] == outcome.statement["parties"][name]["epsilon_pld"] <= 4.0
        assert own["test_acc"] > 0.8  # a third by chance; three runs gave 1.0 at every party
        paid = [_said(row) for row in ledger_rows(tmp_path / name / "ledger.sqlite")]
        assert paid == [_said(row) for row in together if row.party == name]
        card = read_card(tmp_path / name / "out" / "model.safetensors")
        assert card.architecture == run.model.architecture
        assert card.architecture.name == "scattering2"


def _said(row: LedgerRow) -> tuple[int, str, float]:
    """What left a party in a round, and under how much noise."""
    return row.round, row.kind, row.sigma
