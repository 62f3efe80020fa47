"""The configuration that a command line describes, in our words or in those of other systems."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from homo_dp.console.options import use_threads
from homo_dp.core.errors import ConfigError

if TYPE_CHECKING:
    from homo_dp.compat.load import Loaded


def load_from_arguments(
    arguments: argparse.Namespace, extra: Iterable[tuple[str, Any]] = ()
) -> Loaded:
    """The configuration that `--config`, `--cfg` and `--params` (and, over them, `extra`)
    describe, with its notes; without a file, that of `config.yaml` in the working folder.
    """
    # pydantic may be missing, which is then an error of one line, and --help does not need it
    from homo_dp.compat.load import load
    from homo_dp.compat.params import parse_pairs, parse_params
    from homo_dp.config.load import working_config

    path, pairs, found = arguments.config, parse_pairs(()), None
    if arguments.cfg:
        if path is not None:
            raise ConfigError(
                f"--cfg {arguments.cfg[0]}: is another name of --config; give only one of them"
            )
        path, pairs = arguments.cfg[0], parse_pairs(arguments.cfg[1:])
    if path is None and not arguments.no_working_config:
        path = found = working_config()
    params = parse_params(text for group in arguments.params for text in group)
    try:
        loaded = load(path, (*pairs.items, *params.items, *extra))
    except ConfigError as error:
        if found is None:
            raise
        raise ConfigError(
            f"{error}; {found} of this folder is read, --config FILE names another"
        ) from None
    use_threads(loaded.config.train.threads)
    return replace(loaded, notes=(*loaded.notes, *params.notes))


def overridden_keys(arguments: argparse.Namespace) -> set[str]:
    """The dotted keys that `--params` and `--cfg FILE key value` set."""
    from homo_dp.compat.params import parse_pairs, parse_params

    params = parse_params(text for group in arguments.params for text in group).items
    pairs = parse_pairs((arguments.cfg or [""])[1:]).items
    return {key for key, _ in (*params, *pairs)}
