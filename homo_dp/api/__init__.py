"""What ``import homo_dp`` offers: training, loading and planning from Python, each the function
its command calls.
"""
