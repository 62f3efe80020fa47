"""The Opacus engine whose secure mode works, for training loops written for Opacus."""
