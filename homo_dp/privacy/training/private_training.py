"""DP-SGD: the one object that samples, clips, adds noise and names the event it performed.

A step, in the order of ``PrivateTraining.run``: draw a Poisson batch, sum the clipped per-sample gradients, add noise
to the sum, divide by the expected batch size, add what needs no privacy (weight decay, FedProx), step the optimiser.
"""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from homo_dp.privacy.errors import PrivacyError
from homo_dp.privacy.gradients.clipped_gradients import ClippedGradients, has_opacus_layers
from homo_dp.privacy.gradients.clipping import check_clip_norm
from homo_dp.privacy.gradients.fast.chain import all_finite, filled, rows_multiple
from homo_dp.privacy.gradients.fast.linear_table import table_of
from homo_dp.privacy.gradients.grad_sample_mode import choose_gradients
from homo_dp.privacy.gradients.losses import Loss
from homo_dp.privacy.gradients.probing import probe_rows
from homo_dp.privacy.gradients.row_independence import RowsAlone, keeps_rows_alone
from homo_dp.privacy.gradients.validation import check_has_noise, check_module, check_optimizer
from homo_dp.privacy.noise.grid import Grid
from homo_dp.privacy.noise.source import NoiseSource, secure_noise
from homo_dp.privacy.sampling.samplers import PoissonSampler
from homo_dp.privacy.training.batches_and_noise import NoiseVectors, PoissonBatches
from homo_dp.privacy.training.dropout_masks import secret_masks
from homo_dp.privacy.training.optimizer_state import pack_optimizer, unpack_optimizer
from homo_dp.privacy.training.sgd import step_optimizer, views

_STEPS = "training.steps"
_PIECE = (
    1 << 16
)  # numbers of a long sum that get their noise and go to the grid before they leave the cache
_THREAD_PIECE = (
    1 << 14
)  # the same for one of several threads: so few that torch starts no threads of its own
_log = logging.getLogger(__name__)


class PrivateTraining:
    """DP-SGD of one module on one party's rows, over any number of rounds.

    Guarantees:
        - every step samples rows by ``sampler`` and one row moves the float64 sum of gradients by at most
          ``max_grad_norm``, rounding included;
        - every step, with an empty batch too, adds normal noise of ``noise_multiplier * max_grad_norm`` per coordinate
          to the sum, rounds it to the grid of that noise and divides by the expected batch size;
        - a row with a gradient that is not finite contributes nothing and is counted in ``rows_not_finite``; so does a
          whole batch whose clipped sum is not, in ``sums_not_finite``, and no step fails for what the rows hold;
        - ``event(steps)`` is what ``run(steps)`` does: both read the same sampler and the same noise multiplier.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        features: Tensor,
        labels: Tensor,
        *,
        sampler: PoissonSampler,
        noise_multiplier: float,
        max_grad_norm: float,
        noise: NoiseSource | None = None,
        physical_batch_size: int | None = None,
        grad_sample_mode: str = "auto",
        after_noise: Callable[[], None] | None = None,
    ) -> None:
        self._noise_multiplier = check_has_noise(noise_multiplier)
        self._max_grad_norm = check_clip_norm(max_grad_norm, "max_grad_norm")
        self._noise: NoiseSource = secure_noise() if noise is None else noise
        self._sampler = sampler
        _check_rows(features, labels, sampler, physical_batch_size)
        check_module(module)
        check_optimizer(module, optimizer)
        module.train()
        if has_opacus_layers(module):
            from homo_dp.privacy.gradients.opacus_gradients import rows_first

            rows_first(module)
        probe_rows(module, loss, features, labels)
        self.module, self.optimizer, self._loss = module, optimizer, loss
        self.after_noise = after_noise
        self._features, self._labels = features.detach(), labels.detach()
        self._physical_batch_size = physical_batch_size
        self.steps_done = 0
        self.applied_sigma = 0.0
        self.sums_not_finite = 0  # LOCAL: never send it, it has no event
        self.noise_cpu_seconds = 0.0
        self._batch: Tensor | None = None
        self._last_norms: list[Callable[[], Tensor]] = []
        self._parameters = [
            parameter for parameter in module.parameters() if parameter.requires_grad
        ]
        self._multiple = rows_multiple(self._parameters)
        first = self._parameters[0]
        size = sum(parameter.numel() for parameter in self._parameters)
        self._sum = torch.zeros(size, dtype=torch.float64, device=first.device)
        self._sums = views(self._sum, self._parameters)
        self._released = torch.zeros(size, dtype=first.dtype, device=first.device)
        self._released_parts = views(self._released, self._parameters)
        self._piece = max(1, size) if self._sum.is_cuda else _PIECE
        self._short = size if size <= self._piece and not self._sum.is_cuda else 0
        self._grid = Grid.of(self._noise_multiplier * self._max_grad_norm)
        self._grid.check(sampler.population * self._max_grad_norm)
        self._step_over_batch = self._grid.step / sampler.expected_size
        self._batches = PoissonBatches(sampler, self.noise)
        # It copies the module, so it is made before hooks are put on it.
        self._alone = None if keeps_rows_alone(module, loss) else RowsAlone(module, loss)
        self._gradients: ClippedGradients
        self._gradients, self.grad_sample_mode, self.mode_reason = choose_gradients(
            module, loss, self.max_grad_norm, grad_sample_mode, features
        )
        self._table = table_of(
            module, loss, self.max_grad_norm, self._gradients, self._features, self._labels
        )
        _log.info("grad_sample_mode=%s: %s", self.grad_sample_mode, self.mode_reason)
        if self._alone is not None:
            size = int(min(physical_batch_size or math.inf, max(1, sampler.expected_size)))
            self._alone.compare_made_up(self._features, self._labels, size)

    @property
    def noise_multiplier(self) -> float:
        """Noise over clip norm; fixed, since the event of steps already taken names it."""
        return self._noise_multiplier

    @property
    def max_grad_norm(self) -> float:
        """The clip norm; fixed, since clipping and noise must agree on it."""
        return self._max_grad_norm

    @property
    def sampler(self) -> PoissonSampler:
        """Who draws the batches; fixed, since the event names its rate."""
        return self._sampler

    @property
    def noise(self) -> NoiseSource:
        """Where noise and batches come from."""
        return self._noise

    def run(self, steps: int, after_step: Callable[[], None] | None = None) -> None:
        """Take ``steps`` private steps; ``after_step`` is called after each, for example to move a schedule on."""
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise PrivacyError(
                f"steps={steps!r} is not a whole number >= 0; give the number of steps to take"
            )
        self._check_trained()
        self.module.train()
        with (
            secret_masks(self.noise),
            NoiseVectors(self.noise, self._sum.numel(), steps) as vectors,
        ):
            for _ in range(steps):
                rows = self._draw()
                if self._alone is not None:
                    self._compare(self._alone, rows)
                self._sum_clipped(rows)
                self._finish(vectors)
                if after_step is not None:
                    after_step()
            self.noise_cpu_seconds += vectors.producer_cpu_seconds

    def event(self, steps: int) -> Any:
        """The DpEvent of ``steps`` steps of this training."""
        return self.sampler.event(self.noise_multiplier, steps)

    def weights(self) -> dict[str, Tensor]:
        """A copy of every parameter under the name it has in the module; never a buffer."""
        return {
            name: parameter.detach().clone() for name, parameter in self.module.named_parameters()
        }

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Put weights (of the aggregator) into the module in place; optimiser, hooks and step count stay."""
        own = dict(self.module.named_parameters())
        if set(weights) != set(own):
            name = sorted(set(weights) ^ set(own))[0]
            raise PrivacyError(
                f"weight {name} is missing or unknown; load the weights of the same model"
            )
        for name, parameter in own.items():
            value = weights[name]
            if (
                value.shape != parameter.shape
                or not value.is_floating_point()
                or not bool(value.isfinite().all())
            ):
                raise PrivacyError(
                    f"weight {name} with shape={tuple(value.shape)} dtype={value.dtype} is not "
                    f"{tuple(parameter.shape)} of finite floats; load the weights of the same model"
                )
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(weights[name])

    def state(self) -> dict[str, Tensor]:
        """Optimiser state and step count as tensors; with ``weights()`` it is all that a resumed party needs."""
        return {_STEPS: torch.tensor(self.steps_done), **pack_optimizer(self.optimizer)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Put a ``state()`` back. Batches and noise are drawn afresh, never replayed."""
        if _STEPS not in state:
            raise PrivacyError(f"{_STEPS} is missing; restore a dict made by state()")
        unpack_optimizer(self.optimizer, state)
        self.steps_done = int(state[_STEPS])

    @property
    def last_norms(self) -> Tensor:
        """Gradient norms of the last batch before clipping. LOCAL: never send them, they have no event."""
        return (
            torch.cat([norms() for norms in self._last_norms])
            if self._last_norms
            else torch.zeros(0)
        )

    @property
    def last_fraction_clipped(self) -> float:
        """Share of the last batch whose norm was above ``max_grad_norm``. LOCAL: never send it, it has no event."""
        norms = self.last_norms
        return float((norms > self.max_grad_norm).double().mean()) if len(norms) else 0.0

    @property
    def rows_not_finite(self) -> int:
        """Times a row was left out because its gradient was not finite. LOCAL: never send it, it has no event."""
        return self._gradients.rows_not_finite

    def close(self) -> None:
        """Take every hook off the module."""
        self._gradients.close()

    def _check_trained(self) -> None:
        """Raise if other parameters are trainable than are clipped; drop gradients that nobody clipped."""
        trained = {id(parameter) for parameter in self._parameters}
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad != (id(parameter) in trained):
                was, now = (
                    ("frozen", "trainable") if parameter.requires_grad else ("trainable", "frozen")
                )
                raise PrivacyError(
                    f"{name} was {was} and is {now} now; make a new training for other layers"
                )
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in trained:
                    parameter.grad = None

    def _compare(self, alone: RowsAlone, rows: Tensor) -> None:
        """Raise, before anything is summed, if rows meet in the batches of a first step."""
        pieces = torch.split(rows, self._physical_batch_size or max(1, len(rows)))
        batches = [
            (self._features.index_select(0, piece), self._labels.index_select(0, piece))
            for piece in pieces
        ]
        if not alone.compare_step(self.module, batches):
            self._alone = None

    def _finish(self, vectors: NoiseVectors) -> None:
        self.applied_sigma = self._noise_multiplier * self._max_grad_norm
        vectors.each(self._noise_from)
        for parameter, gradient in zip(self._parameters, self._released_parts, strict=True):
            if parameter.grad is not gradient:
                parameter.grad = gradient
        if self.after_noise is not None:
            self.after_noise()
        step_optimizer(self.optimizer, self._parameters, self._released_parts)
        self.steps_done += 1

    def _noise_from(self, start: int, noise: Tensor) -> None:
        """Put noise on the numbers from ``start`` on and release them; of a long sum by several threads."""
        if (
            noise.shape[0] == self._short
        ):  # all of it: slices take longer than the sum of a small model
            self._add_noise(self._sum, noise)
            self._release(self._sum, self._released)
            return
        noise = noise.to(self._sum.device)
        end = start + noise.shape[0]
        piece = self._piece if noise.shape[0] == self._sum.shape[0] else _THREAD_PIECE
        for at in range(start, end, piece):
            part = slice(at, min(at + piece, end))
            total = self._sum[part]
            self._add_noise(total, noise[part.start - start : part.stop - start])
            self._release(total, self._released[part])

    def _draw(self) -> Tensor:
        return self._batches.next().to(self._features.device)

    def _sum_clipped(self, rows: Tensor) -> None:
        self._last_norms = []
        self._gradients.batch_rows = drawn = rows.shape[0]  # len() of a tensor takes a microsecond
        if drawn == 0:
            self._sum.zero_()
            return
        most = self._physical_batch_size
        pieces = (rows,) if most is None or drawn <= most else torch.split(rows, most)
        norms = None if self._table is None else self._table.clipped_sum(pieces, self._sum)
        if norms is not None:
            self._last_norms = norms
            return
        for index, piece in enumerate(pieces):
            piece, filling = filled(piece, self._multiple), -piece.shape[0] % self._multiple
            features, labels = self._gather(piece), self._labels.index_select(0, piece)
            self._last_norms.append(
                self._gradients.clipped_sum(features, labels, self._sums, index > 0, filling)
            )
        if not all_finite(self._sum):
            # This depends on rows, so an error would tell of them: a step of noise alone tells less.
            self._sum.zero_()
            self.sums_not_finite += 1
            _log.warning(
                "a clipped sum of gradients is not finite and counts as zeros; lower the learning rate"
            )

    def _gather(self, rows: Tensor) -> Tensor:
        # One buffer for all batches: memory that is given back and asked for again every step costs page faults.
        count = rows.shape[0]
        if self._batch is None or self._batch.shape[0] < count:
            self._batch = self._features.new_empty((count + count // 8, *self._features.shape[1:]))
        return torch.index_select(self._features, 0, rows, out=self._batch[:count])

    def _add_noise(self, total: Tensor, noise: Tensor) -> None:
        total.add_(noise, alpha=self.applied_sigma)

    def _release(self, total: Tensor, released: Tensor) -> None:
        """The noisy sum on its grid over the expected batch size; only this is ever seen by anything that follows."""
        released.copy_(self._grid.steps_(total)).mul_(self._step_over_batch)


def _check_rows(
    features: Tensor, labels: Tensor, sampler: PoissonSampler, physical_batch_size: int | None
) -> None:
    if len(features) != len(labels):
        raise PrivacyError(
            f"features has {len(features)} rows, labels {len(labels)}; give one label a row"
        )
    if sampler.population != len(features):
        raise PrivacyError(
            f"sampler.population={sampler.population} is not the {len(features)} rows that are trained on; "
            "make the sampler with population=len(features), or the accounted rate is not the rate used"
        )
    if physical_batch_size is not None and physical_batch_size < 1:
        raise PrivacyError(
            f"physical_batch_size={physical_batch_size} is not >= 1; give a number of rows, or None"
        )
