"""The Opacus engine whose secure mode works: ``from homo_dp.opacus import PrivacyEngine`` (docs/opacus.md)."""

from homo_dp.privacy.opacus.engine import PrivacyEngine

__all__ = ["PrivacyEngine"]
