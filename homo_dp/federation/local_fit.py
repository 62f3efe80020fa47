"""Local training as a mechanism of one's own sees it, under the name that docs/extend.md has
always given.
"""

from homo_dp.federation.mechanisms.local_fit import LocalFit

__all__ = ["LocalFit"]
