"""What is said between aggregator and parties, and the interface of what carries it."""
