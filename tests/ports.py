"""A port for a server that is started, killed and started again, which nobody else gets
meanwhile.
"""

import itertools
import os
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST = 10_000
# so that processes that test at the same time try others
_next = itertools.count(os.getpid() * 997)


def free_port() -> int:
    """A port on 127.0.0.1 where nobody listens, outside those that the kernel gives to whoever asks
    for any.

    Those go to every outgoing connection and to servers of other tests: while ours is down, one of
    them may get its port.
    """
    end = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    for number in itertools.islice(_next, 1000):
        port = _FIRST + number % (end - _FIRST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"1,000 ports from {_FIRST} to {end} are taken")
