"""Messages through a NATS JetStream queue."""
