"""A message that ends the process while it is read is tried once more, and then no more."""

import os
from pathlib import Path

import pytest

from homo_dp.core.errors import MessageError
from homo_dp.federation.protocol.ids import AGGREGATOR
from homo_dp.transport import sealing
from homo_dp.transport.poison_messages import ReadingNote
from tests.transport.parts import sealer, update


def die(*_: object) -> None:
    os._exit(9)


def read_in_child(path: Path, data: bytes) -> int:
    """0: read; 1: refused; 9: died."""
    child = os.fork()
    if child == 0:
        end = sealer(AGGREGATOR)
        end.note = ReadingNote(path)
        try:
            end.open_bytes(data)
        except MessageError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_message_that_kills_is_read_twice_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "reading"
    bad, good = (b"".join(sealer("bank_a").seal(update(round=number)).pieces) for number in (1, 2))
    with monkeypatch.context() as patched:
        patched.setattr(sealing, "decode", die)
        assert read_in_child(path, bad) == 9
    assert read_in_child(path, good) == 0  # what else was read does not make it forget
    with monkeypatch.context() as patched:
        patched.setattr(sealing, "decode", die)
        assert read_in_child(path, bad) == 9
        assert read_in_child(path, bad) == 1
    assert read_in_child(path, good) == 0
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_damaged_or_lost_note_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "reading"
    for content in (b"\xff", b"[]", b'{"a": "b"}', b"[" * 10_000):
        path.write_bytes(content)
        with ReadingNote(path).reading("m"):
            pass
    with ReadingNote(tmp_path / "nowhere" / "reading").reading("m"):
        pass
