"""How linear models are fitted by sums: standardisation, second moment, whitening, gradient."""
