"""Is this deployment stable, and at what latency: a server or a network."""
