"""A homo_dp job as a Flower app: what Flower loads at the aggregator and at the nodes."""
