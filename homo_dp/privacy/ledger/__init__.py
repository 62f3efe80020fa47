"""The ledger: every release of a party, charged before it leaves, hash-chained and anchored, on
local disk.
"""

from homo_dp.privacy.ledger.hash_chain import Head
from homo_dp.privacy.ledger.ledger import Ledger, Spent
from homo_dp.privacy.ledger.rows import Budget, Charge, LedgerRow

__all__ = ["Budget", "Charge", "Head", "Ledger", "LedgerRow", "Spent"]
