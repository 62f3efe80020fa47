"""The command of an aggregator: what it must be told before it listens."""

from pathlib import Path

import pytest

from homo_dp.commands.aggregator import main
from homo_dp.core.errors import ConfigError


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ("federation.run=r,transport.kind=directory", r"federation\.parties: is empty"),
        ("transport.kind=directory", r"federation\.run"),
    ],
)
def test_what_an_aggregator_needs_is_said(
    params: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said):
        main(["--quiet", "--params", params])
