"""What an aggregator knows without a table: the declared encoding, and a table only if it is
declared public.
"""

from pathlib import Path
from typing import Any

import pytest

from homo_dp.config.load import load_config
from homo_dp.config.schema import Config
from homo_dp.core.errors import DataError
from homo_dp.data.parties import load_federation
from homo_dp.data.public_encoding import public_encoding, public_table

ROOT = Path(__file__).parents[2]


def config(**overrides: Any) -> Config:
    return load_config(None, {name.replace("__", "."): value for name, value in overrides.items()})


def test_it_is_the_encoding_that_the_parties_build_from_their_tables() -> None:
    table = ROOT / "data" / "breast_cancer_party_1_train.csv"
    party = config(data__files={"a": str(table)}, data__columns_from="breast_cancer")
    assert (
        public_encoding(config(data__columns_from="breast_cancer"))
        == load_federation(party, only="a").encoding
    )


@pytest.mark.parametrize("name", ["breast_cancer", "digits", "users"])
def test_bundled_sets_need_no_description(name: str) -> None:
    found = public_encoding(config(data__embedded=name))
    assert found.columns == load_federation(config(data__embedded=name)).encoding.columns


def test_own_columns_and_images() -> None:
    columns = {"x": {"bounds": [0, 1]}, "c": {"levels": ["a", "b"]}}
    assert public_encoding(config(data__columns=columns, data__drop=["c"])).names == ["x"]
    images = config(data__image__shape=[1, 4, 4], model__name="cnn", data__classes=[0, 1, 2])
    assert public_encoding(images).input_shape == (1, 4, 4)


def test_nothing_described_is_refused() -> None:
    nothing = Config.model_validate({"data": {"files": {"a": "a.csv"}}})
    with pytest.raises(DataError, match=r"data\.columns"):
        public_encoding(nothing)


def test_a_table_is_read_only_if_it_is_declared_public() -> None:
    table = str(ROOT / "data" / "breast_cancer_party_1_test.csv")
    private = config(data__columns_from="breast_cancer", data__test_file=table)
    assert public_table(private, public_encoding(private)) is None
    public = config(
        data__columns_from="breast_cancer", data__test_file=table, data__public_test=True
    )
    found = public_table(public, public_encoding(public))
    assert found is not None
    assert (len(found), found.labels is not None) == (38, True)
    nothing = config(data__columns_from="breast_cancer", data__public_test=True)
    with pytest.raises(DataError, match=r"data\.test_file"):
        public_table(nothing, public_encoding(nothing))
