"""Sweeps: many scenarios from one, on one machine or a cluster, into a table that survives being
killed.
"""
