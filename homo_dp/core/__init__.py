"""What every other room may import and what imports none of them: errors, files, crash points
for tests.
"""
