"""The configuration: its schema, YAML files, and command-line overrides."""
