"""Run ``python -m homo_dp.stats``.

The command is ``commands/stats.py``: ``homo_dp.stats`` is the function of the Python API.
"""

from homo_dp.commands.stats import main
from homo_dp.console.options import run

if __name__ == "__main__":
    run(main)
