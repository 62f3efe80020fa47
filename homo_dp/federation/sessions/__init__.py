"""A run at an aggregator and at a party: joining, the plan, the loop over rounds, what survives
a crash.
"""
