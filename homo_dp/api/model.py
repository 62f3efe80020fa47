"""A trained model in Python: predictions, scores, and the file it is saved to and loaded from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from homo_dp.api.own_code import import_path, keep, kept_name
from homo_dp.core.caller import warn_caller
from homo_dp.core.errors import DataError, ModelFileError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import torch

    from homo_dp.data.encoding import Encoding
    from homo_dp.models.files import ModelCard, SavedModel


class Model:
    """A trained model. Made by ``homo_dp.fit`` and ``homo_dp.load``; safe to share as far as
    its statement says.
    """

    def __init__(self, saved: SavedModel) -> None:
        from homo_dp.data.encoding import Encoding

        self._saved = saved
        self._encoding: Encoding = Encoding.from_json(dict(saved.card.encoding))
        saved.check_encoding(self._encoding.input_shape, self._encoding.classes)

    @property
    def classes(self) -> tuple[Any, ...]:
        """The classes in order; none for a regression."""
        return self._saved.card.classes

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a table to score must have."""
        return tuple(self._encoding.names)

    @property
    def label(self) -> str:
        """The name of the label column."""
        return self._saved.card.label or "y"

    @property
    def privacy(self) -> Mapping[str, Any]:
        """The privacy statement of the run that trained it."""
        return self._saved.card.privacy

    @property
    def card(self) -> ModelCard:
        """All that its file says about it."""
        return self._saved.card

    @property
    def module(self) -> torch.nn.Module:
        """The torch module, which takes encoded rows."""
        return self._saved.module

    def predict(self, rows: Any, threshold: float | None = None) -> np.ndarray:
        """The class of each row (for a regression, a number); ``threshold`` is for two classes."""
        import numpy as np

        task, outputs = self._saved.task, self._outputs(rows)
        if threshold is None:
            threshold = self._saved.card.threshold
        answers: np.ndarray = task.predictions(outputs, threshold).numpy()
        return (
            answers.astype(np.float64)
            if task.kind == "regression"
            else np.array(self.classes)[answers]
        )

    def predict_proba(self, rows: Any) -> np.ndarray:
        """The probability of every class, in the order of ``classes``; a row each."""
        import numpy as np

        task = self._saved.task
        if task.kind == "regression":
            raise DataError("predict_proba: this model predicts a number; use predict")
        found: np.ndarray = task.probabilities(self._outputs(rows)).double().numpy()
        return np.stack([1 - found, found], axis=1) if task.kind == "binary" else found

    def score(self, rows: Any, labels: Sequence[Any] | None = None) -> float:
        """Accuracy, or R² of a regression; labels are the label column of the rows unless they are
        given.

        The score of private rows is itself private: it is nowhere charged, so keep it where the
        rows are.
        """
        import numpy as np
        import pandas as pd

        truth = np.asarray(rows[self.label] if labels is None else labels)
        task = self._saved.task
        if task.kind != "regression":
            # 1, 1.0 and "1" are one class, as in training
            named = pd.DataFrame({self.label: truth})
            codes = self._encoding.encode_labels(named, "labels").numpy()
            found = task.predictions(self._outputs(rows), self._saved.card.threshold).numpy()
            return float(np.mean(found == codes))
        guessed = self.predict(rows)
        truth = truth.astype(np.float64)
        rest = float(np.sum((truth - truth.mean()) ** 2))
        return 1.0 - float(np.sum((truth - guessed) ** 2)) / rest if rest else float("nan")

    def save(self, path: str | PathLike[str]) -> None:
        """Write one safetensors file, whole or not at all; ``homo-dp infer`` and
        ``homo_dp.load`` read it.
        """
        from homo_dp.models.files import save_model

        save_model(str(path), self._saved.module.state_dict(), self._saved.card, "path")

    def __repr__(self) -> str:
        what = ", ".join(map(str, self.classes)) or "a number"
        return (
            f"Model({self._saved.card.architecture.name}: {what}; "
            f"{self.privacy.get('statement', 'no statement')})"
        )

    def _outputs(self, rows: Any) -> torch.Tensor:
        from homo_dp.models.scoring import outputs_of

        return outputs_of(self._saved.module, self._encoded(rows))

    def _encoded(self, rows: Any) -> torch.Tensor:
        import numpy as np
        import pandas as pd

        if self._encoding.pixel_bounds is not None:
            return self._encoding.encode_images(np.asarray(rows), "rows")
        if isinstance(rows, str | PathLike):
            from homo_dp.data.readers import read_table

            return self._counted(read_table(rows), str(rows))
        return self._counted(rows if isinstance(rows, pd.DataFrame) else self._named(rows), "rows")

    def _counted(self, frame: pd.DataFrame, source: str) -> torch.Tensor:
        """The rows encoded, with a warning for each column of which many values are not what was
        declared.
        """
        from homo_dp.data.unexpected_values import WARN_ABOVE, Strays

        strays = Strays()
        encoded = self._encoding.encode(frame, source, strays=strays)
        for line in strays.warnings(WARN_ABOVE):
            warn_caller(f"{source}: {line}")
        return encoded

    def _named(self, rows: Any) -> pd.DataFrame:
        import numpy as np
        import pandas as pd

        values = np.asarray(rows)
        if values.ndim != 2 or values.shape[1] != len(self.columns):
            raise DataError(
                f"rows: have shape {values.shape}; give a DataFrame, or an array with the "
                f"{len(self.columns)} columns of the model in their order"
            )
        return pd.DataFrame(values, columns=list(self.columns))


def load(path: str | PathLike[str], *, factory: bool | Callable[..., Any] = False) -> Model:
    """Open a model that training saved; nothing in the file is executed.

    A model of one's own needs its code again: give the class or function as ``factory``, or
    ``factory=True`` to import what the file names, if you trust it.

    >>> load("no_such_file.safetensors")
    Traceback (most recent call last):
    homo_dp.core.errors.ModelFileError: no_such_file.safetensors: no such model file; train first or correct the path
    """
    from homo_dp.models.files import load_model, read_card

    if isinstance(factory, bool):
        return Model(load_model(str(path), trust_factory=factory))
    named = read_card(str(path)).architecture.factory
    if named is None:
        raise ModelFileError(f"{path}: is a built-in model and has no factory; leave factory= out")
    kept = kept_name(named)
    if kept is not None:
        keep(kept, factory)
    elif import_path(factory) != named:
        raise ModelFileError(
            f"{path}: names the factory {named}, which is not the one given; give that one"
        )
    return Model(load_model(str(path), trust_factory=named))
