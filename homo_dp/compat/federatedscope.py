"""FederatedScope's configs in our keys: whole files (YAML with a section `federate`), and single
keys as overrides.

Each key is translated, left aside with a note, or refused with the reason; what a file leaves open
has FederatedScope's default, of its `core/configs`. See docs/coming_from.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from homo_dp.compat.translation import Ask, Fallback, System, Translation
from homo_dp.config.layers import put
from homo_dp.config.schema import Config
from homo_dp.core.errors import ConfigError

SECTIONS = frozenset(
    {"federate", "dataloader", "grad", "eval", "optimizer", "criterion", "trainer", "wandb"}
)

# Their key, ours: the value is the same.
SAME = {
    "federate.total_round_num": "train.rounds",
    "federate.restore_from": "train.init_from",
    "federate.save_to": "output.modelFileName",
    "train.optimizer.lr": "train.learning_rate",
    "optimizer.lr": "train.learning_rate",
    "train.optimizer.momentum": "train.momentum",
    "optimizer.momentum": "train.momentum",
    "train.optimizer.weight_decay": "train.weight_decay",
    "optimizer.weight_decay": "train.weight_decay",
    "eval.freq": "train.evaluate_every",
    "seed": "train.seed",
    "data.file_path": "data.files",
    "expname": "tracking.run_name",
}
# Their key and why it has no counterpart; a value that leaves the feature off gets no note.
ASIDE = {
    "federate.mode": (
        "homo_dp.train simulates; between machines run homo_dp.aggregator and homo_dp.party"
    ),
    "federate.make_global_eval": (
        "test rows of all parties are scored together and each party's stay with it"
    ),
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
    "eval.best_res_update_round_wise_key": (
        "train.keep=best goes by released metrics; private rows would have a price"
    ),
    "eval.monitoring": "gradient norms and clipped shares are reported",
    "eval.count_flops": "operations are not counted",
    "early_stop.patience": (
        "stopping by private rows would have a price; train.early_stopping goes by released metrics"
    ),
    "early_stop.delta": "stopping by private rows would have a price",
    "early_stop.improve_indicator_mode": "stopping by private rows would have a price",
    "grad.grad_accum_count": (
        "train.physical_batch_size bounds the rows in memory and changes no result"
    ),
    "trainer.type": (
        "there is one trainer; register_hook_in_train adds to it (docs/coming_from.md)"
    ),
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
    "personalization.K": "all parties train one model",
    "personalization.lr": "all parties train one model",
    "personalization.beta": "all parties train one model",
}
# What would change the meaning of the run, and why it is refused.
REFUSED = {
    "asyn.use": "rounds are synchronous, since a cohort's noise is for the round it was drawn in",
    "vertical.use": "columns are not split over parties here",
    "sgdmf.use": (
        "matrix factorisation is not built; privacy.mechanism: dp_sgd is for other models"
    ),
    "attack.attack_method": "attacks on a run of ours: python -m homo_dp.audit",
    "personalization.local_param": "every tensor is shared; parts kept at a party are not built",
    "compression.method": (
        "updates travel as they are: what is rounded after the noise is counted, nothing else is"
    ),
    "hpo.scheduler": (
        "every trial is a release; compare settings with homo_dp.compare, which adds up the cost"
    ),
    "distribute.use": (
        "write conf/federation.yaml and conf/party_a.yaml, for homo_dp.aggregator and homo_dp.party"
    ),
}
_MODELS = {
    "lr": "logistic_regression",
    "mlp": "mlp",
    "convnet2": "cnn",
    "convnet5": "cnn",
    "lenet": "cnn",
    "cnn": "cnn",
}
# Their keys of NbAFL, ours, and what FederatedScope takes where a file leaves them open.
_NBAFL = {
    "nbafl.epsilon": ("nbafl.epsilon", 100.0),
    "nbafl.constant": ("nbafl.constant", 30.0),
    "nbafl.w_clip": ("nbafl.clip_norm", 1.0),
    "nbafl.mu": ("nbafl.mu", 0.0),
}
_BATCH_SIZE = 64
_DATA = (
    "data.files",
    "data.embedded",
    "federation.run",
)  # keys that say where the rows are, or that other processes hold them
_IDLE: tuple[Any, ...] = (None, "", False, [], (), {}, -1, -1.0)


@dataclass
class _Given:
    """What a config and its overrides say together, and the translation that is made of it.

    FederatedScope puts overrides over a file before it reads either, so what a key means can
    depend on any other.
    """

    keys: Mapping[str, Any]
    overrides: bool  # whether overrides are translated, which win over every file
    done: Translation = field(default_factory=lambda: Translation(system="FederatedScope"))

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, theirs or ours; the default where it is not set."""
        value = self.keys.get(key)
        return default if value is None or value == "" else value

    def put(self, key: str, value: Any) -> None:
        """Set a key of ours."""
        put(self.done.tree, tuple(key.split(".")), value)

    def note(self, text: str) -> None:
        """Tell the reader."""
        self.done.notes.append(text)

    def fall_back(
        self,
        key: str,
        value: Any,
        name: str,
        *,
        unless: tuple[str, ...] = (),
        mechanisms: tuple[str, ...] = (),
    ) -> None:
        """Set a key of ours to FederatedScope's default, where nothing else sets it."""
        self.done.fallbacks.append(Fallback(key, value, name, unless=unless, mechanisms=mechanisms))

    @property
    def mechanism(self) -> str:
        """The mechanism of the run; ours is the one that is written out, else NbAFL by their
        switch.
        """
        return str(
            self.get("privacy.mechanism")
            or ("nbafl" if self.get("nbafl.use") is True else "dp_sgd")
        )

    @property
    def parties(self) -> int | None:
        """How many parties there are; None where only the table tells."""
        files, clients = self.get("data.files"), self.get("federate.client_num")
        if isinstance(files, dict) and len(files) > 1:
            return len(files)
        return clients if _is_count(clients) else None


def is_federatedscope(tree: Mapping[str, Any]) -> bool:
    """Whether a tree is a config of FederatedScope: ours has no section of that name."""
    return isinstance(tree.get("federate"), dict)


def translate_federatedscope(
    tree: Mapping[str, Any], overrides: Mapping[str, Any], source: str
) -> Translation:
    """Translate a config of FederatedScope; what is a key of ours stays as it is.

    Args:
        tree: what the file holds.
        overrides: what is put over it, in words of either system.
        source: what an error calls the file.

    Returns:
        The settings in our keys, with notes, questions and fallbacks.

    Raises:
        ConfigError: where a key asks for something that is not built, or has a wrong value.
    """
    own, later = _flat(tree), _flat(overrides)
    given = _Given(own | later, overrides=False)
    for key in own:
        _translate(key, given.keys[key], given, "overrides" if key in later else source)
    _leave_open(given)
    return given.done


def translate_federatedscope_overrides(
    overrides: Mapping[str, Any], files: Sequence[Mapping[str, Any]]
) -> Translation | None:
    """Translate overrides of FederatedScope; what is a key of ours stays as it is.

    Args:
        overrides: what the command line sets.
        files: what the files under it hold, untranslated.

    Returns:
        The overrides in our keys; None where neither they nor a file are FederatedScope's.

    Raises:
        ConfigError: where a key asks for something that is not built, or has a wrong value.
    """
    theirs = [tree for tree in files if is_federatedscope(tree)]
    if not theirs and not SECTIONS & set(overrides):
        return None
    own = _flat(overrides)
    given = _Given(_flat(theirs[-1] if theirs else {}) | own, overrides=True)
    for key in own:
        _translate(key, given.keys[key], given, "overrides")
    return given.done


def _translate(key: str, value: Any, given: _Given, source: str) -> None:
    if key in REFUSED:
        if value not in _IDLE:
            raise ConfigError(
                f"{source}: {key}={value}: {REFUSED[key]}; {_switched_off(key, value)}"
            )
    elif key in SPECIAL:
        SPECIAL[key](given)
    elif key in SAME:
        if value not in ("", None, -1):
            given.put(SAME[key], value)
    elif key in ASIDE:
        if value not in _IDLE:
            given.note(f"{key}: {ASIDE[key]}; left aside")
    elif "." in key and (section := key.partition(".")[0]) not in Config.model_fields:
        if key == f"{section}.use" and value is True:
            raise ConfigError(
                f"{source}: {key}=true: {section} is not built here; {_switched_off(key, value)}"
            )
        if value not in _IDLE:
            given.note(f"{key}: has no counterpart; left aside")
    else:
        # a key of ours, or one that the schema refuses by name
        given.put(key, value)


def _switched_off(key: str, value: Any) -> str:
    """The next step that a file and an override can both take."""
    idle = "[]" if isinstance(value, list) else "false" if isinstance(value, bool) else "''"
    return f"set {key}={idle}"


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


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- what a file leaves open


def _leave_open(given: _Given) -> None:
    """Fill in FederatedScope's defaults, and ask for what has none."""
    given.fall_back("train.rounds", 50, "federate.total_round_num")
    given.fall_back("train.batch_size", _BATCH_SIZE, "dataloader.batch_size")
    if given.get("train.batch_or_epoch", given.get("federate.batch_or_epoch")) == "epoch":
        given.fall_back("train.local_epochs", 1, "train.local_update_steps")
    else:
        given.fall_back("train.local_steps", 1, "train.local_update_steps")
    given.fall_back("train.learning_rate", 0.1, "train.optimizer.lr")
    given.fall_back("data.test_fraction", 0.1, "data.splits[2]")
    given.done.fallbacks.append(
        Fallback(
            "train.weighting",
            "rows",
            note="federate.ignore_weight: is not true, so parties count by their rows "
            "(train.weighting=rows)",
            mechanisms=("dp_sgd", "nbafl", "none"),
        )
    )
    for name, (ours, value) in _NBAFL.items():
        given.fall_back(ours, value, name, mechanisms=("nbafl",))
    if given.get("model.type") is None:
        _model(given)
    if given.get("nbafl.use") is not True and not any(
        key.startswith("privacy.") for key in given.keys
    ):
        given.note(
            "nbafl.use: is not true, so FederatedScope would train without privacy; here it is "
            "privacy.mechanism=dp_sgd, unless you write none"
        )
    if given.get("criterion.type") is None and given.get("model.name") is None:
        given.note(
            "criterion.type: is not set; FederatedScope's default MSELoss fits numbers, here "
            "classes are fitted; for numbers give criterion.type=MSELoss and data.target_bounds"
        )
    if given.get("data.type") is None:
        text = (
            "data.type: is not set; trains on the bundled breast-cancer table, give "
            "data.files=FILE for yours"
        )
        given.done.asks.append(Ask(text, _DATA))


# --- keys whose meaning depends on others


def _partition(given: _Given) -> None:
    """One table is split over `federate.client_num` parties, unless something else says whose
    rows are whose.
    """
    clients, splitter = given.get("federate.client_num"), given.get("data.splitter", "")
    if given.get("data.party_column") is not None:
        if _is_count(clients):
            given.note(
                f"federate.client_num={clients}: data.party_column names the party of each row, so "
                "their number follows from the table"
            )
        return
    files = given.get("data.files")
    if isinstance(files, dict) and len(files) > 1:
        if _is_count(clients) and clients != len(files):
            given.note(
                f"federate.client_num={clients}: data.files names {len(files)} parties, and these "
                "take part"
            )
        return
    if _is_count(clients):
        _split(given, "parties", clients)
    if str(splitter).lower() == "lda":
        _split(given, "kind", "dirichlet")
        for part in given.get("data.splitter_args", ()):
            if isinstance(part, dict) and part.get("alpha") is not None:
                _split(given, "alpha", part["alpha"])
    elif str(splitter).lower() == "iid":
        _split(given, "kind", "iid")
    elif splitter:
        given.note(
            f"data.splitter={splitter}: has no counterpart; rows are dealt out at random "
            "(data.partition)"
        )


def _split(given: _Given, name: str, value: Any) -> None:
    """Set a key of `data.partition`: for good by an override, else where no other key of ours
    splits the table.
    """
    if given.overrides:
        given.put(f"data.partition.{name}", value)
    else:
        given.done.fallbacks.append(Fallback(f"data.partition.{name}", value))


def _sampling(given: _Given) -> None:
    """How many parties take part in a round: the rate comes before the number, and what is no
    valid rate or number means all, as there.
    """
    parties, drawn = given.parties, _drawn(given)
    if drawn is None or drawn == parties:
        return
    if given.mechanism == "nbafl":
        given.put("nbafl.parties_per_round", drawn)
    elif given.mechanism == "dp_fedavg":
        given.put("privacy.cohort_size", drawn)
    else:
        given.note(
            f"federate.sample_client_num={drawn}: with {given.mechanism} every party takes part in "
            "every round; left aside (a cohort of users a round is privacy.mechanism=dp_fedavg)"
        )


def _drawn(given: _Given) -> int | None:
    rate, number = (given.get(f"federate.sample_client_{name}") for name in ("rate", "num"))
    parties = given.parties
    if _is_number(rate) and 0 < rate <= 1:
        if parties is not None:
            drawn = max(1, int(rate * parties))
            if _is_count(number) and number != drawn:
                given.note(
                    f"federate.sample_client_num={number}: federate.sample_client_rate={rate} comes "
                    f"before it, as in FederatedScope, so {drawn} of {parties} parties take part; "
                    "for the number set federate.sample_client_rate=-1"
                )
            return drawn
        if rate < 1:
            given.note(
                f"federate.sample_client_rate={rate}: needs the number of parties, which only the "
                "table tells; every party takes part, federate.sample_client_num=N draws N of them"
            )
        return None
    if rate not in (None, *_IDLE):
        given.note(
            f"federate.sample_client_rate={rate}: is not above 0 and at most 1, so it is not used"
        )
    if not _is_count(number):
        return None
    if parties is not None and number > parties:
        given.note(
            f"federate.sample_client_num={number}: is above the {parties} parties, so all take part"
        )
        return None
    return int(number)


def _method(given: _Given) -> None:
    word = str(given.get("federate.method", "FedAvg"))
    if word.lower() not in ("fedavg", "fedprox", "fedopt"):
        raise ConfigError(
            f"federate.method={word}: has no counterpart; ours are FedAvg, FedOpt and FedProx"
        )
    _server_optimizer(given)


def _server_optimizer(given: _Given) -> None:
    """FedOpt: torch's SGD (without momentum unless given) or Adam on the mean update."""
    method = str(given.get("federate.method", "")).lower()
    if method != "fedopt" and given.get("fedopt.use") is not True:
        return
    settings: dict[str, Any] = {"learning_rate": given.get("fedopt.optimizer.lr", 0.01)}
    if str(given.get("fedopt.optimizer.type", "SGD")).lower() == "adam":
        betas = given.get("fedopt.optimizer.betas", (0.9, 0.999))
        settings |= {"name": "fedadam", "beta1": betas[0], "beta2": betas[1], "tau": 1e-8}
    else:
        settings |= {"name": "fedavgm", "momentum": given.get("fedopt.optimizer.momentum", 0.0)}
    given.put("train.server_optimizer", settings)


def _proximal(given: _Given) -> None:
    """FedProx; its strength counts only where it is switched on, and NbAFL has one of its own."""
    strength = 0.0
    if given.get("fedprox.use") is True:
        strength = given.get("fedprox.mu", 0.0)
    elif given.get("regularizer.type") is not None:
        strength = given.get("regularizer.mu", 0.0)
    else:
        for name, switch in (("fedprox", "fedprox.use"), ("regularizer", "regularizer.type")):
            if given.get(f"{name}.mu", 0.0):
                given.note(f"{name}.mu: is not used while {switch} is not set; left aside")
    given.put("train.proximal_mu", strength)


def _local_steps(given: _Given) -> None:
    unit = given.get("train.batch_or_epoch", given.get("federate.batch_or_epoch", "batch"))
    steps = given.get("train.local_update_steps", given.get("federate.local_update_steps"))
    if steps is not None:
        given.put("train.local_epochs" if unit == "epoch" else "train.local_steps", steps)


def _batch_size(given: _Given) -> None:
    """The older key comes first, unless it has the default."""
    old, new = given.get("data.batch_size"), given.get("dataloader.batch_size", _BATCH_SIZE)
    given.put("train.batch_size", new if old in (None, -1, _BATCH_SIZE) else old)


def _nothing(given: _Given) -> None:
    """Read where the key beside it is translated."""


def _optimizer(given: _Given) -> None:
    word = str(given.get("train.optimizer.type", given.get("optimizer.type", "SGD")))
    if word.lower() not in ("sgd", "adam"):
        raise ConfigError(f"train.optimizer.type={word}: has no counterpart; ours are SGD and Adam")
    given.put("train.optimizer", word.lower())


def _scheduler(given: _Given) -> None:
    word, kinds = (
        given.get("train.scheduler.type"),
        {"CosineAnnealingLR": "cosine", "StepLR": "step"},
    )
    if word in kinds:
        given.put("train.schedule", kinds[word])
        given.note(
            f"train.scheduler.type={word}: is train.schedule={kinds[word]}, over the whole run"
        )
    elif word:
        given.note(f"train.scheduler.type={word}: has no counterpart; the rate stays as it is")


def _grad_clip(given: _Given) -> None:
    value = given.get("grad.grad_clip")
    if not _is_number(value) or value <= 0:
        return
    if given.mechanism in ("none", "nbafl"):
        given.put("train.grad_clip", value)
        given.note(
            f"grad.grad_clip={value}: clips the gradient of a batch, which gives no privacy by "
            "itself"
        )
    else:
        given.note(
            f"grad.grad_clip={value}: clips the gradient of a batch, which bounds no record's part "
            "in it; left aside, privacy.max_grad_norm clips each record's"
        )


def _nbafl(given: _Given) -> None:
    """NbAFL's switch and settings; the settings have a meaning only where it is switched on."""
    if given.get("nbafl.use") is True and given.get("privacy.mechanism") is None:
        given.put("privacy.mechanism", "nbafl")
    for name, (ours, _) in _NBAFL.items():
        value = given.get(name)
        if value is None:
            continue
        if given.mechanism == "nbafl" and given.overrides:
            given.put(ours, value)
        else:
            given.done.fallbacks.append(Fallback(ours, value, mechanisms=("nbafl",)))
        if given.mechanism != "nbafl":
            given.note(f"{name}: is not used while nbafl.use is not true; left aside")


def _model(given: _Given) -> None:
    """The model and what it fits; FederatedScope's hidden layers and activation where it leaves
    them open.
    """
    word, numbers = given.get("model.type", "lr"), given.get("criterion.type") == "MSELoss"
    if word not in _MODELS:
        raise ConfigError(
            f"model.type={word}: has no counterpart; give model.factory, or one of "
            f"{', '.join(_MODELS)}"
        )
    name = "linear_regression" if word == "lr" and numbers else _MODELS[word]
    if given.get("model.type") is None:
        given.fall_back("model.name", name, "model.type", unless=("model.factory",))
        return
    given.put("model.name", name)
    if name != "linear_regression" and numbers:
        given.put("model.task", "regression")
    if name == "mlp":
        hidden, layers = given.get("model.hidden", 256), given.get("model.layer", 2)
        given.put("model.layers", [hidden] * max(1, layers - 1 if _is_count(layers) else 1))
    if name in ("mlp", "cnn"):
        given.done.fallbacks.append(Fallback("model.activation", "relu"))
    if name == "cnn":
        given.note(
            f"model.type={word}: is model.name=cnn, without BatchNorm; model.channels sets its "
            "layers"
        )


def _criterion(given: _Given) -> None:
    word = given.get("criterion.type")
    known = ("CrossEntropyLoss", "BCELoss", "BCEWithLogitsLoss", "NLLLoss", "MSELoss")
    if word is not None and word not in known:
        raise ConfigError(
            f"criterion.type={word}: has no counterpart; the loss follows from the task"
        )
    _model(given)


def _splits(given: _Given) -> None:
    value = given.get("data.splits")
    if isinstance(value, list | tuple) and len(value) == 3 and all(map(_is_number, value)):
        given.put("data.test_fraction", round(float(value[2]), 6))
        if value[1]:
            given.note(
                f"data.splits={list(value)}: there is no validation split; those rows are trained "
                "on"
            )


def _data_type(given: _Given) -> None:
    value = given.get("data.type")
    if str(value).lower().endswith((".csv", ".parquet", ".npz", ".gz")):
        given.put("data.files", value)
    elif value == "toy":
        text = "data.type=toy: is the bundled breast-cancer table here"
        given.done.fallbacks.append(
            Fallback("data.embedded", "breast_cancer", note=text, unless=("federation.run",))
        )
    elif value and value != "files":
        given.done.asks.append(
            Ask(
                f"data.type={value}: FederatedScope's data sets are not shipped; give "
                "data.files=FILE (one table; docs/data.md says how), or "
                "data.embedded=breast_cancer or digits to try the settings",
                _DATA,
                needed=True,
            )
        )


def _weighting(given: _Given) -> None:
    if given.get("federate.ignore_weight") is True:
        given.put("train.weighting", "uniform")
    elif given.get("federate.data_weighted_aggr") is True:
        given.put("train.weighting", "rows")


def _secret_sharing(given: _Given) -> None:
    if given.get("federate.use_ss") is True:
        given.note(
            "federate.use_ss: masked sums are privacy.secure_aggregation=true with "
            "privacy.mechanism=dp_fedsgd (docs/secure_aggregation.md); left aside"
        )


SPECIAL: dict[str, Callable[[_Given], None]] = {
    "federate.client_num": _partition,
    "data.splitter": _partition,
    "data.splitter_args": _partition,
    "federate.sample_client_num": _sampling,
    "federate.sample_client_rate": _sampling,
    "federate.method": _method,
    "federate.data_weighted_aggr": _weighting,
    "federate.ignore_weight": _weighting,
    "federate.use_ss": _secret_sharing,
    "federate.local_update_steps": _local_steps,
    "federate.batch_or_epoch": _local_steps,
    "train.local_update_steps": _local_steps,
    "train.batch_or_epoch": _local_steps,
    "train.optimizer.type": _optimizer,
    "optimizer.type": _optimizer,
    "train.scheduler.type": _scheduler,
    "dataloader.batch_size": _batch_size,
    "data.batch_size": _batch_size,
    "fedopt.use": _server_optimizer,
    "fedopt.optimizer.type": _server_optimizer,
    "fedopt.optimizer.lr": _server_optimizer,
    "fedopt.optimizer.momentum": _server_optimizer,
    "fedopt.optimizer.betas": _server_optimizer,
    "fedprox.use": _proximal,
    "fedprox.mu": _proximal,
    "regularizer.type": _proximal,
    "regularizer.mu": _proximal,
    "grad.grad_clip": _grad_clip,
    "nbafl.use": _nbafl,
    **dict.fromkeys(_NBAFL, _nbafl),
    "model.type": _model,
    "model.hidden": _model,
    "model.layer": _model,
    "criterion.type": _criterion,
    "data.type": _data_type,
    "data.splits": _splits,
}

FEDERATEDSCOPE = System(
    "FederatedScope",
    is_federatedscope,
    translate_federatedscope,
    translate_federatedscope_overrides,
)
