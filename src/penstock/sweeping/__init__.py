"""Sweeps: many scenarios from one, here or on a cluster, into a table that survives a kill."""
