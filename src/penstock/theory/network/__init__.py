"""Theorems on networks."""
