"""How many bytes the nested columns of a Parquet file take, asked in a process of its own.

A list of a billion values is written in a kilobyte, and its length stands in no count of rows. What
Parquet says of it stands in the row groups, and where those are damaged pyarrow ends its process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from homo_dp.core.errors import DataError

_SECONDS: Final = 300
_OWN: Final = 1 << 28  # bytes that the reader takes beside the values: stacks of threads, buffers
_READER: Final = """
import json, resource, sys
import pyarrow, pyarrow.parquet
file, most, names = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
pyarrow.set_cpu_count(1)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + most, used + most))
size = 0
with pyarrow.parquet.ParquetFile(file) as parquet:
    for batch in parquet.iter_batches(batch_size=1000, columns=names, use_threads=False):
        size += batch.nbytes
print(size)
"""


def nested_bytes(file: Path, names: Sequence[str], most: int) -> int | None:
    """The bytes of the values of these columns; None where they take more than about ``most``.

    Raises:
        DataError: they cannot be read in any memory.
    """
    command = [sys.executable, "-c", _READER, str(file), str(most + _OWN), json.dumps(list(names))]
    try:
        # the pool of the system: others reserve more than they use
        found = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            env={"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"},
        )
    except subprocess.TimeoutExpired:
        return None
    if found.returncode == 0:
        return int(found.stdout)
    said = found.stderr.strip().rpartition("\n")[2]
    if "MemoryError" in said or "bad_alloc" in said or "malloc" in said:
        return None
    raise DataError(
        f"{file}: not a readable Parquet file (its columns {', '.join(names)}: "
        f"{said or f'the reader ended with {found.returncode}'}); write it again"
    )
