"""The Opacus engine whose secure mode works: ``from homo_dp.opacus import PrivacyEngine``
(docs/opacus.md).
"""

from homo_dp.privacy.engine.engine import PrivacyEngine

__all__ = ["PrivacyEngine"]
