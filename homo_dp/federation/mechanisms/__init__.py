"""One file a mechanism: how updates are bounded, noised, accounted and combined."""
