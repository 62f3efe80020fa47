"""Nothing of a row leaves a party process: sentinels in its table, looked for in all that others
have.

Over a folder and over a queue: the aggregator's files, state, log and screen, the exchange itself,
and what aggregator and party tell a store of runs on another machine. The sentinels are a row count
that is declared as another number, a value of a feature, and a cell that does not fit its column,
which an error may quote at the party and nowhere else.
"""

import json
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save

from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.runs.outputs import released_line
from tests.processes.parts import PARTIES, Cluster
from tests.processes.zygote import Zygote
from tests.sentinels import facts_in, found_in, is_the_truth, spooled, true_bins, value_in_file
from tests.transport.nats_server import NatsServer

RADIUS = 13.5791357913579  # of a feature
ROWS = (141, 139, 137)  # of each party, where 150 are declared
CELL = "thirteen-and-a-half"
READABLE = (".json", ".jsonl", ".yaml", ".yml", ".safetensors", ".csv", ".log", ".txt")
MASKED = {"mechanism": "dp_fedsgd", "secure_aggregation": True}
JOBS: dict[str, dict[str, Any]] = {
    "metrics": {"metrics": {"release": "noised"}},
    "masked": {"privacy": MASKED, "data": {"scaling": "private"}},
    "statistics": {
        "privacy": {"mechanism": "statistics"},
        "statistics": {"ask": "rows,classes,means,histograms,second_moments"},
    },
    "nbafl": {
        "privacy": {"mechanism": "nbafl"},
        "nbafl": {"epsilon": 10.0, "clip_norm": 3.0, "exposures": 2, "min_dataset_size": 100},
    },
    "dp_fedavg": {
        "privacy": {
            "mechanism": "dp_fedavg",
            "unit": "user",
            "population": 3,
            "noise_at": "parties",
            "sampling": "everyone",
            "noise_multiplier": 9.0,
        },
    },
}
# a server's own number, which may be any, before its lines
PROCESS = re.compile(rb"^\[\d+\]", re.MULTILINE)
CALIBRATED = ("metrics", "masked", "statistics")  # noise is solved for an epsilon


def _prepared(cluster: Cluster, folder: Path, job: str) -> None:
    """Each party has fewer rows than it declares, a value of its own in some of them, and a cell
    that does not fit.
    """
    for section, keys in JOBS[job].items():
        cluster.change(AGGREGATOR, section, **keys)
    if job in CALIBRATED:
        cluster.change(AGGREGATOR, "privacy", target_epsilon=8.0)
    if job == "masked":
        cluster.configs[AGGREGATOR]["train"] = {"rounds": 2, "batch_size": 50}
    elif job == "statistics":
        cluster.configs[AGGREGATOR]["train"] = {}
    for number, party in enumerate(PARTIES):
        table = (
            pd.read_csv(cluster.configs[party]["data"]["files"][party]).head(ROWS[number]).copy()
        )
        table["mean radius"] = table["mean radius"].astype(object)
        table.loc[table.index % 5 == 1, "mean radius"] = RADIUS
        table.loc[table.index == 3, "mean radius"] = CELL
        table.to_csv(folder / f"{party}.csv", index=False)
        files = {party: str(folder / f"{party}.csv")}
        cluster.change(party, "data", files=files, rows={party: 150}, counts=None)
        if job in CALIBRATED:
            cluster.change(party, "privacy", target_epsilon=8.0)
        else:
            cluster.change(party, "party", caps={"epsilon": 1e9})
        if job == "masked":
            cluster.change(
                party, "federation", parties=cluster.configs[AGGREGATOR]["federation"]["parties"]
            )


def _seen(cluster: Cluster) -> dict[str, bytes]:
    """Every file that the aggregator has or that lies where messages travel, and what it said."""
    found = {"aggregator.log": cluster.log(AGGREGATOR).encode()}
    for name in (AGGREGATOR, "state-aggregator", "exchange", "nats"):
        files = [path for path in (cluster.folder / name).rglob("*") if path.is_file()]
        found |= {str(path.relative_to(cluster.folder)): path.read_bytes() for path in files}
    return {
        name: PROCESS.sub(b"", data) if name == "nats/server.log" else data
        for name, data in found.items()
    }


def _left(seen: Mapping[str, bytes], known: Sequence[str]) -> list[str]:
    """Which sentinels are in what others have."""
    readable = {
        name: data
        for name, data in seen.items()
        if name.endswith(READABLE) and "unsent" not in name
    }
    facts = [fact for name, data in readable.items() for fact in facts_in(name, data)]
    found = found_in(facts, ROWS, [RADIUS], known=known)
    for name, data in seen.items():
        if value_in_file(name, data, RADIUS) or CELL.encode() in data:
            found.append(name)
    return found


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("transport", ["directory", "nats"])
def test_no_sentinel_is_with_anybody_else(
    tmp_path: Path, zygote: Zygote, transport: str, job: str
) -> None:
    server = NatsServer(tmp_path / "nats", PARTIES) if transport == "nats" else None
    tracked = transport == "directory" and job == "metrics"
    try:
        if server is not None:
            server.__enter__()
        with Cluster(tmp_path, server, zygote=zygote, rounds=2) as cluster:
            _prepared(cluster, tmp_path, job)
            for name in (AGGREGATOR, "party_1") if tracked else ():
                cluster.change(
                    name, "tracking", enabled=True, uri="http://127.0.0.1:9", plots=False
                )
            cluster.start_all()
            assert set(cluster.wait().values()) == {0}, cluster.log(AGGREGATOR) + cluster.log(
                "party_1"
            )
            seen = _seen(cluster)
            assert CELL in cluster.log("party_1")  # its owner is told
    finally:
        if server is not None:
            server.__exit__(None, None, None)
    assert len(seen) > 5
    known = [str(tmp_path)]
    if job != "statistics":
        indicator = f"{AGGREGATOR}/out/indicator.json"
        indicators = json.loads(seen[indicator])
        # by figures that stand in the indicators as released, so it may be left out
        said = released_line(indicators)
        known += [said] if said else []
        _check_planted(seen, known, indicator, indicators)
    if job == "statistics":
        seen = _without_answers(seen)
    assert _left(seen, known) == []
    if job == "metrics":
        _check_noise(tmp_path, indicators)
    if tracked:
        _check_told(tmp_path, known)


def _without_answers(seen: Mapping[str, bytes]) -> dict[str, bytes]:
    """Without the released numbers themselves, which have noise and may be any."""
    lines = seen["aggregator.log"].splitlines()
    answers = tuple(name.encode() for name in JOBS["statistics"]["statistics"]["ask"].split(","))
    log = b"\n".join(line for line in lines if not line.strip().startswith(answers))
    kept = {name: data for name, data in seen.items() if "_statistics.json" not in name}
    return kept | {"aggregator.log": log}


def _check_planted(
    seen: Mapping[str, bytes], known: Sequence[str], indicator: str, indicators: Any
) -> None:
    """The look itself can fail: a count, a sentence, a value, a cell and raw bytes are found."""
    leaks: tuple[Any, ...] = (
        {"party_1": {"rows_seen": ROWS[2]}},
        {"note": f"{ROWS[0]} rows"},
        {"radius": RADIUS},
    )
    for leak in leaks:
        assert len(_left({indicator: json.dumps(indicators | leak).encode()}, known)) == 1, leak
    assert _left({"exchange/x": b"..." + struct.pack("<d", RADIUS) + b"..."}, known) == [
        "exchange/x"
    ]
    tensor = save({"weights": np.array([0.5, RADIUS], np.float32)})
    assert _left({"state.safetensors": tensor}, known) == ["state.safetensors"]
    assert _left({"nats/1.blk": f"... {CELL} ...".encode()}, known) == ["nats/1.blk"]
    assert len(_left({"aggregator.log": f"party_1 has {ROWS[0]} rows".encode()}, known)) == 1


def _check_noise(folder: Path, indicators: Any) -> None:
    """Released metrics are not those of the rows without noise."""
    bins = len(indicators["released_curves"]["calibration"]["rows"])
    truth = true_bins([folder / party / "out/predict.csv" for party in PARTIES], bins)
    assert not is_the_truth(indicators, truth)
    bare = {"rows": {"value": float(sum(truth))}}
    assert is_the_truth(
        {"released_metrics": bare, "released_curves": {"calibration": {"rows": truth}}}, truth
    )


def _check_told(folder: Path, known: Sequence[str]) -> None:
    """What aggregator and party told a store on another machine, which was away, so that all of
    it is still here.
    """
    for name in (AGGREGATOR, "party_1"):
        told = list(spooled(folder / name / "out"))
        calls = {path.split(".")[1] for path, _ in told}
        assert calls >= {"run", "params", "metrics", "tags", "artifact", "end"}, calls
        own = [] if name == AGGREGATOR else [*known, CELL]
        assert found_in(told, ROWS, [RADIUS], known=own or known) == []
        assert not any(CELL in str(value) for _, value in told)
        for leak in (
            ("mlflow.metrics.rows", float(ROWS[0])),
            ("mlflow.tags.reason", f"row 4: {RADIUS}"),
        ):
            assert len(found_in([*told, leak], ROWS, [RADIUS], known=known)) == 1
