"""scikit-learn estimators that train with differential privacy: ``fit(X, y, parties=None)``.

They work in pipelines, ``clone`` and searches over parameters. What is public about the rows
(``bounds``, ``classes``) is declared, not read off them; a boolean or 0/1 target needs no classes.
Every fit is charged to the file ``ledger``. A search over parameters spends epsilon at every fit.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from homo_dp.api.tables import feature_names
from homo_dp.api.training import fit
from homo_dp.core.caller import warn_caller
from homo_dp.core.errors import InputError

__all__ = [
    "PrivacyLeakError",
    "PrivateLinearRegression",
    "PrivateLogisticRegression",
    "PrivateMLPClassifier",
]

LEDGER = "ledger.sqlite"  # in the working folder, as for the commands
ALONE = "one"  # the party that holds all rows where none are named
MOST_CLIPPED = 0.5  # share of a column's values


class PrivacyLeakError(InputError):
    """Something would be read off private rows that must be declared; diffprivlib warns, here it
    is refused.
    """


class _Private(BaseEstimator):  # type: ignore[misc]
    """What the estimators share: checking, training, and where the result is kept."""

    _model = ""
    _regression = False

    def _fit(self, X: Any, y: Any, parties: Any, labels: dict[str, Any]) -> Self:
        low, high = self._bounds(X)
        names = feature_names(X.shape[1])
        named = ALONE if parties is None else parties
        held = np.full(len(X), named) if isinstance(named, str) else np.asarray(named).astype(str)
        if held.shape != (len(X),):
            raise InputError(
                f"parties: has shape {held.shape}; give the name of a party for each of {len(X)} "
                "rows, or one"
            )
        result = fit(
            {str(name): (X[held == name], y[held == name]) for name in np.unique(held)},
            label="y",
            epsilon=self.epsilon,
            bounds={name: (float(low[at]), float(high[at])) for at, name in enumerate(names)},
            ledger=self.ledger,
            model=self._model,
            progress=False,
            settings={
                "privacy.delta": self.delta,
                **self._knobs(),
                "train.seed": self.seed,
                "data.test_fraction": 0.0,
                "data.counts": "public",
                **({"data.name": self.data_name} if self.data_name is not None else {}),
                **labels,
            },
        )
        self.model_, self.privacy_, self.epsilon_ = result.model, result.privacy, result.epsilon
        self.n_iter_ = len(result.rounds)
        self._say_what_is_clipped(X, low, high)
        return self

    def _say_what_is_clipped(self, X: Any, low: Any, high: Any) -> None:
        """Warn of bounds that leave little of the columns; only whoever holds the rows sees it."""
        shares = np.mean((low > X) | (high < X), axis=0)
        much = np.flatnonzero(shares > MOST_CLIPPED)
        if len(much):
            others = f" and {len(much) - 1} more" if len(much) > 1 else ""
            warn_caller(
                f"bounds={self.bounds!r}: {shares[much[0]]:.0%} of column {much[0]}{others} lie "
                "outside and were clipped; give the public range of every column"
            )

    def _knobs(self) -> dict[str, Any]:
        """The settings that are given; rules choose the others around them."""
        asked = {
            "privacy.max_grad_norm": self.clip_norm,
            "train.rounds": self.rounds,
            "train.batch_size": self.batch_size,
            "train.learning_rate": self.learning_rate,
        }
        return {name: given for name, given in asked.items() if given is not None}

    def _bounds(self, X: Any) -> tuple[Any, Any]:
        if self.bounds is None:
            self._leak(
                "bounds", "what is publicly known of every column, for example bounds=(-1, 1)"
            )
            low, high = X.min(axis=0), X.max(axis=0)
            return low, np.where(high > low, high, low + 1)
        try:
            low, high = (
                np.broadcast_to(np.asarray(end, dtype=float), (X.shape[1],)) for end in self.bounds
            )
        except (TypeError, ValueError):
            raise InputError(
                f"bounds={self.bounds!r}: must be (low, high), each a number or one for each of "
                f"{X.shape[1]} columns"
            ) from None
        return low, high

    def _leak(self, name: str, instead: str) -> None:
        if not self.allow_leaks:
            raise PrivacyLeakError(
                f"{name}=None: would be read off the rows, which epsilon does not cover; declare "
                f"{instead}, or write allow_leaks=True"
            )

    def _rows(self, X: Any) -> Any:
        check_is_fitted(self)
        return validate_data(self, X, reset=False, dtype=np.float64)


def _tags(tags: Any, kind: Any) -> Any:
    tags.non_deterministic = True  # noise is never seeded
    kind.poor_score = True  # noise for epsilon on the few rows of a check
    return tags


class _PrivateClassifier(ClassifierMixin, _Private):  # type: ignore[misc]
    def fit(self, X: Any, y: Any, parties: Any = None) -> Self:
        """Train; ``parties`` names the party of each row, or the one that holds all."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_ = self._classes(y)
        if len(self.classes_) < 2:
            raise InputError(
                f"classes: a classifier needs more than 1 class, here is {len(self.classes_)} class"
            )
        codes = {label: code for code, label in enumerate(self.classes_.tolist())}
        strange = [label for label in np.unique(y).tolist() if label not in codes]
        if strange:
            raise InputError(
                f"y: {strange[0]!r} is not one of classes={self.classes_.tolist()}; list every "
                "class"
            )
        numbers = np.array([codes[label] for label in y.tolist()], dtype=np.int64)
        return self._fit(
            X, numbers, parties, {"data.classes": list(range(len(codes))), **self._own()}
        )

    def predict(self, X: Any) -> Any:
        """The class of each row."""
        rows = self._rows(X)
        return self.classes_[self.model_.predict(rows).astype(np.int64)]

    def predict_proba(self, X: Any) -> Any:
        """The probability of each of ``classes_``, a row each."""
        rows = self._rows(X)
        return self.model_.predict_proba(rows)

    def _classes(self, y: Any) -> Any:
        """The classes: as declared, public by the target's type, or read off where that is allowed.

        The error for labels of one class depends on the rows. Only the caller of ``fit``, who holds
        the rows, sees it, and declared classes never raise it.
        """
        if self.classes is not None:
            return np.asarray(self.classes)
        found = np.unique(y)
        if self.allow_leaks or set(found.tolist()) <= {0, 1}:  # False == 0; the text "0" does not
            return found
        raise PrivacyLeakError(
            "classes=None: Only binary classification is supported without declared classes, of a "
            "target of booleans or of 0 and 1. "
            f"The type of the target is {type_of_target(y)}. "
            "Other classes would be read off the rows, which epsilon does not cover; declare all "
            "of them, for example classes=['no', 'yes'], or write allow_leaks=True"
        )

    def _own(self) -> dict[str, Any]:
        return {}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # Without declared classes only a boolean or 0/1 target is accepted.
        tags.classifier_tags.multi_class = self.allow_leaks or self.classes is not None
        return _tags(tags, tags.classifier_tags)


class PrivateLogisticRegression(_PrivateClassifier):
    """Logistic regression: binary or multinomial, one party or many.

    Args:
        epsilon: What one fit may cost each party. ``epsilon_`` is what it did cost, ``privacy_``
            the statement.
        bounds: Public ``(low, high)`` of the columns, numbers or one for each column, as in
            diffprivlib. Values outside are clipped.
        classes: All classes that there can be. A target of booleans or of 0 and 1 needs none.
        delta: The delta that epsilon goes with; None: by the number of rows (docs/guarantees.md).
        ledger: The file that keeps what was spent over several fits, ``ledger.sqlite`` in the
            working folder unless given; ``None``: what several fits cost together is not kept.
        data_name: The name of the data in the ledger.
        rounds: Rounds of training. Rules choose it from public facts unless it is given, and
            likewise the three settings below (docs/auto.md).
        batch_size: Mean rows of a step.
        learning_rate: Learning rate of a step.
        clip_norm: L2 norm to which the gradient of a row is clipped.
        seed: Of initial weights; noise is never seeded.
        allow_leaks: Read ``bounds=None`` and ``classes=None`` off the rows, which epsilon does not
            cover.

    Raises:
        PrivacyLeakError: Something would be read off the rows, and ``allow_leaks`` is False.
        InputError: An argument or the rows cannot be used.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (300, 2))
    >>> model = PrivateLogisticRegression(epsilon=8, ledger=None, rounds=5)
    >>> model.fit(X, (X.sum(axis=1) > 0).astype(int)).epsilon_ <= 8
    True
    """

    _model = "logistic_regression"

    def __init__(
        self,
        epsilon: float = 1.0,
        bounds: Any = (-1, 1),
        *,
        classes: Any = None,
        delta: float | None = None,
        ledger: str | None = LEDGER,
        data_name: str | None = None,
        rounds: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        clip_norm: float | None = None,
        seed: int = 0,
        allow_leaks: bool = False,
    ) -> None:
        self.epsilon = epsilon
        self.bounds = bounds
        self.classes = classes
        self.delta = delta
        self.ledger = ledger
        self.data_name = data_name
        self.rounds = rounds
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.clip_norm = clip_norm
        self.seed = seed
        self.allow_leaks = allow_leaks


class PrivateMLPClassifier(_PrivateClassifier):
    """Dense layers, trained privately; the arguments of ``PrivateLogisticRegression``, and the
    widths of the layers.

    >>> PrivateMLPClassifier(hidden_layer_sizes=(8,)).get_params()["hidden_layer_sizes"]
    (8,)
    """

    _model = "mlp"

    def __init__(
        self,
        epsilon: float = 1.0,
        bounds: Any = (-1, 1),
        *,
        hidden_layer_sizes: Any = (32,),
        classes: Any = None,
        delta: float | None = None,
        ledger: str | None = LEDGER,
        data_name: str | None = None,
        rounds: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        clip_norm: float | None = None,
        seed: int = 0,
        allow_leaks: bool = False,
    ) -> None:
        self.epsilon = epsilon
        self.bounds = bounds
        self.hidden_layer_sizes = hidden_layer_sizes
        self.classes = classes
        self.delta = delta
        self.ledger = ledger
        self.data_name = data_name
        self.rounds = rounds
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.clip_norm = clip_norm
        self.seed = seed
        self.allow_leaks = allow_leaks

    def _own(self) -> dict[str, Any]:
        return {"model.layers": list(np.atleast_1d(self.hidden_layer_sizes))}


class PrivateLinearRegression(RegressorMixin, _Private):  # type: ignore[misc]
    """Linear regression, with settings by rule unless given; the target is clipped to its public
    ``target_bounds``.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (300, 2))
    >>> PrivateLinearRegression(epsilon=8, ledger=None, rounds=3).fit(X, X.mean(axis=1)).predict(X[:2]).shape
    (2,)
    """

    _model = "linear_regression"

    def __init__(
        self,
        epsilon: float = 1.0,
        bounds: Any = (-1, 1),
        *,
        target_bounds: Any = (-1, 1),
        delta: float | None = None,
        ledger: str | None = LEDGER,
        data_name: str | None = None,
        rounds: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        clip_norm: float | None = None,
        seed: int = 0,
        allow_leaks: bool = False,
    ) -> None:
        self.epsilon = epsilon
        self.bounds = bounds
        self.target_bounds = target_bounds
        self.delta = delta
        self.ledger = ledger
        self.data_name = data_name
        self.rounds = rounds
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.clip_norm = clip_norm
        self.seed = seed
        self.allow_leaks = allow_leaks

    def fit(self, X: Any, y: Any, parties: Any = None) -> Self:
        """Train; ``parties`` names the party of each row, or the one that holds all."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        bounds = self.target_bounds
        if bounds is None:
            self._leak("target_bounds", "the public range of y, for example target_bounds=(0, 100)")
            bounds = (float(y.min()), float(max(y.max(), y.min() + 1)))
        return self._fit(
            X,
            y.astype(np.float64),
            parties,
            {"data.target_bounds": [float(end) for end in bounds]},
        )

    def predict(self, X: Any) -> Any:
        """A number for each row, in the units of y."""
        rows = self._rows(X)
        return self.model_.predict(rows)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        return _tags(tags, tags.regressor_tags)
