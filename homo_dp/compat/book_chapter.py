"""The conf.json of the DP-FedAvg chapter of a book on federated learning (`python main.py -c
conf.json`) in our words.

There the server adds noise of an absolute standard deviation `sigma` to `lambda` times the sum of
`k` clipped updates, so one client moves that sum by at most lambda C: the noise multiplier is sigma
/ (lambda C).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homo_dp.compat.translation import Ask, Fallback, System, Translation
from homo_dp.config.layers import put
from homo_dp.core.errors import ConfigError

KEYS = frozenset(
    [
        "model_name",
        "no_models",
        "type",
        "global_epochs",
        "local_epochs",
        "k",
        "batch_size",
        "lr",
        "momentum",
        "lambda",
        "dp",
        "C",
        "sigma",
        "q",
        "W",
    ]
)
# What the chapter's own conf.json says, for keys that a file leaves open.
_LEFT_OPEN = {"local_epochs": 3, "batch_size": 32, "lr": 0.01, "momentum": 0.0001}
_MARKS = ("no_models", "global_epochs")
_SAME = {
    "global_epochs": "train.rounds",
    "local_epochs": "train.local_epochs",
    "batch_size": "train.batch_size",
    "lr": "train.learning_rate",
    "momentum": "train.momentum",
}


def is_book_chapter(tree: Mapping[str, Any]) -> bool:
    """Whether a tree is the chapter's conf.json."""
    return all(name in tree for name in _MARKS)


def translate_book_chapter(
    tree: Mapping[str, Any], _overrides: Mapping[str, Any], source: str
) -> Translation:
    """Translate every key of the chapter.

    Args:
        tree: what the file holds.
        _overrides: not used; they are keys of ours.
        source: what an error calls the file.

    Returns:
        The settings in our keys; other keys stay as they are, for ours may stand beside them.

    Raises:
        ConfigError: a value of the chapter has no meaning.
    """
    done = Translation(system="the chapter's conf.json")
    for name in tree:
        if name in _SAME:
            put(done.tree, tuple(_SAME[name].split(".")), tree[name])
        elif name not in KEYS:
            done.tree[name] = tree[name]
    clients, drawn = _whole(tree, "no_models", source), _whole(tree, "k", source)
    if drawn > clients:
        raise ConfigError(f"{source}: k={drawn}: must be at most no_models={clients}")
    done.fallbacks += [
        Fallback(_SAME[name], value, name) for name, value in _LEFT_OPEN.items() if name not in tree
    ]
    done.fallbacks.append(Fallback("data.partition.parties", clients))
    _model_and_data(tree, done)
    step = _number(tree, "lambda", source, 1.0 / drawn)
    put(done.tree, ("train", "server_optimizer"), {"name": "fedavg", "learning_rate": step * drawn})
    done.notes.append(
        f"lambda={step:g}: multiplies the sum of k={drawn} updates; of their mean it is "
        f"{step * drawn:g}"
    )
    if tree.get("dp") is True:
        _privacy(tree, source, done, step, clients, drawn)
    elif tree.get("dp") is not False:
        text = (
            f"{source}: dp={tree.get('dp')}: must be true (DP-FedAvg, with C and sigma) or false "
            "(NOT PRIVATE); write one of them, or set privacy.mechanism"
        )
        done.asks.append(Ask(text, ("privacy.mechanism",), needed=True))
    else:
        put(done.tree, ("privacy", "mechanism"), "none")
        done.notes.append("dp: is false, so the run is NOT PRIVATE; write true for DP-FedAvg")
        if drawn != clients:
            done.notes.append(
                f"k={drawn}: without dp every party takes part in every round; left aside"
            )
    return done


def _model_and_data(tree: Mapping[str, Any], done: Translation) -> None:
    """A network and a data set that are here, where nothing names others."""
    images = str(tree.get("type", "cifar")) in ("cifar", "mnist")
    if "model_name" in tree:
        name = "cnn" if images else "mlp"
        text = (
            f"model_name={tree['model_name']}: torchvision's networks hold BatchNorm, whose "
            f"statistics mix rows; trained is model.name={name} (model.factory brings another)"
        )
        done.fallbacks.append(Fallback("model.name", name, note=text, unless=("model.factory",)))
    text = (
        f"type={tree.get('type', 'cifar')}: is not shipped; trained on the bundled digits, give "
        "data.files=FILE for yours"
    )
    done.fallbacks.append(
        Fallback("data.embedded", "digits", note=text, unless=("federation.run",))
    )


def _privacy(
    tree: Mapping[str, Any], source: str, done: Translation, step: float, clients: int, drawn: int
) -> None:
    clip, sigma = _number(tree, "C", source), _number(tree, "sigma", source)
    multiplier = sigma / (step * clip)
    settings: dict[str, Any] = {
        "mechanism": "dp_fedavg",
        "unit": "user",
        "clip_norm": clip,
        "noise_multiplier": multiplier,
        "population": clients,
        "sampling": "poisson",
        "cohort_size": drawn,
        "clip_each_step": True,  # the chapter's clients clip after every batch
        "noise_at": "server",
        "trust_aggregator": True,
    }
    for name, value in settings.items():
        put(done.tree, ("privacy", name), value)
    done.notes.append(
        f"sigma={sigma:g}: is absolute there, added to lambda times the sum of updates clipped to "
        f"C={clip:g}; that is privacy.noise_multiplier={multiplier:.4g} = sigma / (lambda C)"
        + ("; below 0.3 hardly anything is hidden, see epsilon" if multiplier < 0.3 else "")
    )
    done.notes.append(
        "dp: the server adds the noise and sees updates without it, which is "
        "privacy.trust_aggregator=true"
    )
    if "q" in tree:
        rate = _number(tree, "q", source)
        done.notes.append(
            f"q={rate:g}: the share of clients in a round is k / no_models = {drawn / clients:g} "
            "here, drawn at random"
        )
    if "W" in tree:
        done.notes.append("W: clients count the same, so the sum of their weights follows from k")


def _whole(tree: Mapping[str, Any], name: str, source: str) -> int:
    value = tree.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{source}: {name}={value}: must be a whole number of at least 1")
    return value


def _number(tree: Mapping[str, Any], name: str, source: str, default: float | None = None) -> float:
    value = tree.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ConfigError(f"{source}: {name}={value}: must be a number above 0")
    return float(value)


BOOK_CHAPTER = System("the DP-FedAvg chapter", is_book_chapter, translate_book_chapter)
