"""Twins: a real engine and its simulation, under the same requests."""
