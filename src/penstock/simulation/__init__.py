"""Simulate a workload on a server or a network, and what happened in the run."""
