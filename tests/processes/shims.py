"""Faults inside a process under test, between homo_dp and the operating system or its peers.

`failing_calls` makes calls below a folder fail while a mark is there, as a share does whose server
is away, or a full disk. `bent_answers` makes a party of masked sums send broken answers, and
`bent_on_the_wire` alters messages after they were sealed.
"""

from __future__ import annotations

import errno
import functools
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from homo_dp.federation.protocol.messages import Message
from homo_dp.federation.sessions.secure_answers import PartySums
from homo_dp.transport.sealing import Sealed, Sealer

CALLS = ("open", "rename", "replace", "scandir", "listdir", "unlink", "mkdir", "stat", "chmod")
WRITING = ("rename", "replace", "mkdir", "open")


def failing_calls(folders: list[str], mark: str) -> None:
    """Let calls below the folders raise the error whose number is in the file ``mark``, while there
    is one; a full disk only fails calls that make something.
    """
    prefixes, stat = tuple(folders), os.stat

    def error(name: str, path: object, arguments: tuple[Any, ...]) -> OSError | None:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path).startswith(prefixes):
            return None
        try:
            stat(mark)
            number = int(Path(mark).read_bytes())
        except (OSError, ValueError):
            return None
        makes = name in WRITING and (name != "open" or arguments[0] & os.O_CREAT)
        if number in (errno.ENOSPC, errno.EDQUOT) and not makes:
            return None
        return OSError(number, os.strerror(number), os.fspath(path))

    def failing(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        @functools.wraps(real)
        def call(path: Any = ".", *arguments: Any, **named: Any) -> Any:
            if (found := error(name, path, arguments)) is not None:
                raise found
            return real(path, *arguments, **named)

        return call

    for name in CALLS:
        setattr(os, name, failing(name))


def bent_answers(kind: str, times: int) -> None:
    """Let a party bend its first answers of a kind: their first tensor is cut."""
    real, sent = PartySums.handle, Counter[str]()

    def handle(self: PartySums, message: Message) -> Message:
        answer = real(self, message)
        sent[answer.kind] += 1
        if answer.kind != kind or sent[kind] > times:
            return answer
        first, tensor = next(iter(answer.tensors.items()))
        return replace(answer, tensors={**answer.tensors, first: tensor[:-1]})

    PartySums.handle = handle  # type: ignore[method-assign]


def bent_on_the_wire(kind: str) -> None:
    """Let all sealed messages of a kind arrive with their last bytes cut."""
    real = Sealer.seal

    def seal(self: Sealer, message: Message, *arguments: Any, **named: Any) -> Sealed:
        found = real(self, message, *arguments, **named)
        if message.kind != kind:
            return found
        content = b"".join(found.pieces)[:-9]
        return Sealed(iter([content]), len(content), found.tag)

    Sealer.seal = seal  # type: ignore[method-assign]
