"""Our logistic regression beside diffprivlib's on the bundled sets: python benchmarks/estimators.py
ours|diffprivlib.

diffprivlib 0.6.6 needs scikit-learn below 1.6 and so an environment of its own:
    python -m venv other && other/bin/pip install diffprivlib "scikit-learn<1.6"
    python benchmarks/estimators.py ours && other/bin/python benchmarks/estimators.py diffprivlib
Both get the same rows, clipped to our public bounds and scaled to [-1, 1], and five splits.
"""

from __future__ import annotations

import ast
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split

EPSILONS, SPLITS = (0.1, 1.0, 8.0), 5


def scaled(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a bundled set within our bounds, and their classes."""
    X, y = (load_breast_cancer if name == "breast_cancer" else load_digits)(return_X_y=True)
    if name == "digits":
        low, high = np.zeros(X.shape[1]), np.full(X.shape[1], 16.0)
    else:
        low, high = np.array(
            [pair for part in zip(*_nucleus().values(), strict=True) for pair in part], dtype=float
        ).T
    return (np.clip(X, low, high) - low) / (high - low) * 2 - 1, y


def _nucleus() -> dict[str, Any]:
    """The bounds as they stand in homo_dp/data/embedded.py, which the other environment cannot
    import.
    """
    tree = ast.parse(
        (Path(__file__).parents[1] / "homo_dp" / "data" / "embedded.py").read_text(encoding="utf-8")
    )
    named = [node for node in tree.body if isinstance(node, ast.AnnAssign)]
    found = next(node.value for node in named if getattr(node.target, "id", "") == "_NUCLEUS")
    bounds: dict[str, Any] = ast.literal_eval(ast.unparse(found)) if found is not None else {}
    return bounds


def estimator(whose: str, epsilon: float, columns: int, classes: int) -> Any:
    """Each with its defaults; diffprivlib is told the largest norm of a row, which the bounds
    give.
    """
    if whose == "ours":
        from homo_dp.sklearn import PrivateLogisticRegression

        return PrivateLogisticRegression(epsilon=epsilon, classes=list(range(classes)), ledger=None)
    from diffprivlib.models import LogisticRegression

    return LogisticRegression(epsilon=epsilon, data_norm=float(np.sqrt(columns)), max_iter=1000)


def main() -> None:
    """Print mean and standard deviation of the accuracy on a fifth of the rows."""
    warnings.simplefilter("ignore")
    whose = sys.argv[1] if len(sys.argv) > 1 else "ours"
    for name in ("breast_cancer", "digits"):
        X, y = scaled(name)
        for epsilon in EPSILONS:
            scores = []
            for seed in range(SPLITS):
                a, b, c, d = train_test_split(X, y, test_size=0.2, random_state=seed, stratify=y)
                made = estimator(whose, epsilon, X.shape[1], len(np.unique(y)))
                scores.append(made.fit(a, c).score(b, d))
            print(
                f"{whose} {name} epsilon {epsilon:g}: {np.mean(scores):.3f} +- "
                f"{np.std(scores):.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
