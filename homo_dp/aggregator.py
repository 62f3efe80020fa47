"""Run ``python -m homo_dp.aggregator``.

The command is ``commands/aggregator.py``: ``homo_dp.aggregator`` is the function of the Python API.
"""

from homo_dp.commands.aggregator import main
from homo_dp.console.options import run

if __name__ == "__main__":
    run(main)
