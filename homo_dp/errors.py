"""The errors of `homo_dp.core.errors` under the name by which the rest of the package imports them."""

from homo_dp.core.errors import *  # noqa: F403
