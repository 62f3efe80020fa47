"""The data section: shorthands, and one table that is split."""

import pytest

from homo_dp.config.load import load_config
from homo_dp.core.errors import ConfigError


def test_short_partition_with_its_alpha() -> None:
    config = load_config(None, {"data.files": "t.csv", "data.partition": "dirichlet(0.1)"})
    assert config.data.partition is not None
    assert (config.data.partition.kind, config.data.partition.alpha) == ("dirichlet", 0.1)
    with pytest.raises(ConfigError, match=r"data.partition=dirichlet\(x\): must be"):
        load_config(None, {"data.files": "t.csv", "data.partition": "dirichlet(x)"})


def test_one_table_is_one_party_unless_something_splits_it() -> None:
    alone = load_config(None, {"data.files": "all.csv"})
    assert (alone.data.one_table, alone.data.partition) == (None, None)
    config = load_config(None, {"data.files": "all.csv", "data.partition": "iid"})
    assert config.data.one_table == "all.csv"
    assert load_config(None).data.partition is not None, "the built-in example has three parties"
    by_column = load_config(None, {"data.files.x": "all.csv", "data.party_column": "site"})
    assert by_column.data.one_table == "all.csv"
    assert load_config(None, {"data.files.x": "x.csv"}).data.one_table is None


def test_shorthands() -> None:
    given = {
        "train.schedule": "cosine",
        "train.server_optimizer": "fedadam",
        "train.averaging": "ema",
    }
    train = load_config(None, given).train
    assert (train.schedule.kind, train.server_optimizer.name, train.averaging.kind) == (
        "cosine",
        "fedadam",
        "ema",
    )
    assert train.server_optimizer.rate == 0.1
