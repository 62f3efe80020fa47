"""Which earlier messages a later one replaces."""

from homo_dp.federation.protocol.transport import superseded_by


def test_what_the_final_weights_make_useless() -> None:
    assert set(superseded_by("finished")) == {"finished", "weights", "status"}
    assert superseded_by("update") == ("update",)
