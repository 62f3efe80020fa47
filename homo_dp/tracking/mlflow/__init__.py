"""Runs on their way to MLflow: a spool beside the outputs, and a process that sends it."""
