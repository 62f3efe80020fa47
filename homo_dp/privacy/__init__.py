"""The privacy core: noise, sampling, events, accounting, ledger, clipping and the Opacus engine."""
