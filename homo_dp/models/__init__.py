"""The models a federation can train, and the file a trained one is kept in."""
