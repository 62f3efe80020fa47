"""Who takes part in a step, with the event and relation of that draw."""
