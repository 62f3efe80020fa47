"""Why Flower's own DP wrappers and SecAgg+ are not used: facts, shown by calling Flower's own
functions.

python -m pipelines.flower_dp_facts     (needs homo_dp[flower])
"""

from __future__ import annotations

import inspect

import numpy as np


def adaptive_clipping(inverted: bool = True) -> float:
    """The clip norm after 50 rounds, from 0.5, where every update has norm 1 and half of them
    should be clipped.

    Andrew et al. (2021) count the updates that were *not* clipped; Flower counts those that were,
    and moves alike.
    """
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAvg
    from flwr.supercore.differential_privacy import adaptive_clip_inputs_inplace

    strategy = DifferentialPrivacyServerSideAdaptiveClipping(
        FedAvg(),
        noise_multiplier=0.1,
        num_sampled_clients=100,
        initial_clipping_norm=0.5,
        target_clipped_quantile=0.5,
    )
    for _ in range(50):
        updates = [[np.full(4, 0.5)] for _ in range(100)]  # of norm 1
        bits = sum(
            adaptive_clip_inputs_inplace(update, strategy.clipping_norm) for update in updates
        )
        strategy._geometric_update((bits if inverted else 100 - bits) / 100)
    return float(strategy.clipping_norm)


def weighted_mean() -> tuple[float, float]:
    """How far one clipped client moves Flower's mean, against the sensitivity for which its noise
    is made.

    Ten clients, clip norm 1; one of them says that it has 900 of the 1,000 examples.
    """
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
    from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords
    from flwr.supercore.differential_privacy import compute_clip_model_update, compute_stdv

    def mean(update: float) -> float:
        replies = []
        for number in range(10):
            # Flower divides by the norm, so not 0
            sent = [np.array([update if number == 0 else 1e-9])]
            compute_clip_model_update(sent, [np.zeros(1)], 1.0)
            records = {"arrays": ArrayRecord({"w": Array(sent[0])})}
            examples = MetricRecord({"num-examples": 900 if number == 0 else 100 / 9})
            replies.append(RecordDict({**records, "metrics": examples}))
        return float(aggregate_arrayrecords(replies, "num-examples")["w"].numpy()[0])

    assumed = compute_stdv(1.0, 1.0, 10)  # noise multiplier 1: the sensitivity that it stands for
    return abs(mean(1e6) - mean(1e-9)), assumed


def mask_seeds() -> bool:
    """Whether two 32-byte seeds that have nothing in common but the XOR of their words give the
    same mask.
    """
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    one, other = bytes(28) + (7).to_bytes(4, "little"), (7).to_bytes(4, "little") + bytes(28)
    return bool(
        (
            pseudo_rand_gen(one, 1 << 20, [(5,)])[0] == pseudo_rand_gen(other, 1 << 20, [(5,)])[0]
        ).all()
    )


def noise_after_the_update() -> tuple[float, float]:
    """The clip norm with which Flower clipped the updates of a round, and the one for which it
    then made noise.
    """
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAvg
    from flwr.supercore.task_identity import TaskIdentity

    class Watched(DifferentialPrivacyServerSideAdaptiveClipping):  # type: ignore[misc,unused-ignore]
        made_for = 0.0

        def _add_noise_to_aggregated_arrays(self, aggregated: ArrayRecord) -> ArrayRecord:
            self.made_for = self.clipping_norm
            return super()._add_noise_to_aggregated_arrays(aggregated)

    strategy = Watched(
        FedAvg(), noise_multiplier=0.1, num_sampled_clients=10, initial_clipping_norm=0.5
    )
    strategy.current_arrays = ArrayRecord({"w": Array(np.zeros(1))})
    # a message has to belong to some run
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    replies = []
    for node in range(1, 11):
        asked = Message(RecordDict(), dst_node_id=node, message_type="train")
        sent = {
            "arrays": ArrayRecord({"w": Array(np.ones(1))}),
            "metrics": MetricRecord({"num-examples": 1}),
        }
        replies.append(Message(RecordDict(sent), reply_to=asked))
    strategy.aggregate_train(1, replies)
    return 0.5, float(strategy.made_for)


def accountants() -> dict[str, bool]:
    """Which wrappers can be given an accountant at all."""
    from flwr.serverapp import strategy

    names = [name for name in dir(strategy) if name.startswith("DifferentialPrivacy")]
    return {
        name: "accountant" in inspect.signature(getattr(strategy, name)).parameters
        for name in names
    }


def main() -> None:
    """Print the facts."""
    flower, paper, (moved, assumed) = (
        adaptive_clipping(),
        adaptive_clipping(inverted=False),
        weighted_mean(),
    )
    print(
        "adaptive clipping, updates of norm 1, target one half: the clip norm goes from 0.5 to "
        f"{flower:.1e}"
    )
    print(f"  with the bit of the paper: to {paper:.2f}")
    print(
        "  one round clipped with {:g}, its noise was made for {:.3g}".format(
            *noise_after_the_update()
        )
    )
    print(
        f"weighted averaging: one client moves the mean by {moved:g}, the noise is made for "
        f"{assumed:g}"
    )
    print(
        f"SecAgg+ masks: two unlike 32-byte seeds, one mask: {mask_seeds()}; at most 2^32 masks "
        "exist"
    )
    for name, can in accountants().items():
        print(f"accountant: {name}: {'optional, none by default' if can else 'none'}")


if __name__ == "__main__":
    main()
