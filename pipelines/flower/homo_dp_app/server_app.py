"""The aggregator, inside Flower's ServerApp."""

from homo_dp.runs.flower import app

__all__ = ["app"]
