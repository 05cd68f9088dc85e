"""A file for each kind of engine: what its metrics are called."""
