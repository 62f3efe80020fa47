"""What the privacy core raises: one line that names the value, the allowed range and the next
step.
"""


class PrivacyError(ValueError):
    """A request that the privacy contract does not allow."""


class BudgetExceeded(PrivacyError):
    """A release that would pass a budget; nothing was released."""


class LedgerError(PrivacyError):
    """A ledger that was cut, edited, or cannot be written."""
