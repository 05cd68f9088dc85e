"""Scenarios: YAML files that say what arrives, what serves, and how long to look."""
