"""The `model` section: what is trained."""

from typing import Any, Literal, Self

from pydantic import model_validator

from homo_dp.config.base import (
    Conflict,
    Counts,
    Flag,
    ImportPath,
    Section,
    key,
    mapping,
)

IMAGE_FEATURES = ("scattering", "scattering2")  # linear models on fixed features of images


class ModelConfig(Section):
    """Which model, and its shape."""

    name: Literal[
        "logistic_regression", "linear_regression", "mlp", "cnn", "scattering", "scattering2"
    ] = key(
        "logistic_regression",
        "A built-in model. Logistic regression is binary or multinomial by the classes; "
        "`scattering2` is one on fixed features of images, `scattering` one on fewer kinds of "
        "them.",
    )
    task: Literal["classification", "regression"] | None = key(
        None,
        "What an `mlp`, `cnn` or factory predicts; null: regression for linear_regression, else "
        "classification.",
    )
    factory: ImportPath | None = key(
        None, "`package.module:function` that returns your own torch module and loss."
    )
    options: dict[str, Any] = mapping("Keyword arguments for the factory.")
    fix: Flag = key(False, "Let Opacus' validator replace layers that cannot be private.")
    layers: Counts = key(
        (64,), "Widths of the hidden dense layers (mlp; after the convolutions in cnn)."
    )
    channels: Counts = key((16, 32), "Channels of the convolutions (cnn).")
    activation: Literal["relu", "tanh", "tempered_sigmoid", "sigmoid", "gelu", "elu"] = key(
        "tanh",
        "Between layers (mlp, cnn); bounded ones keep gradients, and so the price of clipping, "
        "small.",
    )
    bias: Flag = key(True, "Whether dense layers have a bias.")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("task") is None:
            regression = given.get("name") == "linear_regression" and not given.get("factory")
            return {**given, "task": "regression" if regression else "classification"}
        return given

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.factory is None and self.options:
            raise Conflict(
                "model.options: only a factory takes options; give "
                "model.factory=package.module:function"
            )
        fixed = {
            "linear_regression": "regression",
            "logistic_regression": "classification",
            **dict.fromkeys(IMAGE_FEATURES, "classification"),
        }
        if self.factory is None and fixed.get(self.name, self.task) != self.task:
            raise Conflict(
                f"model.task={self.task}: model.name={self.name} does {fixed[self.name]}; "
                "leave model.task out or choose model.name=mlp"
            )
        return self
