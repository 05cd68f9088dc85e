"""Measure the batch times of real engines that run here."""
