"""Errors of the privacy core: each is a PrivacyError, so that one clause refuses them all."""

import pytest

from homo_dp.privacy.errors import BudgetExceeded, LedgerError, PrivacyError


@pytest.mark.parametrize("kind", [BudgetExceeded, LedgerError])
def test_every_refusal_is_a_privacy_error_and_a_value_error(kind: type[Exception]) -> None:
    assert issubclass(kind, PrivacyError)
    assert issubclass(kind, ValueError)
    assert not issubclass(BudgetExceeded, LedgerError)  # exit codes 3 and 2
