"""PrimiHub's tasks in Python are read for their settings and never run."""

from pathlib import Path

import pytest

from homo_dp.compat.primihub.python_task import read_python_task, scored_data_set
from homo_dp.core.errors import ConfigError

TASK = """
import primihub as ph
raise SystemExit("this file is never run")
config = {'mode': 'DPSGD', 'max_iter': 3, 'l2_norm_clip': 0.5}

@ph.context.function(role='host', protocol='lr', datasets=['train_host'], port='8020')
def run_host(): ...

@ph.context.function(role='arbiter', protocol='lr', datasets=['train_nobody'], port='8010')
def run_arbiter(): ...
"""


def test_settings_and_data_sets_are_read(tmp_path: Path) -> None:
    path = tmp_path / "homo_lr_mine.py"
    path.write_text(TASK)
    task = read_python_task(path)
    assert (task.settings["train.rounds"], task.settings["privacy.max_grad_norm"]) == (3, 0.5)
    assert task.settings["privacy.mechanism"] == "dp_sgd"
    assert task.data_sets == {"host": "train_host"}


def test_an_example_of_primihub_need_not_be_there() -> None:
    assert read_python_task(Path("homo_lr_dpsgd.py")).settings["train.rounds"] == 100


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.py", None, "no such file, and no example"),
        ("a.py", "config = {'mode': 'Magic'}", "mode=Magic has no counterpart"),
        ("a.py", "config = {", "is not readable as Python"),
        ("homo_lr_paillier.py", None, "Paillier"),
    ],
)
def test_what_is_no_task_of_training_is_refused(
    tmp_path: Path, name: str, text: str | None, said: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_python_task(tmp_path / name)


def test_the_data_set_of_a_file_for_scoring(tmp_path: Path) -> None:
    path = tmp_path / "homo_lr_infer.py"
    path.write_text("infer_data = ['test_mine']\n")
    assert scored_data_set(path) == "test_mine"
