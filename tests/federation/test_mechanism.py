"""The names under which docs/extend.md gives the base of mechanisms."""

from homo_dp.federation import local_fit, mechanism
from homo_dp.federation.mechanisms import base
from homo_dp.federation.mechanisms import local_fit as inner


def test_old_names_are_the_same_objects() -> None:
    for name in mechanism.__all__:
        assert getattr(mechanism, name) is getattr(base, name)
    assert local_fit.LocalFit is inner.LocalFit
