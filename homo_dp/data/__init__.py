"""Tables and images of the parties, turned into tensors with public knowledge only."""
