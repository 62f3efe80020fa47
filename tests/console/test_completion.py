"""Scripts that shells read without complaint."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from homo_dp.console.completion import completion_script


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_and_option_is_there(shell: str) -> None:
    script = completion_script(shell, ["train", "infer"])
    assert "train infer" in script
    assert "--config" in script
    assert "{commands}" not in script


def test_bash_completes_a_command() -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    script = completion_script("bash", ["train", "infer"])
    asked = "\nCOMP_WORDS=(homo-dp tr); COMP_CWORD=1; _homo_dp; echo ${COMPREPLY[@]}"
    done = subprocess.run([bash, "-c", script + asked], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("train", "")
