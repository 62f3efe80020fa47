"""The audit of a configuration: runs with and without a canary, on all cores, resumable; or one
with many canaries.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from homo_dp import __version__
from homo_dp.config.load import config_from
from homo_dp.config.mechanisms import DP_SGD
from homo_dp.config.schema import Config
from homo_dp.core.errors import InputError
from homo_dp.core.untrusted_text import Foreign
from homo_dp.evidence.attack import Attack
from homo_dp.evidence.audit import FEWEST, Audited, Scores, Wanted, judge, judge_one_run
from homo_dp.evidence.choose_attack import attack_name, attack_on
from homo_dp.runs.dry_run import settled_by_plan

CHUNK = 50  # runs between two saves


def audited(
    config: Config, wanted: Wanted, state: Path | None, done: Callable[[int], None]
) -> Audited:
    """Audit a configuration by many runs, or by one with many canaries; ``state`` keeps scores for
    an interrupted one.

    What the command and ``homo_dp.audit`` both call.
    """
    if not config.privacy.capabilities.private:
        raise InputError("privacy.mechanism=none: claims nothing, so there is nothing to refute")
    config, _ = settled_by_plan(config)
    found = (
        _one_run(config, wanted)
        if wanted.canaries is not None
        else _many_runs(config, wanted, state, done)
    )
    return replace(found, outcome=replace(found.outcome, mechanism=config.privacy.mechanism))


def _one_run(config: Config, wanted: Wanted) -> Audited:
    from homo_dp.evidence.many_canaries import NAME, many_canaries
    from homo_dp.evidence.record_attacks import CanaryGradient, recipe_of

    sums = config.privacy.capabilities.attacks.get("aggregator") == CanaryGradient.name
    if not sums or (wanted.canaries or 0) < 100:
        raise InputError(
            f"canaries={wanted.canaries}: give 100 or more, for privacy.mechanism: {DP_SGD.name}"
        )
    found = many_canaries(recipe_of(config), wanted.canaries or 0)
    outcome = judge_one_run(
        found.scores, found.present, found.claim, NAME, "aggregator", wanted.confidence
    )
    return Audited(
        outcome, Scores(found.scores[found.present], found.scores[~found.present]), found.claim
    )


def _many_runs(
    config: Config, wanted: Wanted, state: Path | None, done: Callable[[int], None]
) -> Audited:
    name, observer = attack_name(config, wanted.attack, wanted.observer)
    attack = attack_on(config, name, observer)
    tree = config.model_dump(mode="json")
    scores = run_attack(tree, name, observer, wanted.runs, max(1, wanted.jobs), state, done)
    return Audited(judge(attack, scores, wanted.confidence), scores, attack.claim)


def run_attack(
    tree: Mapping[str, Any],
    name: str,
    observer: str,
    runs: int,
    jobs: int,
    state: Path | None,
    done: Callable[[int], None],
) -> Scores:
    """``runs`` scores of an attack on a configuration, half with the canary; what ``state`` kept
    is not rerun.
    """
    if runs < 2 * FEWEST:
        raise InputError(f"runs={runs} is below {2 * FEWEST}; nothing can be shown with so few")
    key = hashlib.sha256(
        json.dumps([tree, name, observer, __version__], sort_keys=True).encode()
    ).hexdigest()[:16]
    found = _kept(state, key)
    need = {True: (runs + 1) // 2, False: runs // 2}
    done(sum(min(len(found[side]), need[side]) for side in need))
    pieces = [
        (side, min(CHUNK, need[side] - at))
        for side in need
        for at in range(len(found[side]), need[side], CHUNK)
    ]

    def take(side: bool, scores: list[float]) -> None:
        found[side] += scores
        if state is not None:
            state.parent.mkdir(parents=True, exist_ok=True)
            with state.open("a") as file:
                file.write(json.dumps({"key": key, "present": side, "scores": scores}) + "\n")
        done(len(scores))

    if jobs == 1 or len(pieces) <= 2:
        for side, count in pieces:
            take(side, _chunk(tree, name, observer, side, count))
    else:
        _on_all_cores(tree, name, observer, pieces, jobs, take)
    if state is not None:
        state.unlink(missing_ok=True)
    return Scores(*(np.array(found[side][: need[side]]) for side in (True, False)))


def _on_all_cores(
    tree: Mapping[str, Any],
    name: str,
    observer: str,
    pieces: list[tuple[bool, int]],
    jobs: int,
    take: Callable[[bool, list[float]], None],
) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        min(jobs, len(pieces)), mp_context=context, initializer=_ignore_interrupts
    ) as pool:
        running: dict[Future[list[float]], bool] = {}
        try:
            for side, count in pieces:
                running[pool.submit(_chunk, tree, name, observer, side, count)] = side
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    take(running.pop(future), future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_attacks: dict[str, Attack] = {}


def _chunk(
    tree: Mapping[str, Any], name: str, observer: str, present: bool, count: int
) -> list[float]:
    """Some runs in this process; the attack is built once."""
    import torch

    torch.set_num_threads(1)
    key = json.dumps([tree, name, observer], sort_keys=True)
    if key not in _attacks:
        _attacks.clear()
        _attacks[key] = attack_on(config_from(tree), name, observer)
    return [float(score) for score in _attacks[key].scores(present, count)]


def _kept(state: Path | None, key: str) -> dict[bool, list[float]]:
    """Scores that an interrupted audit of the same recipe kept; lines of others, or half
    written, are passed over.
    """
    found: dict[bool, list[float]] = {True: [], False: []}
    if state is None or not state.is_file():
        return found
    file = Foreign(str(state), "delete it: the runs are made again", InputError)
    for line in state.read_bytes().splitlines():
        try:
            read = file.json(line)
        except InputError:
            continue
        if (
            isinstance(read, dict)
            and read.get("key") == key
            and isinstance(read.get("scores"), list)
        ):
            found[bool(read.get("present"))] += [float(score) for score in read["scores"]]
    return found


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
