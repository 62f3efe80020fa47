"""A search of which the winner alone is published: a secret number of trials, a score that is
private itself, one file.

The bound of `privacy.accounting.selection` is about what is published. It holds only if

- all trials are the same mechanism: their settings are drawn anew from one distribution, and none
  of them changes what a trial releases;
- the number of trials is drawn at random and stays on this machine, with all that would tell it:
  the folder of trials with the ledger of trials in it, and times;
- the score is part of what a trial releases: metrics released with noise (and charged), or of
  public rows. A choice by exact scores of private rows has no bound for those rows.

The party's ledger is charged before the first trial, once for the whole search, with what
publishing the winner costs. Rows for each trial would tell the number of trials to every aggregator
of a later run: a party shows how long its ledger is. The trials charge a ledger of their own beside
them, which stays where they are.
"""

from __future__ import annotations

import json
import random
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError, InputError
from homo_dp.core.untrusted_text import Foreign, Schema
from homo_dp.federation.sessions.build import run_budget
from homo_dp.privacy.accounting.accountants import renyi, renyi_epsilon
from homo_dp.privacy.accounting.dp_event import (
    RepeatAndSelectDpEvent,
    SelfComposedDpEvent,
)
from homo_dp.privacy.accounting.events import EventText, compose, parts
from homo_dp.privacy.accounting.selection import (
    Distribution,
    check_mean,
    secret_number,
    shape_of,
)
from homo_dp.privacy.accounting.strength import strength
from homo_dp.privacy.errors import BudgetExceeded
from homo_dp.privacy.ledger import Charge, Ledger
from homo_dp.privacy.ledger.lifetime import Lifetime
from homo_dp.privacy.ledger.rows import Spend
from homo_dp.runs.sweep import Cell, cells_of
from homo_dp.runs.sweep_cost import extract_of
from homo_dp.tracking.files import write_json

SEARCH = "search"  # the kind of its rows on the ledger
LOCAL = "LOCAL"  # below --out: what must not leave this machine
PUBLISHED = "winner"  # below --out: what may
SAME_COST = (  # keys that change no event of a trial
    "model.activation",
    "model.layers",
    "privacy.max_grad_norm",
    "train.learning_rate",
    "train.momentum",
    "train.proximal_mu",
    "train.weight_decay",
)
# which decides, and whether more is better
FIGURES = (("acc", 1.0), ("auc", 1.0), ("loss", -1.0), ("mse", -1.0))


@dataclass(frozen=True)
class Search:
    """How many trials on average, and the distribution of their number."""

    mean: float
    distribution: Distribution
    ranges: tuple[str, ...] = ()  # what settings are drawn from


class _Kept(Schema):
    """The draw of a search, as it is kept."""

    local: str
    run: str
    search: list[Any]
    trials: list[dict[str, Any]]


def check_search(config: Config, keys: Sequence[str], search: Search) -> None:
    """Refuse a search for which the bound does not hold, before the first trial."""
    check_mean(search.mean)
    if not config.private or not config.privacy.built_in:
        raise ConfigError(
            "--publish winner: trials must be private, by a built-in privacy.mechanism"
        )
    if config.train.init_from is not None:
        raise ConfigError(
            "--publish winner: train.init_from costs more than the trials, and no event is kept of "
            "it; leave it out, or --publish"
        )
    stopping = config.train.early_stopping
    if stopping is not None and stopping.patience is not None:
        raise ConfigError(
            "--publish winner: trials that stop early differ in what they cost, and the bound is "
            "about equal ones; leave train.early_stopping out (train.keep: best may stay), or "
            "--publish"
        )
    for key in keys:
        if key not in SAME_COST:
            raise ConfigError(
                f"--publish winner: {key} can change what a trial costs, and the bound is about "
                f"trials that cost the same; search over {', '.join(SAME_COST)}, or leave "
                "--publish out"
            )
    if config.metrics.release != "noised" and not config.data.public_test:
        raise ConfigError(
            "--publish winner: the choice by exact scores of private test rows would tell about "
            "them; write metrics.release: noised (its cost is part of each trial), or "
            "data.public_test: true if the test rows are"
        )


def secret_trials(
    draw: Callable[[random.Random, int], list[dict[str, Any]]],
    search: Search,
    folder: Path,
    load: Callable[[Sequence[tuple[str, Any]]], Config],
) -> tuple[str, list[Cell]]:
    """The search's name on the ledger, and its trials, drawn from the operating system's entropy;
    an interrupted search keeps both.
    """
    kept = folder / LOCAL / "trials.json"
    said = json.loads(json.dumps([asdict(search), load([]).model_dump(mode="json")]))
    file = Foreign(str(kept), "give another folder as --out", InputError)
    try:
        found = file.check(_Kept, file.json(file.read(kept)))
    except FileNotFoundError:
        drawn = draw(random.SystemRandom(), secret_number(search.mean, search.distribution))
        run = f"search-{secrets.token_hex(6)}"
        local = "LOCAL: must not leave this machine"
        write_json(kept, {"local": local, "run": run, "search": said, "trials": drawn}, "--out")
    else:
        if found.search != said:
            raise InputError(
                f"--out {folder}: holds another search; give another folder (each search costs "
                "anew)"
            )
        run, drawn = found.run, found.trials
    return run, [_trial(values, number, folder, load) for number, values in enumerate(drawn)]


def _trial(
    values: Mapping[str, Any],
    number: int,
    folder: Path,
    load: Callable[[Sequence[tuple[str, Any]]], Config],
) -> Cell:
    """One trial: the seed is the config's, so that all trials are of the same tables; its number
    keeps it apart. It charges the ledger of the trials.
    """
    (cell,) = cells_of({key: (value,) for key, value in values.items()}, 1, folder / LOCAL, load)
    cell = replace(cell, repeat=number)
    output = {
        name: str(folder / LOCAL / "cells" / cell.id / Path(path).name)
        for name, path in cell.config.output.model_dump(mode="json").items()
        if name in ("predictFileName", "indicatorFileName", "modelFileName")
    }
    return replace(
        cell,
        config=cell.config.model_copy(
            update={
                "output": cell.config.output.model_copy(update=output),
                "privacy": cell.config.privacy.model_copy(
                    update={
                        "ledger": str(folder / LOCAL / "ledger.sqlite"),
                        # kept by the ledger that the search is charged to
                        "lifetime_epsilon": None,
                        "lifetime_delta": None,
                    }
                ),
            }
        ),
    )


def commitment(config: Config, search: Search, run: str) -> list[Charge]:
    """What a whole search is charged, one row a party, whatever the number of trials is.

    Guarantees:
        - it depends on the config and the search, not on the number that was drawn.
    """
    from homo_dp.runs.dry_run import planned_charges

    trials: dict[str, list[tuple[Charge, int]]] = {}
    for charge, rounds in planned_charges(config):
        trials.setdefault(charge.party, []).append((charge, rounds))
    return [
        replace(
            charges[0][0],
            run=run,
            round=0,
            kind=SEARCH,
            observer="model_reader",
            event=RepeatAndSelectDpEvent(
                compose(*(SelfComposedDpEvent(one.event, times) for one, times in charges)),
                search.mean,
                shape_of(search.distribution),
            ),
        )
        for charges in trials.values()
    ]


def commit(config: Config, search: Search, run: str) -> list[Charge]:
    """Charge a search before its first trial; one that was interrupted has paid already.

    Raises:
        BudgetExceeded: it would pass the lifetime budget.
    """
    charges = commitment(config, search, run)
    budget = replace(run_budget(config), epsilon=None)  # the target is that of one trial
    with Ledger(config.privacy.ledger) as ledger:
        refusal = ledger.would_exceed([(charge, 1) for charge in charges], budget)
        if refusal is not None:
            raise BudgetExceeded(refusal)
        for charge in charges:
            ledger.charge(charge, budget)
    return charges


@dataclass(frozen=True)
class SearchCost:
    """Epsilon of publishing the winner, and of as many trials as the mean with all results
    shown.
    """

    epsilon: float
    epsilon_of_sum: float
    delta: float
    about: tuple[str, str, str]  # dataset, unit, relation


def search_cost(
    results: Sequence[Mapping[str, Any]],
    search: Search,
    committed: Sequence[Charge],
    target_epsilon: float = 1.0,
) -> SearchCost:
    """The cost from what was committed; an error unless all trials charged the same, and no
    more.
    """
    charged, lifetimes, scopes, delta = [], [], set(), 0.0
    for result in results:
        lifetime, events = Lifetime(), Counter[tuple[str, EventText]]()
        for row in extract_of(result):
            event = EventText(json.dumps(row["event"], sort_keys=True, separators=(",", ":")))
            lifetime.add(row["run"], row["party"], Spend(event, row["unit"], row["relation"]))
            events[row["party"], event] += 1
            scopes.add((str(row["dataset"]), str(row["unit"]), str(row["relation"])))
            delta = max(delta, float(row["delta"]))
        charged.append(events)
        lifetimes.append(lifetime)
    if (
        not charged
        or not charged[0]
        or any(events != charged[0] for events in charged)
        or len(scopes) != 1
    ):
        raise InputError(
            "the trials did not all charge the same: nothing is published; the ledger holds "
            "their sum"
        )
    one = lifetimes[0].renyi()
    paid = Lifetime()
    for charge in committed:
        paid.add(charge.run, charge.party, charge.spend)
    if not _within(charged[0], committed):
        raise InputError(
            "a trial charged more than the search was charged for one: nothing is published"
        )
    whole, of_sum = (renyi_epsilon(each, delta) for each in (paid.renyi(), search.mean * one))
    return SearchCost(whole, of_sum, delta, scopes.pop())


def _within(charged: Counter[tuple[str, EventText]], committed: Sequence[Charge]) -> bool:
    """Whether a trial charged each party no more than the search was charged for one trial."""
    planned = {
        charge.party: renyi(parts(charge.event.event))
        for charge in committed
        if isinstance(charge.event, RepeatAndSelectDpEvent)
    }
    spent: dict[str, Counter[EventText]] = {}
    for (party, event), times in charged.items():
        spent.setdefault(party, Counter())[event] += times
    return all(
        party in planned and bool(np.all(renyi(counts) <= planned[party] * (1 + 1e-9)))
        for party, counts in spent.items()
    )


def best_of(
    trials: Sequence[tuple[Cell, Mapping[str, Any]]], *, public_test: bool
) -> tuple[Cell, str, float]:
    """The best trial by the first figure that all have: one released with noise, or of public
    rows.
    """
    prefix = "test_" if public_test else "released_"
    for name, sign in FIGURES:
        if all(result.get(prefix + name) is not None for _, result in trials):
            cell, result = max(trials, key=lambda each: sign * float(each[1][prefix + name]))
            return cell, prefix + name, float(result[prefix + name])
    raise InputError(
        "the trials have no released figure to choose by: nothing is published; give test rows"
    )


def publish(
    cell: Cell, figure: tuple[str, float], search: Search, cost: SearchCost, folder: Path
) -> dict[str, Path]:
    """Write the winner's model and what may be said of it; neither tells which trial it was, nor
    of how many.
    """
    from homo_dp.models.files import load_model, save_model

    target = folder / PUBLISHED
    statement = {
        "settings": dict(cell.values),
        "figure": {figure[0]: figure[1]},
        "epsilon": cost.epsilon,
        "delta": cost.delta,
        "dataset": cost.about[0],
        "unit": cost.about[1],
        "relation": cost.about[2],
        **cost_words(search, cost),
    }
    saved = load_model(
        str(cell.config.output.modelFileName), trust_factory=cell.config.model.factory or False
    )
    privacy = {
        name: value for name, value in saved.card.privacy.items() if name not in ("run", "parties")
    }
    privacy |= {"epsilon": cost.epsilon, "delta": cost.delta, "parties": {}, "search": statement}
    # whoever trains sees every trial: the bound is about readers of the winner alone
    privacy["observers"] = {
        "aggregator": {"epsilon": None},
        "model_reader": {"epsilon": cost.epsilon},
    }
    privacy["quoted_observer"] = "model_reader"
    privacy["strength"] = strength(cost.epsilon)
    privacy["statement"] = (
        f"epsilon {cost.epsilon:.4g} at delta {cost.delta:g} ({cost.about[1]}, {cost.about[2]}): "
        f"the winner of a search, cost by {statement['cost_by']}"
    )
    files = {"model": target / "model.safetensors", "winner": target / "winner.json"}
    save_model(
        files["model"], saved.module.state_dict(), replace(saved.card, privacy=privacy), "--out"
    )
    write_json(files["winner"], statement, "--out")
    return files


def cost_words(search: Search, cost: SearchCost) -> dict[str, Any]:
    """Which cost is used, and why."""
    smaller = cost.epsilon < cost.epsilon_of_sum
    return {
        "cost_by": (
            f"repeat and select: a {search.distribution} number of trials of mean {search.mean:g}, "
            "drawn in secret; the winner alone is published; its score is released with noise or "
            "of public rows"
        ),
        "epsilon_of_sum": cost.epsilon_of_sum,
        "why": (
            f"{'smaller' if smaller else 'NOT smaller'} than epsilon {cost.epsilon_of_sum:.4g}, "
            f"the sum of {search.mean:g} trials"
            + ("" if smaller else "; leave --publish out: a fixed number costs less")
        ),
        "conditions": (
            f"the folder {LOCAL} and how long the search took stay on this machine; the ledger has "
            "one row a party for the search, whatever the number of trials"
        ),
    }
