"""What plan, ledger and report say of a sum whose noise the parties share under masks, in one form
for every mechanism.

Who shares it, how much each adds, and against how many colluders and dropouts it holds
(docs/secure_aggregation.md).
"""

from __future__ import annotations

from homo_dp.privacy.private_sum import NoiseShare, PrivateSum


def noise_label(label: str, share: NoiseShare | None) -> str:
    """What a row of the ledger says about the noise of a release.

    >>> noise_label("secure noise", NoiseShare(10, dropouts=2))
    'secure noise; 1/sqrt(7) of it, shared by 10 parties, 2 dropouts and 1 colluders assumed'
    """
    if share is None:
        return label
    return (
        f"{label}; 1/sqrt({share.sharers}) of it, shared by {share.parties} parties, "
        f"{share.dropouts} dropouts and {share.colluders} colluders assumed"
    )


def shared_note(share: NoiseShare) -> str:
    """The sentence for a person: against whom epsilon holds.

    >>> shared_note(NoiseShare(3))
    '3 parties share the noise of each total: epsilon holds against the aggregator together with up to 1 of the \
parties, and with up to 0 missing'
    """
    return (
        f"{share.parties} parties share the noise of each total: epsilon holds against the "
        f"aggregator together with up to {share.colluders} of the parties, and with up to "
        f"{share.dropouts} missing"
    )


def shared_figures(found: PrivateSum, unit: float = 1.0) -> dict[str, float | str | None]:
    """What the indicators add: who shares the noise, and how much of it there is.

    ``unit`` is what one unit of the sum stands for, such as the clip norm that updates were divided
    by.
    """
    share = found.share
    return {
        "secure_aggregation": "on" if share else "off",
        "noise_shared_by": share.parties if share else None,
        "tolerated_dropouts": share.dropouts if share else None,
        "tolerated_colluders": share.colluders if share else None,
        "noise_share_sigma": found.party_sigma * unit,
        "noise_of_total_sigma": found.total_sigma * unit,
    }
