"""Watching engines that run: what they say of themselves, and what follows from it."""
