"""How messages travel: memory, a shared directory, a NATS queue; and how they are sealed."""
