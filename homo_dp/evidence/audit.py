"""One audit: runs with and without a canary, on all cores, resumable, and what they certify."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homo_dp import __version__
from homo_dp.core.errors import InputError
from homo_dp.core.untrusted_text import Foreign
from homo_dp.evidence.attack import Attack
from homo_dp.evidence.estimators import clopper_pearson, f_dp_one_run, guesses_at, one_run
from homo_dp.evidence.tradeoff import Claim, Profile, gaussian_profile

Floats = NDArray[np.float64]
CONFIDENCE = 0.999  # so that hundreds of audits of sound mechanisms raise no false alarm
CHUNK = 50  # runs between two saves
PILOT = 0.2  # of the runs, for a threshold where the law of the scores is not known beforehand
FEWEST = 20
ASSUMES = {
    "clopper_pearson": "independent runs; threshold fixed beforehand; read by (epsilon, delta) and by the curve of the "
    "claimed mechanism with other noise",
    "f_dp_one_run": "canaries in or out by independent fair coins; the curve of a Gaussian",
}


@dataclass(frozen=True)
class Outcome:
    """What an audit found; the first seven are what others rely on."""

    claimed_epsilon: float
    lower_bound: float
    confidence: float
    ceiling: float | None
    point_estimate: float | None
    attack: str
    observer: str
    delta: float
    runs: int
    refuted: bool
    estimator: str
    assumes: str
    bound_by_epsilon_delta_alone: float
    threshold: float
    true_positives: int
    present: int
    false_positives: int
    absent: int
    mechanism: str | None = None
    ceiling_of_attack: float | None = None

    def to_json(self) -> dict[str, Any]:
        """With null for what is infinite or unknown."""
        return {key: _plain(value) for key, value in asdict(self).items()}


@dataclass(frozen=True)
class Scores:
    """One score a run, with and without the canary."""

    present: Floats
    absent: Floats


@dataclass(frozen=True)
class Wanted:
    """What is asked for: how many runs, or one with many canaries, and which attack (None: the strongest known)."""

    runs: int = 400
    canaries: int | None = None
    attack: str | None = None
    observer: str | None = None
    confidence: float = CONFIDENCE
    jobs: int = 1

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1:
            raise InputError(f"--confidence={self.confidence} is outside [0.5, 1); {CONFIDENCE} is usual")


@dataclass(frozen=True)
class Audited:
    """An audit's outcome, with the scores and the claim that it rests on."""

    outcome: Outcome
    scores: Scores
    claim: Claim

    def roc(self) -> bytes:
        """The attack's ROC against the curve that the claim allows, as a PNG."""
        from homo_dp.evidence.roc_plot import roc_picture

        return roc_picture(self.outcome, self.scores, self.claim)

    def _repr_html_(self) -> str:
        from homo_dp.tracking.report.page import Table, render

        figures = ("claimed_epsilon", "lower_bound", "ceiling", "point_estimate", "confidence", "runs")
        values = self.outcome.to_json()
        table = Table([self.outcome.attack, self.outcome.observer], [[name, values[name]] for name in figures])
        return render("plan.html", parties=table, texts=(self.verdict,))

    @property
    def verdict(self) -> str:
        """Whether the claim stands, in words."""
        if self.outcome.refuted:
            return "REFUTED: the claim cannot be true, with this confidence"
        return "not refuted; an audit can refute a claim and never prove one"


def judge(attack: Attack, scores: Scores, confidence: float) -> Outcome:
    """Bound, ceiling and point estimate from the scores of an attack."""
    threshold, kept = _threshold(attack, scores, confidence)
    guesses = guesses_at(kept.present, kept.absent, threshold)
    claim, profile, law = attack.claim, attack.claim.profile(), attack.law()
    bound = claim.lower_bound(guesses, confidence)

    def perfect(test: Profile | None) -> float | None:
        if test is None:
            return None
        _, expected = test.best_threshold(len(scores.present), len(scores.absent), confidence)
        return claim.lower_bound(expected, confidence)

    of_attack = perfect(law)
    return Outcome(
        claimed_epsilon=claim.epsilon,
        lower_bound=bound,
        confidence=confidence,
        ceiling=of_attack if profile is None else perfect(profile),
        point_estimate=claim.point_estimate(_separation(scores)),
        attack=attack.name,
        observer=attack.observer,
        delta=claim.delta,
        runs=len(scores.present) + len(scores.absent),
        refuted=bound > claim.epsilon or (profile is not None and profile.refuted_by(guesses, confidence)),
        estimator="clopper_pearson",
        assumes=ASSUMES["clopper_pearson"],
        bound_by_epsilon_delta_alone=clopper_pearson(guesses, claim.delta, confidence),
        threshold=threshold,
        true_positives=int(guesses.true_positives),
        present=guesses.present,
        false_positives=int(guesses.false_positives),
        absent=guesses.absent,
        ceiling_of_attack=of_attack,
    )


def judge_one_run(
    scores: Floats, present: NDArray[np.bool_], claim: Claim, attack: str, observer: str, confidence: float
) -> Outcome:
    """The same for one run with many canaries."""
    profile = claim.profile()
    if profile is None:
        raise InputError("privacy.sampling: one run needs a claim with a curve; audit poisson or everyone")
    canaries = len(scores)
    threshold, ceiling = _one_run_threshold(profile, claim.delta, canaries, confidence)
    guesses = guesses_at(scores[present], scores[~present], threshold)
    guessed, correct = int(guesses.true_positives + guesses.false_positives), int(guesses.true_positives)
    bound = f_dp_one_run(canaries, guessed, correct, claim.delta, confidence)
    return Outcome(
        claimed_epsilon=claim.epsilon,
        lower_bound=bound,
        confidence=confidence,
        ceiling=ceiling,
        point_estimate=claim.point_estimate(_separation(Scores(scores[present], scores[~present]))),
        attack=attack,
        observer=observer,
        delta=claim.delta,
        runs=1,
        refuted=bound > claim.epsilon,
        estimator="f_dp_one_run",
        assumes=ASSUMES["f_dp_one_run"],
        bound_by_epsilon_delta_alone=one_run(canaries, guessed, correct, claim.delta, confidence),
        threshold=threshold,
        true_positives=correct,
        present=int(present.sum()),
        false_positives=guessed - correct,
        absent=int((~present).sum()),
    )


def _one_run_threshold(profile: Profile, delta: float, canaries: int, confidence: float) -> tuple[float, float]:
    """The threshold from which most can be expected, and that; of equals the least one-sided.

    Where the claim leaves nothing to show, that is 0: noise that is missing altogether is seen there, and nowhere else.
    """
    best = (0.0, -math.inf, 0.0)
    inside = np.flatnonzero((profile.in_rate > 1e-6) & (profile.in_rate < 1 - 1e-6))
    for at in inside[:: max(1, len(inside) // 25)]:
        right, wrong = (canaries / 2 * float(rate[at]) for rate in (profile.in_rate, profile.out_rate))
        guessed, loss = round(right + wrong), float(profile.losses[at])
        if guessed:
            bound = f_dp_one_run(canaries, guessed, min(guessed, round(right)), delta, confidence)
            best = max(best, (bound, -abs(loss), loss))
    return (best[2] if best[0] > 0 else 0.0), best[0]


def _threshold(attack: Attack, scores: Scores, confidence: float) -> tuple[float, Scores]:
    """A threshold that the scores it is used on had no part in, and those scores."""
    law = attack.law() if attack.scores_are_losses else None
    if law is not None:
        return law.best_threshold(len(scores.present), len(scores.absent), confidence)[0], scores
    first, second = (max(FEWEST // 2, int(PILOT * len(each))) for each in (scores.present, scores.absent))
    pilot = Scores(scores.present[:first], scores.absent[:second])
    kept = Scores(scores.present[first:], scores.absent[second:])
    spread = math.sqrt((float(np.var(pilot.present)) + float(np.var(pilot.absent))) / 2) or 1e-12
    distance = min(max((float(pilot.present.mean()) - float(pilot.absent.mean())) / spread, 1e-3), 30.0)
    loss, _ = gaussian_profile(distance).best_threshold(len(kept.present), len(kept.absent), confidence)
    return float(pilot.absent.mean()) + spread * (loss / distance + distance / 2), kept


def _separation(scores: Scores) -> float:
    spread = math.sqrt((float(np.var(scores.present)) + float(np.var(scores.absent))) / 2)
    gap = float(scores.present.mean() - scores.absent.mean())
    return gap / spread if spread else (math.inf if gap > 0 else 0.0)


# --- many runs ------------------------------------------------------------------------------------------------------


def run_attack(
    tree: Mapping[str, Any],
    name: str,
    observer: str,
    runs: int,
    jobs: int,
    state: Path | None,
    done: Callable[[int], None],
) -> Scores:
    """``runs`` scores of an attack on a configuration, half with the canary; what ``state`` kept is not rerun."""
    if runs < 2 * FEWEST:
        raise InputError(f"--runs={runs} is below {2 * FEWEST}; nothing can be shown with so few")
    key = hashlib.sha256(json.dumps([tree, name, observer, __version__], sort_keys=True).encode()).hexdigest()[:16]
    found = _kept(state, key)
    need = {True: (runs + 1) // 2, False: runs // 2}
    done(sum(min(len(found[side]), need[side]) for side in need))
    pieces = [(side, min(CHUNK, need[side] - at)) for side in need for at in range(len(found[side]), need[side], CHUNK)]

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
    with ProcessPoolExecutor(min(jobs, len(pieces)), mp_context=context, initializer=_ignore_interrupts) as pool:
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


def _chunk(tree: Mapping[str, Any], name: str, observer: str, present: bool, count: int) -> list[float]:
    """Some runs in this process; the attack is built once."""
    import torch

    from homo_dp.config.load import config_from
    from homo_dp.evidence.audit_config import attack_on

    torch.set_num_threads(1)
    key = json.dumps([tree, name, observer], sort_keys=True)
    if key not in _attacks:
        _attacks.clear()
        _attacks[key] = attack_on(config_from(tree), name, observer)
    return [float(score) for score in _attacks[key].scores(present, count)]


def _kept(state: Path | None, key: str) -> dict[bool, list[float]]:
    """Scores that an interrupted audit of the same recipe kept; lines of others, or half written, are passed over."""
    found: dict[bool, list[float]] = {True: [], False: []}
    if state is None or not state.is_file():
        return found
    file = Foreign(str(state), "delete it: the runs are made again", InputError)
    for line in state.read_bytes().splitlines():
        try:
            read = file.json(line)
        except InputError:
            continue
        if isinstance(read, dict) and read.get("key") == key and isinstance(read.get("scores"), list):
            found[bool(read.get("present"))] += [float(score) for score in read["scores"]]
    return found


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def rates(scores: Scores) -> tuple[Floats, Floats]:
    """The attack's ROC: false- and true-positive rates over all thresholds."""
    cuts = np.unique(np.concatenate([scores.present, scores.absent]))[::-1]
    cuts = cuts[:: max(1, len(cuts) // 2000)]
    false = np.array([float(np.mean(scores.absent >= cut)) for cut in cuts])
    true = np.array([float(np.mean(scores.present >= cut)) for cut in cuts])
    return np.append(0.0, false), np.append(0.0, true)


def claimed_rates(claim: Claim, false: Floats) -> Floats:
    """The true-positive rates that (epsilon, delta) alone allows."""
    e, d = math.exp(min(claim.epsilon, 600.0)), claim.delta
    return np.clip(np.minimum(e * false + d, 1 - (1 - d - false) / e), 0.0, 1.0)
