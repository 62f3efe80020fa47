"""FederatedScope's words in ours: a whole config of it (YAML with a section `federate`), and single keys as overrides.

Each key is translated, left aside with a note, or refused with the reason; see docs/coming_from.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from homo_dp.config.layers import put
from homo_dp.config.schema import Config
from homo_dp.config.translation import Ask, Translation
from homo_dp.core.errors import ConfigError

SECTIONS = frozenset(
    {"federate", "dataloader", "grad", "eval", "optimizer", "criterion", "trainer", "wandb"}
)

# Their key, ours: the value is the same.
SAME = {
    "federate.total_round_num": "train.rounds",
    "federate.restore_from": "train.init_from",
    "federate.save_to": "output.modelFileName",
    "dataloader.batch_size": "train.batch_size",
    "data.batch_size": "train.batch_size",
    "train.optimizer.lr": "train.learning_rate",
    "optimizer.lr": "train.learning_rate",
    "train.optimizer.momentum": "train.momentum",
    "optimizer.momentum": "train.momentum",
    "train.optimizer.weight_decay": "train.weight_decay",
    "optimizer.weight_decay": "train.weight_decay",
    "nbafl.mu": "nbafl.mu",
    "nbafl.epsilon": "nbafl.epsilon",
    "nbafl.w_clip": "nbafl.clip_norm",
    "nbafl.constant": "nbafl.constant",
    "nbafl.use": "nbafl.use",
    "eval.freq": "train.evaluate_every",
    "fedprox.mu": "train.proximal_mu",
    "regularizer.mu": "train.proximal_mu",
    "seed": "train.seed",
    "data.file_path": "data.files",
    "expname": "tracking.run_name",
}
# Their key and why it has no counterpart; a value that leaves the feature off gets no note.
ASIDE = {
    "federate.mode": "homo_dp.train simulates; between machines run homo_dp.aggregator and homo_dp.party",
    "federate.make_global_eval": "test rows of all parties are scored together and each party's stay with it",
    "federate.merge_test_data": "test rows of all parties are scored together",
    "federate.merge_val_data": "there is no validation split",
    "federate.share_local_model": "parties share no memory",
    "federate.online_aggr": "sums are added up as they come",
    "federate.use_diff": "updates are differences to the global weights already",
    "federate.unseen_clients_rate": "all parties train",
    "federate.sampler": "cohorts are drawn at random (privacy.sampling)",
    "federate.join_in_info": "nothing but the plan is asked for",
    "federate.resource_info_file": "rounds are not scheduled by devices",
    "federate.process_num": "a simulation is one process",
    "federate.master_addr": "a simulation is one process",
    "federate.master_port": "a simulation is one process",
    "dataloader.shuffle": "batches are Poisson samples, which is what the accountant assumes",
    "dataloader.drop_last": "batches are Poisson samples, which is what the accountant assumes",
    "dataloader.num_workers": "rows are in memory",
    "dataloader.pin_memory": "rows are in memory",
    "dataloader.type": "the files say what they hold",
    "data.shuffle": "batches are Poisson samples",
    "data.drop_last": "batches are Poisson samples",
    "data.num_workers": "rows are in memory",
    "data.loader": "the files say what they hold",
    "data.root": "paths are given by data.files",
    "data.args": "they belong to FederatedScope's own data sets",
    "data.subsample": "cut the table before",
    "data.transform": "columns are scaled by public bounds, pixels by data.image.scale",
    "data.pre_transform": "columns are scaled by public bounds, pixels by data.image.scale",
    "data.val_transform": "columns are scaled by public bounds, pixels by data.image.scale",
    "data.test_transform": "columns are scaled by public bounds, pixels by data.image.scale",
    "data.save_data": "no data are made up",
    "data.consistent_label_distribution": "data.partition deals all rows alike",
    "eval.metrics": "all metrics of the task are reported",
    "eval.split": "train and test rows are scored",
    "eval.report": "metrics are of all rows; each party's own are in output.parties",
    "eval.best_res_update_round_wise_key": "train.keep=best goes by released metrics; private rows would have a price",
    "eval.monitoring": "gradient norms and clipped shares are reported",
    "eval.count_flops": "operations are not counted",
    "early_stop.patience": "stopping by private rows would have a price; train.early_stopping goes by released metrics",
    "early_stop.delta": "stopping by private rows would have a price",
    "early_stop.improve_indicator_mode": "stopping by private rows would have a price",
    "grad.grad_accum_count": "train.physical_batch_size bounds the rows in memory and changes no result",
    "trainer.type": "there is one trainer; register_hook_in_train adds to it (docs/coming_from.md)",
    "model.task": "the task follows from criterion.type and the classes",
    "model.in_channels": "the number of columns follows from the table",
    "model.input_shape": "the shape follows from the images, or data.image.shape",
    "model.out_channels": "the number of classes follows from data.classes",
    "model.dropout": "the networks here have none; model.factory brings another",
    "model.use_bias": "layers have a bias",
    "model.model_num_per_trainer": "one model is trained",
    "wandb.use": "runs are tracked in MLflow (tracking.uri)",
    "finetune.before_eval": "the global model is scored as it is",
    "outdir": "files are named by output.*",
    "use_gpu": "train.device is auto",
    "device": "train.device is auto",
    "backend": "torch is used",
    "verbose": "see --quiet and --json",
    "print_decimal_digits": "see --json",
    "cfg_file": "files are given on the command line",
    "expname_tag": "tracking.run_name names a run",
    "regularizer.type": "train.proximal_mu is the proximal regularizer",
    "fedprox.use": "train.proximal_mu is its strength",
    "personalization.K": "all parties train one model",
    "personalization.lr": "all parties train one model",
    "personalization.beta": "all parties train one model",
}
# What would change the meaning of the run, and why it is refused.
REFUSED = {
    "asyn.use": "rounds are synchronous, since a cohort's noise is for the round it was drawn in",
    "vertical.use": "columns are not split over parties here",
    "sgdmf.use": "matrix factorisation is not built; privacy.mechanism: dp_sgd is for other models",
    "attack.attack_method": "attacks on a run of ours: python -m homo_dp.audit",
    "personalization.local_param": "every tensor is shared; parts kept at a party are not built",
    "compression.method": "updates travel as they are: what is rounded after the noise is counted, nothing else is",
    "hpo.scheduler": "every trial is a release; compare settings with homo_dp.compare, which adds up the cost",
    "distribute.use": "write conf/federation.yaml and conf/party_a.yaml, for homo_dp.aggregator and homo_dp.party",
}
_MODELS = {
    "lr": "logistic_regression",
    "mlp": "mlp",
    "convnet2": "cnn",
    "convnet5": "cnn",
    "lenet": "cnn",
    "cnn": "cnn",
}
_DATA = (
    "data.files",
    "data.embedded",
    "federation.run",
)  # keys that say where the rows are, or that other processes hold them
_IDLE: tuple[Any, ...] = (None, "", False, [], (), {}, -1, -1.0)


def is_federatedscope(tree: Mapping[str, Any]) -> bool:
    """Whether a tree is a config of FederatedScope: ours has no section of that name."""
    return isinstance(tree.get("federate"), dict)


def translate_federatedscope(
    tree: Mapping[str, Any],
    source: str,
    *,
    under: Mapping[str, Any] | None = None,
    over: Mapping[str, Any] | None = None,
) -> Translation:
    """Translate a config of FederatedScope, or overrides of the one `under` it; what is a key of ours stays as it is.

    What a key means can depend on others: with `nbafl.use`, which may stand in the overrides, a gradient is clipped.
    """
    done = Translation()
    flat = _flat(under or {}) | _flat(tree) | _flat(over or {})
    for key, value in _flat(tree).items():
        _translate(key, value, flat, done, source)
    if under is not None:
        return done
    if flat.get("nbafl.use") is not True and not any(key.startswith("privacy.") for key in flat):
        done.notes.append(
            "nbafl.use: is not set, so FederatedScope would train without privacy; here it is "
            "privacy.mechanism=dp_sgd, unless you write none"
        )
    if not flat.get("data.type"):
        text = "data.type: is not set; trains on the bundled breast-cancer table, give data.files=FILE for yours"
        done.asks.append(Ask(text, _DATA))
    return done


def _translate(
    key: str, value: Any, flat: Mapping[str, Any], done: Translation, source: str
) -> None:
    if key in REFUSED:
        if value not in _IDLE:
            raise ConfigError(f"{source}: {key}={value}: {REFUSED[key]}; leave it out")
    elif key in SPECIAL:
        SPECIAL[key](value, flat, done)
    elif key in SAME:
        if value not in ("", None, -1):
            put(done.tree, tuple(SAME[key].split(".")), value)
    elif key in ASIDE:
        if value not in _IDLE:
            done.notes.append(f"{key}: {ASIDE[key]}; left aside")
    elif "." in key and (section := key.partition(".")[0]) not in Config.model_fields:
        if key == f"{section}.use" and value is True:
            raise ConfigError(f"{source}: {key}=true: {section} is not built here; leave it out")
        if value not in _IDLE:
            done.notes.append(f"{key}: has no counterpart; left aside")
    else:
        put(
            done.tree, tuple(key.split(".")), value
        )  # a key of ours, or one that the schema refuses by name


def _flat(tree: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        key = f"{before}{name}"
        ours = key in (
            "data.columns",
            "data.files",
            "data.rows",
            "data.partition",
            "data.test_file",
            "output",
        )
        flat |= (
            _flat(value, f"{key}.")
            if isinstance(value, dict) and value and not ours
            else {key: value}
        )
    return flat


# --- keys whose value is not taken as it is ---------------------------------------------------------------------------


def _client_num(value: Any, flat: Mapping[str, Any], done: Translation) -> None:
    if isinstance(value, int) and value > 0 and not isinstance(flat.get("data.files"), dict):
        put(done.tree, ("data", "partition", "parties"), value)


def _sample_client_num(value: Any, flat: Mapping[str, Any], done: Translation) -> None:
    if not isinstance(value, int) or value <= 0:
        return
    if flat.get("nbafl.use") is True or flat.get("privacy.mechanism") == "nbafl":
        if value != flat.get("federate.client_num"):
            put(done.tree, ("nbafl", "parties_per_round"), value)
    elif flat.get("privacy.mechanism") == "dp_fedavg":
        put(done.tree, ("privacy", "cohort_size"), value)
    elif value != flat.get("federate.client_num"):
        done.notes.append(
            f"federate.sample_client_num={value}: with dp_sgd every party takes part in every round; left aside (a "
            "cohort of users a round is privacy.mechanism=dp_fedavg)"
        )


def _sample_client_rate(value: Any, flat: Mapping[str, Any], done: Translation) -> None:
    parties = flat.get("federate.client_num")
    if not isinstance(value, float) or not 0 < value <= 1:
        return
    if isinstance(parties, int) and parties > 0:
        _sample_client_num(max(1, int(value * parties)), flat, done)
    elif value < 1:
        done.notes.append(
            f"federate.sample_client_rate={value}: of how many? give federate.client_num=N; every party takes part"
        )


def _method(value: Any, flat: Mapping[str, Any], done: Translation) -> None:
    word = str(value).lower()
    if word in ("fedavg", "fedprox", "fedopt"):
        if word == "fedopt" or flat.get("fedopt.use") is True:
            put(done.tree, ("train", "server_optimizer", "name"), "fedavgm")
        return
    raise ConfigError(
        f"federate.method={value}: has no counterpart; ours are FedAvg, FedOpt and FedProx"
    )


def _fedopt(value: Any, flat: Mapping[str, Any], done: Translation) -> None:
    name = (
        "fedadam" if str(flat.get("fedopt.optimizer.type", "SGD")).lower() == "adam" else "fedavgm"
    )
    if value is True:
        put(done.tree, ("train", "server_optimizer", "name"), name)
        if flat.get("fedopt.optimizer.lr") is not None:
            put(
                done.tree,
                ("train", "server_optimizer", "learning_rate"),
                flat["fedopt.optimizer.lr"],
            )


def _local_steps(value: Any, flat: Mapping[str, Any], done: Translation) -> None:
    unit = flat.get("train.batch_or_epoch", flat.get("federate.batch_or_epoch", "batch"))
    put(done.tree, ("train", "local_epochs" if unit == "epoch" else "local_steps"), value)


def _nothing(value: Any, flat: Mapping[str, Any], done: Translation) -> None:
    """Read where the key beside it is translated."""


def _optimizer(value: Any, flat: Mapping[str, Any], done: Translation) -> None:
    word = str(value).lower()
    if word not in ("sgd", "adam"):
        raise ConfigError(
            f"train.optimizer.type={value}: has no counterpart; ours are SGD and Adam"
        )
    put(done.tree, ("train", "optimizer"), word)


def _scheduler(value: Any, flat: Mapping[str, Any], done: Translation) -> None:
    kinds = {"CosineAnnealingLR": "cosine", "StepLR": "step"}
    if value in kinds:
        put(done.tree, ("train", "schedule"), kinds[value])
        done.notes.append(
            f"train.scheduler.type={value}: is train.schedule={kinds[value]}, over the whole run"
        )
    elif value:
        done.notes.append(
            f"train.scheduler.type={value}: has no counterpart; the rate stays as it is"
        )


def _grad_clip(value: Any, flat: Mapping[str, Any], done: Translation) -> None:
    if not isinstance(value, int | float) or value <= 0:
        return
    mechanism = flat.get("privacy.mechanism")
    if mechanism == "none" or mechanism == "nbafl" or flat.get("nbafl.use") is True:
        put(done.tree, ("train", "grad_clip"), value)
        done.notes.append(
            f"grad.grad_clip={value}: clips the gradient of a batch, which gives no privacy by itself"
        )
    else:
        done.notes.append(
            f"grad.grad_clip={value}: clips the gradient of a batch, which bounds no record's part in it; left aside, "
            "privacy.max_grad_norm clips each record's"
        )


def _model_type(value: Any, flat: Mapping[str, Any], done: Translation) -> None:
    if value not in _MODELS:
        raise ConfigError(
            f"model.type={value}: has no counterpart; give model.factory, or one of {', '.join(_MODELS)}"
        )
    name = _MODELS[value]
    if value == "lr" and flat.get("criterion.type") == "MSELoss":
        name = "linear_regression"
    put(done.tree, ("model", "name"), name)
    hidden, layers = flat.get("model.hidden"), flat.get("model.layer")
    if name == "mlp" and isinstance(hidden, int):
        put(
            done.tree,
            ("model", "layers"),
            [hidden] * max(1, (layers if isinstance(layers, int) else 2) - 1),
        )
    if name == "cnn":
        done.notes.append(
            f"model.type={value}: is model.name=cnn, without BatchNorm; model.channels sets its layers"
        )


def _criterion(value: Any, flat: Mapping[str, Any], done: Translation) -> None:
    known = ("CrossEntropyLoss", "BCELoss", "BCEWithLogitsLoss", "NLLLoss", "MSELoss")
    if value not in known:
        raise ConfigError(
            f"criterion.type={value}: has no counterpart; the loss follows from the task"
        )


def _splitter(value: Any, flat: Mapping[str, Any], done: Translation) -> None:
    if value in ("lda", "LDA"):
        put(done.tree, ("data", "partition", "kind"), "dirichlet")
        for part in flat.get("data.splitter_args") or ():
            if isinstance(part, dict) and part.get("alpha") is not None:
                put(done.tree, ("data", "partition", "alpha"), part["alpha"])
    elif value in ("iid", "IID"):
        put(done.tree, ("data", "partition", "kind"), "iid")
    elif value:
        done.notes.append(
            f"data.splitter={value}: has no counterpart; rows are dealt out at random (data.partition)"
        )


def _splits(value: Any, flat: Mapping[str, Any], done: Translation) -> None:
    if (
        isinstance(value, list)
        and len(value) == 3
        and all(isinstance(part, int | float) for part in value)
    ):
        put(done.tree, ("data", "test_fraction"), round(float(value[2]) or 0.1, 6))
        if value[1]:
            done.notes.append(
                f"data.splits={value}: there is no validation split; those rows are trained on"
            )


def _data_type(value: Any, flat: Mapping[str, Any], done: Translation) -> None:
    if str(value).lower().endswith((".csv", ".parquet", ".npz", ".gz")):
        put(done.tree, ("data", "files"), value)
    elif value == "toy":
        put(done.tree, ("data", "embedded"), "breast_cancer")
        done.notes.append("data.type=toy: is the bundled breast-cancer table here")
    elif value:
        done.asks.append(
            Ask(
                f"data.type={value}: FederatedScope's data sets are not shipped; give data.files=FILE (one table; "
                "docs/data.md says how), or data.embedded=breast_cancer or digits to try the settings",
                _DATA,
                needed=True,
            )
        )


def _weighted(value: Any, flat: Mapping[str, Any], done: Translation) -> None:
    if value is True:
        put(done.tree, ("train", "weighting"), "rows")


def _secret_sharing(value: Any, flat: Mapping[str, Any], done: Translation) -> None:
    if value is True:
        done.notes.append(
            "federate.use_ss: sums under masks are privacy.secure_aggregation=true with privacy.mechanism=dp_fedsgd "
            "(docs/secure_aggregation.md); left aside"
        )


SPECIAL: dict[str, Callable[[Any, Mapping[str, Any], Translation], None]] = {
    "federate.client_num": _client_num,
    "federate.sample_client_num": _sample_client_num,
    "federate.sample_client_rate": _sample_client_rate,
    "federate.method": _method,
    "federate.data_weighted_aggr": _weighted,
    "federate.ignore_weight": _nothing,
    "federate.use_ss": _secret_sharing,
    "federate.local_update_steps": _local_steps,
    "federate.batch_or_epoch": _nothing,
    "train.local_update_steps": _local_steps,
    "train.batch_or_epoch": _nothing,
    "train.optimizer.type": _optimizer,
    "optimizer.type": _optimizer,
    "train.scheduler.type": _scheduler,
    "fedopt.use": _fedopt,
    "fedopt.optimizer.type": _nothing,
    "fedopt.optimizer.lr": _nothing,
    "grad.grad_clip": _grad_clip,
    "model.type": _model_type,
    "model.hidden": _nothing,
    "model.layer": _nothing,
    "criterion.type": _criterion,
    "data.type": _data_type,
    "data.splitter": _splitter,
    "data.splitter_args": _nothing,
    "data.splits": _splits,
}
