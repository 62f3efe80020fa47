"""Run ``python -m homo_dp.audit``.

The command is ``commands/audit.py``: ``homo_dp.audit`` is the function of the Python API.
"""

from homo_dp.commands.audit import main
from homo_dp.console.options import run

if __name__ == "__main__":
    run(main)
