"""The `federation`, `party` and `transport` sections: who takes part, and how messages travel."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, model_validator

from homo_dp.config.base import (
    Conflict,
    Count,
    FilePath,
    PartyName,
    Positive,
    Section,
    Text,
    key,
    section,
)


class MemberConfig(Section):
    """A party that the aggregator lets in."""

    name: PartyName = key(..., "Its name.")
    public_key: Text | None = key(
        None, "The line that `python -m homo_dp.keys new NAME` printed there, or the .pub file with it."
    )


def _members(value: Any) -> Any:
    """Let names, and a mapping name -> public key, stand for the list of members."""
    if isinstance(value, dict):
        return tuple({"name": name, "public_key": line} for name, line in value.items())
    if isinstance(value, list | tuple):
        return tuple(member if isinstance(member, dict | Section) else {"name": member} for member in value)
    return value


class FederationConfig(Section):
    """What the aggregator expects of a round."""

    run: PartyName | None = key(
        None, "Name of the run; two runs in one folder or stream need two names. Null: made up."
    )
    parties: Annotated[tuple[MemberConfig, ...], BeforeValidator(_members)] = key(
        (),
        "Allow-list: `[{name, public_key}]`, or `{name: public_key}`. Empty: the parties of the data. "
        "A party lists its peers here for privacy.secure_aggregation.",
    )
    min_parties: Count | None = key(None, "Fewest replies for a round to count; null: all parties.")
    round_timeout: Positive = key(60.0, "Seconds to wait for the replies of a round.")
    on_missing: Literal["continue", "stop"] = key("continue", "With too few replies: go on to the next round, or stop.")
    max_update_norm: Positive | None = key(None, "Refuse an update with a larger L2 norm.")
    key_file: FilePath | None = key(None, "The aggregator's private key.")
    state_dir: FilePath = key("state/aggregator", "Where the aggregator keeps what it needs to continue after a crash.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [member.name for member in self.parties]
        if len(set(names)) != len(names):
            raise Conflict("federation.parties: has a name twice; give every party a name of its own")
        if names and self.min_parties is not None and self.min_parties > len(names):
            raise Conflict(
                f"federation.min_parties={self.min_parties}: must be at most the {len(names)} parties listed"
            )
        return self


class CapsConfig(Section):
    """What a party gives at most, whatever the aggregator asks for."""

    epsilon: Positive | None = key(None, "Largest epsilon of a run.")
    rounds: Count | None = key(100_000, "Most rounds of a run; null: no limit.")
    steps: Count | None = key(1_000_000, "Most local steps of a round; null: no limit.")
    total_steps: Count | None = key(100_000_000, "Most local steps of a run; null: no limit.")
    epochs: Positive | None = key(1_000_000.0, "Most passes over the rows in a run; null: no limit.")
    parameters: Count | None = key(1 << 26, "Most weights of a built-in model; null: no limit.")
    columns: Count | None = key(10_000, "Most numbers that a row of a table becomes (a level is one); null: no limit.")
    secure_aggregation: Literal["optional", "required"] = key(
        "optional", "`required`: answer only plans with privacy.secure_aggregation: true."
    )
    releases: tuple[Text, ...] | None = key(None, "Kinds of release that are allowed; null: those of the mechanism.")
    max_weight: Positive = key(
        1e6, "Largest weight, clip norm or noise that the aggregator may ask this party to take."
    )
    max_rate: Positive = key(1e3, "Largest learning rate, weight decay or proximal pull of a plan.")
    max_refusals: Count = key(1000, "Refused messages of a run after which the party ends, for its operator to look.")


class PartyConfig(Section):
    """One party process."""

    name: PartyName | None = key(None, "Name of this party, as the aggregator lists it.")
    caps: CapsConfig = section(CapsConfig, "Limits that this party keeps.")
    key_file: FilePath | None = key(None, "This party's private key.")
    aggregator_key: Text | None = key(None, "Public line of the aggregator's key, or the .pub file with it.")
    state_dir: FilePath | None = key(None, "Outbox and state of this party; null: `state/<name>`.")
    patience: Positive = key(3600.0, "Seconds without a word from the aggregator after which the party gives up.")


class TlsConfig(Section):
    """TLS of the connection to NATS."""

    ca_file: FilePath | None = key(None, "Certificates to trust; null: those of the system.")
    cert_file: FilePath | None = key(None, "Certificate of this process.")
    key_file: FilePath | None = key(None, "Its private key.")
    hostname: Text | None = key(None, "Name that the server's certificate must have; null: that of the address.")


class NatsConfig(Section):
    """The queue transport."""

    servers: Annotated[tuple[Text, ...], BeforeValidator(lambda v: (v,) if isinstance(v, str) else v)] = key(
        ("nats://127.0.0.1:4222",), "Addresses."
    )
    stream: PartyName = key("homo_dp", "Prefix of the JetStream stream (`<prefix>-<run>`) and of its subjects.")
    credentials: FilePath | None = key(None, "A .creds file.")
    user: Text | None = key(None, "User name, where the server wants one.")
    password_file: FilePath | None = key(None, "File with the password; passwords do not belong in a config.")
    tls: TlsConfig | None = key(None, "TLS settings; null: what the address says.")


class TransportConfig(Section):
    """How messages travel."""

    kind: Literal["memory", "directory", "nats"] = key("memory", "In one process, through a shared folder, or NATS.")
    directory: FilePath = key("exchange", "The shared folder.")
    nats: NatsConfig = section(NatsConfig, "Settings of `kind: nats`.")
    revoked_keys: FilePath | None = key(
        None, "File of keys that are trusted no more, a public line or fingerprint each; read again when it changes."
    )
    max_message_bytes: Count = key(1 << 30, "A larger message is refused before memory is taken for it.")
