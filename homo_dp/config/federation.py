"""The `federation`, `party` and `transport` sections: who takes part, and how messages travel."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, model_validator

from homo_dp.config.base import (
    Conflict,
    Count,
    FilePath,
    ImportPath,
    PartyName,
    Positive,
    Section,
    Text,
    is_import_path,
    key,
    mapping,
    section,
)


class MemberConfig(Section):
    """A party that the aggregator lets in."""

    name: PartyName = key(..., "Its name.")
    public_key: Text | None = key(
        None,
        "The line that `python -m homo_dp.keys new NAME` printed there, or the .pub file with it.",
    )


def _members(value: Any) -> Any:
    """Let names, and a mapping name -> public key, stand for the list of members."""
    if isinstance(value, dict):
        return tuple({"name": name, "public_key": line} for name, line in value.items())
    if isinstance(value, list | tuple):
        return tuple(
            member if isinstance(member, dict | Section) else {"name": member} for member in value
        )
    return value


class FederationConfig(Section):
    """What the aggregator expects of a round."""

    run: PartyName | None = key(
        None, "Name of the run; two runs in one folder or stream need two names. Null: made up."
    )
    parties: Annotated[tuple[MemberConfig, ...], BeforeValidator(_members)] = key(
        (),
        "Allow-list: `[{name, public_key}]`, or `{name: public_key}`. Empty: the parties of the "
        "data. A party lists its peers here for privacy.secure_aggregation.",
    )
    min_parties: Count | None = key(
        None,
        "Fewest replies for a round to count; null: all parties, under secure_aggregation less "
        "privacy.tolerated_dropouts.",
    )
    round_timeout: Positive = key(60.0, "Seconds to wait for the replies of a round.")
    on_missing: Literal["continue", "stop"] = key(
        "continue", "With too few replies: go on to the next round, or stop."
    )
    max_update_norm: Positive | None = key(None, "Refuse an update with a larger L2 norm.")
    key_file: FilePath | None = key(None, "The aggregator's private key.")
    state_dir: FilePath = key(
        "state/aggregator", "Where the aggregator keeps what it needs to continue after a crash."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [member.name for member in self.parties]
        if len(set(names)) != len(names):
            raise Conflict(
                "federation.parties: has a name twice; give every party a name of its own"
            )
        if names and self.min_parties is not None and self.min_parties > len(names):
            raise Conflict(
                f"federation.min_parties={self.min_parties}: must be at most the {len(names)} "
                "parties listed"
            )
        return self


class CapsConfig(Section):
    """What a party gives at most, whatever the aggregator asks for."""

    epsilon: Positive | None = key(None, "Largest epsilon of a run.")
    rounds: Count | None = key(100_000, "Most rounds of a run; null: no limit.")
    steps: Count | None = key(1_000_000, "Most local steps of a round; null: no limit.")
    total_steps: Count | None = key(100_000_000, "Most local steps of a run; null: no limit.")
    epochs: Positive | None = key(
        1_000_000.0, "Most passes over the rows in a run; null: no limit."
    )
    parameters: Count | None = key(1 << 26, "Most weights of a built-in model; null: no limit.")
    columns: Count | None = key(
        10_000, "Most numbers that a row of a table becomes (a level is one); null: no limit."
    )
    secure_aggregation: Literal["optional", "required"] = key(
        "optional", "`required`: answer only plans with privacy.secure_aggregation: true."
    )
    releases: tuple[Text, ...] | None = key(
        None, "Kinds of release that are allowed; null: those of the mechanism."
    )
    max_weight: Positive = key(
        1e6, "Largest weight, clip norm or noise that the aggregator may ask this party to take."
    )
    max_network_weight: Positive = key(
        100.0,
        "The same for weights of networks whose records are clipped: they compute in float32, and "
        "round.",
    )
    max_rate: Positive = key(1e3, "Largest learning rate, weight decay or proximal pull of a plan.")
    max_refusals: Count = key(
        1000, "Refused messages of a run after which the party ends, for its operator to look."
    )


class AskerConfig(Section):
    """An aggregator that may start runs at a party that serves."""

    aggregator_key: Text = key(..., "Public line of its key, or the .pub file with it.")
    runs: Annotated[
        tuple[Text, ...], BeforeValidator(lambda v: (v,) if isinstance(v, str) else v)
    ] = key(("*",), "Names of runs that it may start; `*` and `?` stand for anything.")


class ServeConfig(Section):
    """Rules of a party that takes runs as they come (`homo-dp party --serve`); they hold for a
    single run, too.
    """

    askers: tuple[AskerConfig, ...] = key(
        (), "Who may ask; of those whose `runs` fit, the first. Empty: party.aggregator_key."
    )
    mechanisms: tuple[Text, ...] | None = key(None, "Mechanisms that plans may have; null: all.")
    approve: Literal["always", "within_caps", "ask"] = key(
        "within_caps",
        "`always`: agree to what caps and budget allow. `within_caps`: the same if "
        "party.caps.epsilon is set, else ask. `ask`: every plan waits for `homo-dp party approve "
        "RUN`. All but `ask` need privacy.lifetime_epsilon to serve.",
    )
    at_once: Count = key(1, "Runs that are served at the same time, each by a process of its own.")


class PartyConfig(Section):
    """One party process."""

    name: PartyName | None = key(None, "Name of this party, as the aggregator lists it.")
    caps: CapsConfig = section(CapsConfig, "Limits that this party keeps.")
    key_file: FilePath | None = key(None, "This party's private key.")
    aggregator_key: Text | None = key(
        None, "Public line of the aggregator's key, or the .pub file with it."
    )
    state_dir: FilePath | None = key(None, "Outbox and state of this party; null: `state/<name>`.")
    patience: Positive = key(
        3600.0, "Seconds without a word from the aggregator after which the party gives up."
    )
    client: ImportPath | None = key(
        None,
        "Local training by a client of another framework: `package.module:make`, called with the "
        "party's name, gives a Flower NumPyClient or a function fit(weights, config). With "
        "dp_fedavg and `model.factory: homo_dp.models.arrays:array_model`.",
    )
    serve: ServeConfig | None = key(
        None, "Rules for runs as they come; null: one run, whose plan caps and budget decide."
    )

    @property
    def folder(self) -> Path:
        """Where this party keeps outbox and state, a folder a run."""
        return Path(self.state_dir or Path("state") / str(self.name))


class TlsConfig(Section):
    """TLS of the connection to NATS."""

    ca_file: FilePath | None = key(None, "Certificates to trust; null: those of the system.")
    cert_file: FilePath | None = key(None, "Certificate of this process.")
    key_file: FilePath | None = key(None, "Its private key.")
    hostname: Text | None = key(
        None, "Name that the server's certificate must have; null: that of the address."
    )


class NatsConfig(Section):
    """The queue transport."""

    servers: Annotated[
        tuple[Text, ...], BeforeValidator(lambda v: (v,) if isinstance(v, str) else v)
    ] = key(("nats://127.0.0.1:4222",), "Addresses.")
    stream: PartyName = key(
        "homo_dp", "Prefix of the JetStream stream (`<prefix>-<run>`) and of its subjects."
    )
    credentials: FilePath | None = key(None, "A .creds file.")
    user: Text | None = key(None, "User name, where the server wants one.")
    password_file: FilePath | None = key(
        None, "File with the password; passwords do not belong in a config."
    )
    tls: TlsConfig | None = key(None, "TLS settings; null: what the address says.")


class FlowerConfig(Section):
    """How the ClientApp of a SuperNode reaches the party beside it."""

    socket: FilePath | None = key(
        None,
        "Socket of the party, where the ClientApp calls; null: `party.sock` in the run's state "
        "folder.",
    )
    group: Text | None = key(
        None,
        "Group that may call there, for a SuperNode under another user than the party; null: this "
        "user only.",
    )


def _own_transport(value: object) -> object:
    if not isinstance(value, str) or not is_import_path(value):
        raise ValueError(
            "must be one of memory, directory, nats, flower, or package.module:Class of your own"
        )
    return value


OwnTransport = Annotated[str, BeforeValidator(_own_transport)]


class TransportConfig(Section):
    """How messages travel."""

    kind: Literal["memory", "directory", "nats", "flower"] | OwnTransport = key(
        "memory",
        "In one process, through a shared folder, NATS, Flower, or `package.module:Class` of your "
        "own.",
    )
    options: dict[str, Any] = mapping("Settings for a transport of your own.")
    directory: FilePath = key("exchange", "The shared folder.")
    nats: NatsConfig = section(NatsConfig, "Settings of `kind: nats`.")
    flower: FlowerConfig = section(FlowerConfig, "Settings of `kind: flower`.")
    revoked_keys: FilePath | None = key(
        None,
        "File of keys that are trusted no more, a public line or fingerprint each; read again when "
        "it changes.",
    )
    max_message_bytes: Count = key(
        1 << 30, "A larger message is refused before memory is taken for it."
    )
