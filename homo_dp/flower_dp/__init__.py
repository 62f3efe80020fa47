"""flower-dp's functions under their own names: the noise of NbAFL (Wei et al. 2020, Theorem 1).

They give standard deviations, not a guarantee: docs/nbafl.md says what epsilon such noise amounts
to.
"""

from homo_dp.federation.mechanisms.nbafl import Formula, noise_constant

__all__ = ["calculate_c", "calculate_sigma_d", "calculate_sigma_u"]


def calculate_c(delta: float) -> float:
    """The constant c = sqrt(2 ln(1.25 / delta)).

    >>> calculate_c(2 / 1e5)
    4.699557816587533
    """
    return noise_constant(delta)


def calculate_sigma_u(
    epsilon: float,
    delta: float = 1 / 2e5,
    l2_norm_clip: float = 1.5,
    num_exposures: int = 3,
    min_dataset_size: float = 1e5,
) -> float:
    """What a client adds to every number of its clipped weights.

    >>> round(calculate_sigma_u(0.8, 1e-5, 1.5, 2, 1e4), 8)
    0.0036336
    """
    constant = noise_constant(delta)
    return Formula(
        epsilon, constant, l2_norm_clip, num_exposures, num_exposures, 1, int(min_dataset_size)
    ).upload_sigma


def calculate_sigma_d(
    epsilon: float,
    delta: float = 1 / 2e5,
    l2_norm_clip: float = 1.5,
    num_exposures: int | None = None,
    num_rounds: int | None = None,
    num_clients: int = 2,
    min_dataset_size: float = 1e5,
) -> float:
    """What the server adds to the mean; 0 where the noise of the uploads is enough.

    >>> calculate_sigma_d(0.8, 1 / 1e5, 1.5, 2, 3, 2, 1e4)
    0.0009084009867385104
    """
    exposures = (
        num_exposures if num_exposures is not None else num_rounds if num_rounds is not None else 3
    )
    rounds = num_rounds if num_rounds is not None else exposures
    if rounds < exposures:
        raise ValueError(f"num_rounds={rounds}: must be at least num_exposures={exposures}")
    constant, rows = noise_constant(delta), int(min_dataset_size)
    return Formula(
        epsilon, constant, l2_norm_clip, exposures, rounds, num_clients, rows
    ).download_sigma
