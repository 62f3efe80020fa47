"""The description of a model: enough to build it again, small enough to be kept in its file."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol

from homo_dp.config.model import IMAGE_FEATURES
from homo_dp.core.errors import ConfigError
from homo_dp.models.activations import ACTIVATIONS

NAMES = ("logistic_regression", "linear_regression", "mlp", "cnn", *IMAGE_FEATURES)
LEAST_SIDES = {"scattering": 2, "scattering2": 4}  # pixels
LARGEST_WIDTH = 1 << 24
MOST_LAYERS = 256
DEFAULT_LAYERS = (64,)
DEFAULT_CHANNELS = (16, 32)


class ModelSettings(Protocol):
    """The `model` block of the config, as far as building a module needs it."""

    @property
    def name(self) -> str: ...
    @property
    def factory(self) -> str | None: ...
    @property
    def fix(self) -> bool: ...
    @property
    def layers(self) -> Sequence[int] | None: ...
    @property
    def activation(self) -> str | None: ...
    @property
    def channels(self) -> Sequence[int] | None: ...
    @property
    def bias(self) -> bool: ...
    @property
    def options(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Architecture:
    """Everything that decides a module's parameters, with every default filled in.

    >>> card = Architecture("mlp", input_shape=(30,), outputs=1, layers=(16,))
    >>> Architecture.from_json(card.to_json()) == card
    True
    """

    name: str
    input_shape: tuple[int, ...]
    outputs: int
    layers: tuple[int, ...] = ()
    channels: tuple[int, ...] = ()
    activation: str = "tanh"
    bias: bool = True
    factory: str | None = None
    fix: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments of the factory

    def __post_init__(self) -> None:
        if self.factory is None and self.name not in NAMES:
            raise ConfigError(
                f"model.name={self.name}: unknown; choose one of {', '.join(NAMES)}, or set "
                "model.factory"
            )
        if self.activation not in ACTIVATIONS:
            known = ", ".join(sorted(ACTIVATIONS))
            raise ConfigError(f"model.activation={self.activation}: unknown; choose one of {known}")
        for key, sizes in (
            ("input_shape", self.input_shape),
            ("layers", self.layers),
            ("channels", self.channels),
        ):
            _check_sizes(f"model.{key}", sizes)
        _check_sizes("model.outputs", (self.outputs,))
        if not self.input_shape:
            raise ConfigError(
                "model.input_shape=[]: the data have no feature columns; check data.use and "
                "data.drop"
            )
        if self.inputs > LARGEST_WIDTH:
            raise ConfigError(
                f"model.input_shape={self.input_shape}: at most {LARGEST_WIDTH} numbers a record"
            )
        if self.name in ("cnn", *IMAGE_FEATURES) and self.factory is None:
            if len(self.input_shape) != 3:
                raise ConfigError(
                    f"model.name={self.name}: needs images of shape (channels, height, width), the "
                    f"data have shape {self.input_shape}; use image data or model.name=mlp"
                )
            least = LEAST_SIDES.get(self.name, 1)
            if min(self.input_shape[1:]) < least:
                raise ConfigError(
                    f"model.name={self.name}: needs images of at least {least} x {least} pixels, "
                    f"the data have shape {self.input_shape}; use model.name=logistic_regression "
                    "or mlp"
                )
            if self.name == "cnn" and not self.channels:
                raise ConfigError(
                    "model.channels=[]: a cnn needs at least one block, for example [16, 32]"
                )

    @property
    def inputs(self) -> int:
        """Numbers per record."""
        return math.prod(self.input_shape)

    def to_json(self) -> str:
        """Canonical JSON text."""
        try:
            return json.dumps(asdict(self), sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"model.options: must be plain JSON values to be kept in the model file ({error})"
            ) from error

    @classmethod
    def from_json(cls, text: str) -> "Architecture":
        """Read what `to_json` wrote; anything else is a `ConfigError`."""
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError("architecture: is not JSON") from error
        names = {entry.name for entry in fields(cls)}
        if not isinstance(raw, dict) or set(raw) != names:
            raise ConfigError(
                f"architecture: must have exactly the keys {', '.join(sorted(names))}"
            )
        for key in ("input_shape", "layers", "channels"):
            if not isinstance(raw[key], list):
                raise ConfigError(f"architecture.{key}: must be a list of whole numbers")
            raw[key] = tuple(raw[key])
        _check_types(raw)
        return cls(**raw)


def architecture_of(
    settings: ModelSettings, input_shape: Sequence[int], outputs: int
) -> Architecture:
    """The architecture that a `model` block asks for on data of this shape."""
    factory = settings.factory or None
    name = "factory" if factory else settings.name
    plain = name in ("logistic_regression", "linear_regression", *IMAGE_FEATURES, "factory")
    layers = settings.layers
    if layers is None:
        layers = DEFAULT_LAYERS if name == "mlp" else ()
    channels = DEFAULT_CHANNELS if settings.channels is None else settings.channels
    return Architecture(
        name=name,
        input_shape=tuple(int(size) for size in input_shape),
        outputs=outputs,
        layers=() if plain else tuple(layers),
        channels=tuple(channels) if name == "cnn" else (),
        activation=settings.activation or "tanh",
        bias=settings.bias,
        factory=factory,
        fix=bool(settings.fix) if factory else False,
        options=dict(settings.options) if factory else {},
    )


def _check_sizes(key: str, sizes: Sequence[Any]) -> None:
    if len(sizes) > MOST_LAYERS:
        raise ConfigError(f"{key}: {len(sizes)} entries; at most {MOST_LAYERS}")
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= LARGEST_WIDTH:
            raise ConfigError(f"{key}={size!r}: must be a whole number from 1 to {LARGEST_WIDTH}")


def _check_types(raw: dict[str, Any]) -> None:
    kinds: dict[str, type | tuple[type, ...]] = {
        "name": str,
        "activation": str,
        "bias": bool,
        "fix": bool,
        "factory": (str, type(None)),
        "options": dict,
    }
    for key, kind in kinds.items():
        if not isinstance(raw[key], kind):
            raise ConfigError(f"architecture.{key}: is of the wrong type")
