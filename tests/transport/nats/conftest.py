"""Ends of a run of its own for each test."""

from collections.abc import Iterator

import pytest

from tests.transport.nats.ends import Ends
from tests.transport.nats_server import NatsServer


@pytest.fixture
def ends(server: NatsServer, request: pytest.FixtureRequest) -> Iterator[Ends]:
    made = Ends(
        server, "".join(letter for letter in request.node.name.lower() if letter.isalnum())[-50:]
    )
    yield made
    for end in made.opened:
        end.close()
