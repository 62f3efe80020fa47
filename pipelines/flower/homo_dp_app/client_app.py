"""The courier between Flower and the party, inside a node's ClientApp."""

from homo_dp.transport.flower.client_app import app

__all__ = ["app"]
