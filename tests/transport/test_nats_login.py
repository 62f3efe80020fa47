"""Who may talk to the queue: certificates, the documented server config, credentials, and what
is not installed.
"""

import base64
import datetime
import importlib.util
import json
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from homo_dp.config.federation import NatsConfig
from homo_dp.core.errors import InputError, TransportError
from homo_dp.federation.protocol.messages import AGGREGATOR
from homo_dp.transport.nats.queue import NatsTransport
from tests.transport.nats.ends import LEAVES_NOTHING
from tests.transport.nats_server import NatsServer, aggregator_permissions, party_permissions
from tests.transport.parts import PARTIES, got, sealer, update, weights

pytestmark = LEAVES_NOTHING


def certificate(directory: Path, name: str, issuer: tuple[Any, Any] | None) -> tuple[Any, Any]:
    """A certificate for loopback, signed by `issuer` or by itself; written to name.pem and
    name-key.pem.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(
                (issuer[1] if issuer else key).public_key()
            ),
            False,
        )
        .sign(issuer[1] if issuer else key, hashes.SHA256())
    )
    (directory / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / f"{name}-key.pem").write_bytes(private)
    return made, key


TLS_FILES = {"ca_file": "ca.pem", "cert_file": "party.pem", "key_file": "party-key.pem"}


def test_tls_with_certificates_on_both_sides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = certificate(tmp_path, "ca", None)
    certificate(tmp_path, "server", authority)
    certificate(tmp_path, "party", authority)
    certificate(tmp_path, "other", None)
    path = {
        name: str(tmp_path / f"{name}.pem")
        for name in ("ca", "server", "server-key", "party", "party-key", "other")
    }
    tls = {
        "cert_file": path["server"],
        "key_file": path["server-key"],
        "ca_file": path["ca"],
        "verify": True,
    }
    own = {"ca_file": path["ca"], "cert_file": path["party"], "key_file": path["party-key"]}
    with NatsServer(tmp_path / "server", PARTIES, settings={"tls": tls}) as server:
        address = (f"tls://127.0.0.1:{server.port}",)
        ends = [
            NatsTransport(server.config(name, servers=address, tls=own), "demo", sealer(name))
            for name in (AGGREGATOR, "bank_a")
        ]
        ends[1].send(update())
        assert got(ends[0]).sender == "bank_a"
        for end in ends:
            end.close()
        assert not caplog.records
        for wrong in (
            {"ca_file": path["other"]},
            {"ca_file": path["ca"]},
            own | {"hostname": "elsewhere"},
        ):
            config = server.config("bank_a", servers=address, tls=wrong)
            with pytest.raises(TransportError):
                NatsTransport(config, "demo", sealer("bank_a"), connect_timeout=0.5)


def test_the_documented_server_config_works_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = certificate(tmp_path, "ca", None)
    for name in ("server", "party"):
        certificate(tmp_path, name, authority)
    text = (Path(__file__).parents[2] / "docs" / "transports.md").read_text()
    block = text.split("```conf\n")[1].split("```")[0]
    server = NatsServer(tmp_path / "server", ["bank_a"])
    block = block.replace("/etc/nats/", f"{tmp_path}/").replace(
        "/var/lib/nats", str(tmp_path / "store")
    )
    block = block.replace("0.0.0.0:4222", f"127.0.0.1:{server.port}").replace("50GB", "1GB")
    (tmp_path / "server" / "server.conf").write_text(block)
    for name in ("aggregator", "bank_a"):
        monkeypatch.setenv(f"{name.upper()}_PASSWORD", f"pw-{name}")
    wanted = [aggregator_permissions("homo_dp"), party_permissions("homo_dp", "bank_a")]
    subjects = [
        subject for rights in wanted for side in rights.values() for subject in side["allow"]
    ]
    assert all(f'"{subject}"' in block for subject in subjects)
    assert block.count('"homo_dp.') + block.count('"$JS.') + block.count('"_INBOX') == len(subjects)
    tls = {name: str(tmp_path / file) for name, file in TLS_FILES.items()}
    with server:
        address = (f"tls://127.0.0.1:{server.port}",)
        aggregator, party = (
            NatsTransport(server.config(name, servers=address, tls=tls), "demo", sealer(name))
            for name in (AGGREGATOR, "bank_a")
        )
        aggregator.send(weights())
        party.send(update())
        party.done(got(party))
        aggregator.done(got(aggregator))
        for end in (aggregator, party):
            end.close()


class Nkey:
    """An nkey as NATS writes it: base32 of a prefix, 32 bytes and a CRC-16."""

    def __init__(self, prefix: int) -> None:
        self.key = Ed25519PrivateKey.generate()
        self.public = self._text(bytes([prefix]) + self.key.public_key().public_bytes_raw())
        self.seed = self._text(
            bytes([144 | prefix >> 5, (prefix & 31) << 3]) + self.key.private_bytes_raw()
        )

    @staticmethod
    def _text(data: bytes) -> str:
        crc = 0
        for byte in data:
            crc ^= byte << 8
            for _ in range(8):
                crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
        return base64.b32encode(data + crc.to_bytes(2, "little")).decode().rstrip("=")

    def token(self, subject: "Nkey", name: str, claims: dict[str, object]) -> str:
        """A JWT about `subject`, signed by this key."""
        body = {"jti": name, "iat": 1, "iss": self.public, "name": name, "sub": subject.public}
        fields = ({"typ": "JWT", "alg": "ed25519-nkey"}, body | {"nats": claims | {"version": 2}})
        text = ".".join(
            base64.urlsafe_b64encode(json.dumps(field).encode()).decode().rstrip("=")
            for field in fields
        )
        signed = base64.urlsafe_b64encode(self.key.sign(text.encode())).decode().rstrip("=")
        return f"{text}.{signed}"


@pytest.mark.skipif(importlib.util.find_spec("nkeys") is not None, reason="nkeys is installed")
def test_a_bare_nkey_without_its_package_says_what_to_install(
    server: NatsServer, tmp_path: Path
) -> None:
    (tmp_path / "seed").write_text(Nkey(20 << 3).seed + "\n")
    with pytest.raises(InputError, match="pip install nkeys"):
        NatsTransport(
            server.config("bank_a", credentials=str(tmp_path / "seed")), "demo", sealer("bank_a")
        )


def test_credentials_files_of_an_operator(tmp_path: Path) -> None:
    operator, system, account = Nkey(14 << 3), Nkey(0), Nkey(0)
    free = dict.fromkeys(("subs", "conn", "leaf", "imports", "exports", "data", "payload"), -1)
    storage: dict[str, object] = dict.fromkeys(
        ("mem_storage", "disk_storage", "streams", "consumer"), -1
    )
    settings: dict[str, object] = {
        "authorization": {},
        "operator": operator.token(operator, "operator", {"type": "operator"}),
        "system_account": system.public,
        "resolver": "MEMORY",
        "resolver_preload": {
            system.public: operator.token(system, "SYS", {"type": "account", "limits": free}),
            account.public: operator.token(
                account, "homo", {"type": "account", "limits": free | storage}
            ),
        },
    }

    def credentials(name: str, allowed: dict[str, Any]) -> str:
        user = Nkey(20 << 3)
        limits = {"subs": -1, "data": -1, "payload": -1}
        jwt = account.token(
            user,
            name,
            limits | {"type": "user", "pub": allowed["publish"], "sub": allowed["subscribe"]},
        )
        path = tmp_path / f"{name}.creds"
        path.write_text(
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )
        return str(path)

    with NatsServer(tmp_path / "server", PARTIES, settings=settings) as server:

        def end(name: str, path: str) -> NatsTransport:
            address = f"nats://127.0.0.1:{server.port}"
            return NatsTransport(
                NatsConfig(servers=(address,), credentials=path), "demo", sealer(name)
            )

        aggregator = end(AGGREGATOR, credentials(AGGREGATOR, aggregator_permissions("homo_dp")))
        party = end("bank_a", credentials("bank_a", party_permissions("homo_dp", "bank_a")))
        party.send(update())
        assert got(aggregator).sender == "bank_a"
        party.close()
        aggregator.close()
