"""What ``import homo_dp`` offers: training, loading and planning from Python, each the function
its command calls.
"""

from homo_dp.console.python_log import show_warnings

show_warnings()
