"""State on disk: whole or the old one, one process at a time, unreadable to others."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from homo_dp.core import crash_points
from homo_dp.core.errors import InputError
from homo_dp.federation.sessions.build import build_aggregator
from homo_dp.federation.sessions.crash_state import (
    RowLog,
    RunFolder,
    aggregator_tensors,
    read_state,
    restore_aggregator,
    write_state,
)
from tests.federation.small import RUN, small_config, small_mechanism, zeros


def killed_while_writing(path: Path, point: str) -> int:
    """Write a state in a process that is killed at a point; its exit status."""
    child = os.fork()
    if child == 0:
        crash_points._planned = (point, 1)
        write_state(path, {"w": torch.ones(1000)}, {"round": 2}, point="state")
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_state_is_a_safetensors_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_state(path, {"w": torch.arange(3.0), "n": torch.tensor(4)}, {"round": 1}, point="state")
    assert path.stat().st_mode & 0o077 == 0
    assert load_file(path)["w"].tolist() == [0.0, 1.0, 2.0]
    found = read_state(path)
    assert found is not None
    assert found[1] == {"round": 1}


@pytest.mark.parametrize(
    ("point", "left"),
    [
        ("before_write", 1),
        ("before_fsync", 1),
        ("before_rename", 1),
        ("after_rename", 2),
        ("after_sync", 2),
    ],
)
def test_a_killed_writer_leaves_the_old_state_or_the_new_one(
    tmp_path: Path, point: str, left: int
) -> None:
    path = tmp_path / "state"
    write_state(path, {"w": torch.zeros(5)}, {"round": 1}, point="state")
    assert killed_while_writing(path, f"state.{point}") == -9
    found = read_state(path)
    assert found is not None
    assert found[1] == {"round": left}
    RunFolder(tmp_path.parent, tmp_path.name).close()
    (tmp_path / "lock").unlink()
    assert [item.name for item in tmp_path.iterdir()] == ["state"]


def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"\0" * 100)
    with pytest.raises(InputError, match="cannot be read"):
        read_state(tmp_path / "state")


def test_a_full_disk_says_how_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"start the same command again"):
        write_state(tmp_path / "no" / "state", {}, {}, point="state")


def test_a_folder_belongs_to_one_process_at_a_time(tmp_path: Path) -> None:
    first = RunFolder(tmp_path, RUN)
    with pytest.raises(InputError, match="another process"):
        RunFolder(tmp_path, RUN)
    RunFolder(tmp_path, "run-2").close()
    first.close()
    RunFolder(tmp_path, RUN).close()
    assert (tmp_path / RUN).stat().st_mode & 0o077 == 0


def test_rows_survive_a_line_that_was_cut(tmp_path: Path) -> None:
    log = RowLog(tmp_path / "rounds.jsonl")
    log.append({"round": 1, "x": 1})
    with open(tmp_path / "rounds.jsonl", "ab") as file:
        file.write(b'\n{"round": 2, "x"')
    log.append({"round": 2, "x": 2})
    log.append({"round": 2, "x": 3})
    assert log.load(9) == [{"round": 1, "x": 1}, {"round": 2, "x": 3}]
    assert log.load(1) == [{"round": 1, "x": 1}]
    assert json.loads((tmp_path / "rounds.jsonl").read_bytes().split(b"\n")[1]) == {
        "round": 1,
        "x": 1,
    }


def test_an_aggregator_goes_on_with_its_moments_and_averages() -> None:
    config = small_config(train__server_optimizer="fedadam", train__averaging="ema")
    mechanism = small_mechanism(config, {"a": 20})
    first, second = (build_aggregator(config, RUN, zeros(), mechanism, None) for _ in range(2))
    mean = {name: torch.ones_like(tensor) for name, tensor in zeros().items()}
    first.publish(first.server_optimizer.step(first.weights, mean))
    restore_aggregator(second, aggregator_tensors(first), 1)
    for aggregator in (first, second):
        aggregator.publish(aggregator.server_optimizer.step(aggregator.weights, mean))
    assert second.round == 1
    assert all(first.final_weights[name].equal(second.final_weights[name]) for name in mean)


def test_a_state_that_others_can_write_is_refused_until_it_is_mended(tmp_path: Path) -> None:
    RunFolder(tmp_path, RUN).close()
    (tmp_path / RUN).chmod(0o777)
    with pytest.raises(InputError, match=rf"state=.*chmod go-w .*{RUN}`"):
        RunFolder(tmp_path, RUN)
    (tmp_path / RUN).chmod(0o700)
    RunFolder(tmp_path, RUN).close()
