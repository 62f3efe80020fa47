"""Questions about the parties' tables that are answered by private sums, and what their answers
say.
"""
