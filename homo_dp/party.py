"""Run ``python -m homo_dp.party``.

The command is ``commands/party.py``: ``homo_dp.party`` is the function of the Python API.
"""

from homo_dp.commands.party import main
from homo_dp.console.options import run

if __name__ == "__main__":
    run(main)
