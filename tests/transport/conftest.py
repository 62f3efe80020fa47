"""A real queue server, and no tasks left behind."""

import gc
from collections.abc import Iterator

import pytest

from tests.transport.nats_server import NatsServer
from tests.transport.parts import PARTIES


@pytest.fixture
def collected() -> Iterator[None]:
    yield
    gc.collect()  # tasks that were left behind complain in the test that left them


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats"), PARTIES) as running:
        yield running
