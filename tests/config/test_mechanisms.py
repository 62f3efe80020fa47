"""The records of the mechanisms that ship are those of their classes, and cost no heavy import."""

import subprocess
import sys
from importlib import import_module

import pytest

from homo_dp.config.mechanisms import BUILT_IN, REGISTRY, capabilities_of
from homo_dp.federation.mechanisms.cohort_mechanism import CohortMechanism


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_class_has_the_record_of_the_registry(name: str) -> None:
    record, where = REGISTRY[name]
    module, _, kind = where.partition(":")
    found = getattr(import_module(module), kind)
    assert found.capabilities is record
    assert record.name == name
    assert issubclass(found, CohortMechanism) == (record.unit == "user")


def test_records_are_read_without_torch() -> None:
    code = (
        "import sys; from homo_dp.config.mechanisms import capabilities_of; "
        "import homo_dp.config.rules; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_of_a_class_that_is_not_loaded_little_is_promised() -> None:
    record = capabilities_of("mine.laplace:Laplace")
    assert (record.estimates_first, record.cuts_batches, record.solvers) == (False, False, ("sgd",))
